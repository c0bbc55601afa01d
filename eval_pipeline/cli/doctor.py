from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import click

from eval_pipeline.cli.output import Failure, emit, json_option, with_settings
from eval_pipeline.errors import EvalsError
from eval_pipeline.settings import Settings


@dataclass(frozen=True)
class Finding:
    """works: False is a failure, None a limitation that is known and shown."""

    what: str
    works: bool | None
    said: str
    remedy: str | None = None


@click.command()
@json_option
@with_settings
def command(settings: Settings, as_json: bool) -> int:
    """Try everything this installation needs, and say what holds, what doesn't, and the remedy."""
    findings = [
        Finding(
            "python", sys.version_info >= (3, 11), f"{sys.version.split()[0]}, uid {os.getuid()}", "use Python 3.11 or newer"
        ),
        *_tried("isolation", lambda: _isolation(settings)),
        *_tried("postgres", lambda: _postgres(settings)),
        *_tried("worlds", lambda: _worlds(settings)),
        *_tried("artifacts", lambda: _artifacts(settings)),
    ]

    def people() -> None:
        for finding in findings:
            mark = {
                True: click.style("ok  ", fg="green"),
                False: click.style("no  ", fg="red"),
                None: click.style("note", fg="yellow"),
            }
            click.echo(f"{mark[finding.works]}  {finding.what}: {finding.said}")
            if finding.works is not True and finding.remedy:
                click.echo(f"        {finding.remedy}")

    broken = [finding.what for finding in findings if finding.works is False]
    failure = Failure("doctor", f"these do not work here: {', '.join(broken)}") if broken else None
    emit([asdict(finding) for finding in findings], as_json, people, failure)
    return 2 if broken else 0


def _tried(what: str, look: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return look()
    except EvalsError as error:
        return [Finding(what, False, str(error), error.hint)]


def _isolation(settings: Settings) -> list[Finding]:
    from eval_pipeline.host import reachable_root
    from eval_pipeline.sandbox.local.backend import LocalBackend
    from eval_pipeline.sandbox.local.probe import probe

    world = reachable_root(settings.state_dir) / "probe-world"
    world.mkdir(exist_ok=True)
    world.chmod(0o755)
    report = asyncio.run(probe(LocalBackend("probe", settings.state_dir), world))
    held = [Finding("isolation", True, f"{report.level}: {', '.join(report.enforced)}")]
    return held + [Finding(f"not enforced: {name}", None, said) for name, said in report.missing.items()]


def _postgres(settings: Settings) -> list[Finding]:
    from eval_pipeline.store.postgres import server_status
    from eval_pipeline.store.records import open_records

    with open_records(settings) as records:
        installation = records.ledger.installation_id()
        status: Any = server_status(settings)
    kind = "your server" if settings.postgres_url else f"embedded, data in {status.data_dir}"
    return [Finding("postgres", True, f"{status.version}, {kind}; installation {installation}")]


def _worlds(settings: Settings) -> list[Finding]:
    from eval_pipeline.specs.library import Library

    library = Library(settings.worlds_dir)
    n_cases = len(library.all_cases())
    return [Finding("worlds", True, f"{len(library.world_names())} worlds, {n_cases} cases under {settings.worlds_dir}")]


def _artifacts(settings: Settings) -> list[Finding]:
    from eval_pipeline.store.artifacts import open_store

    store = open_store(settings)
    artifact = store.put_bytes(b"doctor\n")
    with store.open(artifact.digest) as stream:
        stream.read()
    return [Finding("artifacts", True, settings.artifacts_url or str(settings.state_dir / "artifacts"))]
