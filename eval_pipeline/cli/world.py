from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from eval_pipeline.cli.output import Failure, emit, harmless, json_option, note_unreadable, table, with_settings
from eval_pipeline.cli.world_open import close_world, lead_ports, open_world
from eval_pipeline.cli.world_save import save_world
from eval_pipeline.errors import SpecError
from eval_pipeline.settings import Settings

if TYPE_CHECKING:
    from eval_pipeline.specs.world_check import Checked


@click.group()
def command() -> None:
    """Worlds: reproducible matters under worlds_src/worlds/."""


for verb in (open_world, lead_ports, save_world, close_world):
    command.add_command(verb)


@command.command("list")
@json_option
@with_settings
def list_worlds(settings: Settings, as_json: bool) -> None:
    """All worlds, with the number of their cases. What can't be read is named on stderr."""
    from eval_pipeline.specs.library import Library

    library = Library(settings.worlds_dir)
    rows: list[dict[str, Any]] = []
    for name in library.world_names():
        title, (cases, wrong) = None, library.read_cases(name)
        with suppress(SpecError):  # which `wrong` holds
            title = library.world(name).spec.title
        rows.append({"world": name, "title": title, "n_cases": len(cases)})
        note_unreadable(wrong)
    emit(rows, as_json, lambda: table(["world", "cases", "title"], [[r["world"], r["n_cases"], r["title"]] for r in rows]))


@command.command("new")
@click.argument("name")
@click.option("--title", help="A line for people; the name when it is not given.")
@json_option
@with_settings
def new(settings: Settings, name: str, title: str | None, as_json: bool) -> None:
    """Write a small world with a case to start from."""
    from eval_pipeline.specs.library import Library
    from eval_pipeline.specs.world_new import CASE, new_world

    library = Library(settings.worlds_dir)
    folder = library.shown(new_world(library, name, title))
    shown = f"{folder} is there, with the case {name}.{CASE}: change it to yours, then `evals world check {name}`"
    emit({"world": name, "folder": folder, "case": f"{name}.{CASE}"}, as_json, lambda: click.echo(shown))


@command.command("check")
@click.argument("names", nargs=-1)
@json_option
@with_settings
def check(settings: Settings, names: tuple[str, ...], as_json: bool) -> None:
    """Read worlds and their cases whole, and say all that is wrong.

    Errors are what an experiment would refuse, warnings what would surprise later.
    """
    from eval_pipeline.specs.library import Library
    from eval_pipeline.specs.world_check import check_world

    library = Library(settings.worlds_dir)
    found = [check_world(library, name) for name in names or library.world_names()]
    n_errors = sum(finding.n_complaints for checked in found for finding in checked.errors)
    hint = "correct them, each is listed with its place; nothing runs on these worlds before"
    failure = Failure("spec", f"{n_errors} {'error' if n_errors == 1 else 'errors'} in the worlds", hint) if n_errors else None
    emit([asdict(checked) for checked in found], as_json, lambda: _show_checked(found), failure)
    if failure is not None:
        sys.exit(2)


def _show_checked(found: Sequence[Checked]) -> None:
    columns = ["world", "digest", "files", "bytes", "rows", "cases", "criteria"]
    read = [c for c in found if c.digest is not None]
    rows = [[c.world, (c.digest or "")[:12], c.n_files, c.size_bytes, c.n_rows, c.n_cases, c.n_criteria] for c in read]
    if rows:
        table(columns, rows, right=columns[2:])
    for finding in (finding for checked in found for finding in checked.findings):
        click.echo(f"\n{finding.level}: {harmless(finding.message)}" + (f"\n  {harmless(finding.hint)}" if finding.hint else ""))


@command.command("snapshot")
@click.argument("names", nargs=-1)
@json_option
@with_settings
def snapshot(settings: Settings, names: tuple[str, ...], as_json: bool) -> None:
    """Pack worlds into the artifact store and record them."""
    from eval_pipeline.environment.snapshotting import record_snapshot
    from eval_pipeline.specs.library import Library
    from eval_pipeline.store.artifacts import open_store
    from eval_pipeline.store.records import open_records

    library = Library(settings.worlds_dir)
    store = open_store(settings)
    with open_records(settings) as records:
        made = [record_snapshot(library.world(name), store, records.ledger) for name in names or library.world_names()]
    rows = [{"world": m.world, "digest": m.digest, "n_files": m.n_files, "size_bytes": m.size_bytes} for m in made]
    shown = [[r["world"], r["digest"][:12], r["n_files"], r["size_bytes"]] for r in rows]
    emit(rows, as_json, lambda: table(["world", "digest", "n_files", "size_bytes"], shown, right=["n_files", "size_bytes"]))


@command.command("diff")
@click.argument("before")
@click.argument("after")
@json_option
@with_settings
def diff(settings: Settings, before: str, after: str, as_json: bool) -> None:
    """What differs between two worlds.

    Each is a name, a folder, or the digest of a snapshot or its beginning.
    """
    from eval_pipeline.analysis.diffs import diff_lines
    from eval_pipeline.environment.world_sources import WorldSources
    from eval_pipeline.host import reachable_root
    from eval_pipeline.scoring.world_diff import diff_states
    from eval_pipeline.specs.library import Library
    from eval_pipeline.store.artifacts import open_store
    from eval_pipeline.store.records import open_records

    sources = WorldSources(
        Library(settings.worlds_dir),
        open_store(settings),
        lambda: open_records(settings),
        reachable_root(settings.state_dir) / "worlds",
    )
    found = diff_states(sources.state(before), sources.state(after))
    emit(found.model_dump(mode="json"), as_json, lambda: click.echo(harmless("\n".join(diff_lines(found)))))
