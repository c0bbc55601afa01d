from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from eval_pipeline.cli.doctor_modal import ON_REQUEST, examine
from eval_pipeline.cli.output import Failure, emit, json_option, starts_sandboxes, table, with_settings
from eval_pipeline.errors import EvalsError, SpecError
from eval_pipeline.settings import Settings

if TYPE_CHECKING:
    from eval_pipeline.sandbox.local.guarantees import Guarantee


@dataclass(frozen=True)
class Finding:
    what: str
    works: bool
    said: str
    remedy: str | None = None


@dataclass(frozen=True)
class Isolation:
    """level: full, degraded, unsafe or none; `guarantees` is empty when it is none. said: the verdict."""

    level: str
    said: str
    guarantees: Sequence[Guarantee]
    remedy: str | None = None


@click.command()
@click.option("--backend", type=click.Choice(["local", "modal"]), default="local", show_default=True, help="Where sandboxes run.")
@click.option("--try", "tries", type=click.Choice(list(ON_REQUEST)), multiple=True, help="With `--backend modal`: try this, too.")
@json_option
@with_settings
@starts_sandboxes
def command(settings: Settings, backend: str, tries: tuple[str, ...], as_json: bool) -> int:
    """Try everything this installation needs, and say what holds, what doesn't, and the remedy. Starts a sandbox and attacks it."""
    if backend == "modal":
        return examine(settings, tries, as_json)
    if tries:
        raise SpecError("`--try` is for `--backend modal`")
    python = f"{sys.version.split()[0]}, uid {os.getuid()}"
    isolation = _isolation(settings)
    findings = [
        Finding("python", sys.version_info >= (3, 11), python, "use Python 3.11 or newer"),
        Finding("isolation", isolation.level != "none", isolation.said, isolation.remedy),
        _tried("postgres", lambda: _postgres(settings)),
        _tried("worlds", lambda: _worlds(settings)),
        _tried("artifacts", lambda: _artifacts(settings)),
        _tried("partitions", lambda: _partitions(settings)),
        _tried("secrets", lambda: _secrets(settings)),
        _tried("notifications", lambda: _notifications(settings)),
    ]
    broken = [finding.what for finding in findings if not finding.works]
    verdict = f"these do not work here: {', '.join(broken)}" if broken else f"experiments can run here; {isolation.said}"

    def people() -> None:
        for finding in findings:
            click.echo(f"{click.style('ok', fg='green') if finding.works else click.style('no', fg='red')}  ", nl=False)
            click.echo(f"{finding.what}: {finding.said}")
            if not finding.works and finding.remedy:
                click.echo(f"      remedy: {finding.remedy}")
        _show_guarantees(isolation.guarantees)
        if not broken:
            click.echo(f"\nverdict: {verdict}")

    data = {
        "verdict": verdict,
        "level": isolation.level,
        "guarantees": [asdict(each) for each in isolation.guarantees],
        "findings": [asdict(finding) for finding in findings],
    }
    emit(data, as_json, people, Failure("doctor", verdict) if broken else None)
    return 2 if broken else 0


def _show_guarantees(guarantees: Sequence[Guarantee]) -> None:
    if guarantees:
        click.echo()
        rows = [[each.name, "enforced" if each.enforced else "NOT enforced", each.said, each.remedy] for each in guarantees]
        table(["what a sandbox guarantees", "here", "how, or what is so without it", "remedy"], rows)
        click.echo("On any machine: the allowlist sees host names, not what a TLS connection asks for inside (domain fronting).")


def _tried(what: str, look: Callable[[], Finding]) -> Finding:
    try:
        return look()
    except EvalsError as error:
        return Finding(what, False, str(error), error.hint)


def _isolation(settings: Settings) -> Isolation:
    from eval_pipeline.host import reachable_root
    from eval_pipeline.sandbox.local.backend import LocalBackend
    from eval_pipeline.sandbox.local.probe import probe

    try:
        world = reachable_root(settings.state_dir) / "probe-world"
        world.mkdir(exist_ok=True)
        world.chmod(0o755)
        report = asyncio.run(probe(LocalBackend("probe", settings.state_dir, unsafe=settings.unsafe_no_isolation), world))
    except EvalsError as error:
        return Isolation("none", str(error), [], error.hint)
    said = {
        "full": "sandboxes are isolated, and every limit holds",
        "degraded": f"sandboxes are isolated; not enforced: {', '.join(report.missing)}",
        "unsafe": f"UNSAFE, by --unsafe-no-isolation: sandboxes are started by root, without: {', '.join(report.missing)}",
    }[report.level]
    needless = settings.unsafe_no_isolation and report.level != "unsafe"
    return Isolation(
        report.level, said + ("; --unsafe-no-isolation is not needed and changes nothing" if needless else ""), report.guarantees
    )


def _postgres(settings: Settings) -> Finding:
    from eval_pipeline.store.postgres import server_status
    from eval_pipeline.store.records import open_records

    with open_records(settings) as records:
        installation = records.ledger.installation_id()
        status: Any = server_status(settings)
    kind = "your server" if settings.postgres_url else f"embedded, data in {status.data_dir}"
    return Finding("postgres", True, f"{status.version}, {kind}; installation {installation}")


def _worlds(settings: Settings) -> Finding:
    from eval_pipeline.specs.library import Library

    library = Library(settings.worlds_dir)
    cases, wrong = library.read_all_cases()
    said = f"{len(library.world_names())} worlds, {len(cases)} cases under {settings.worlds_dir}"
    return Finding("worlds", True, said + "".join(f"; warning: {one.error}" for one in wrong))


def _artifacts(settings: Settings) -> Finding:
    from eval_pipeline.store.artifacts import open_store

    store = open_store(settings)
    artifact = store.put_bytes(b"doctor\n")
    with store.open(artifact.digest) as stream:
        stream.read()
    return Finding("artifacts", True, settings.artifacts_url or str(settings.state_dir / "artifacts"))


def _secrets(settings: Settings) -> Finding:
    """Whether their sources can be read; that one is missing hinders only who needs it."""
    from eval_pipeline.store.records import open_records
    from eval_pipeline.vault.delivery import Secrets

    with open_records(settings) as records:
        look = Secrets(settings, records).look()
    missing = f"; nobody holds: {', '.join(look.missing)}" if look.missing else ""
    return Finding(
        "secrets", True, f"{look.n_found} of {look.n_found + len(look.missing)} declared are in {look.looked_in}{missing}"
    )


def _notifications(settings: Settings) -> Finding:
    from eval_pipeline.store.notices import Notices
    from eval_pipeline.store.records import open_records

    with open_records(settings) as records:
        outbox = Notices(records.database).outbox()
    told = "a webhook is told" if settings.webhook_url else "nobody is told (EVALS_WEBHOOK_URL)"
    said = f"{told}; {outbox.waiting} waiting, {outbox.given_up} given up"
    return Finding("notifications", True, said + (f"; last error: {outbox.error}" if outbox.error else ""))


def _partitions(settings: Settings) -> Finding:
    from eval_pipeline.runner.retention import MOST_PARTITIONS, partitions_warning
    from eval_pipeline.store.records import open_records

    with open_records(settings) as records:
        n_cells = records.views.n_partitions()
    warning = partitions_warning(n_cells)
    return Finding("partitions", True, f"warning: {warning}" if warning else f"{n_cells} of {MOST_PARTITIONS} that Dagster bears")
