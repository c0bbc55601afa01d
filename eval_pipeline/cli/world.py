from __future__ import annotations

import click

from eval_pipeline.cli.output import emit, json_option, table, with_settings
from eval_pipeline.settings import Settings


@click.group()
def command() -> None:
    """Worlds: reproducible matters under worlds_src/worlds/."""


@command.command("list")
@json_option
@with_settings
def list_worlds(settings: Settings, as_json: bool) -> None:
    """All worlds, with the number of their cases."""
    from eval_pipeline.specs.library import Library

    library = Library(settings.worlds_dir)
    rows = [
        {"world": name, "title": library.world(name).spec.title, "n_cases": len(library.cases(name))}
        for name in library.world_names()
    ]
    emit(rows, as_json, lambda: table(["world", "cases", "title"], [[r["world"], r["n_cases"], r["title"]] for r in rows]))


@command.command("check")
@click.argument("names", nargs=-1)
@json_option
@with_settings
def check(settings: Settings, names: tuple[str, ...], as_json: bool) -> None:
    """Read worlds and their cases whole; every mistake is an error with its place."""
    from eval_pipeline.specs.library import Library
    from eval_pipeline.store.snapshots import scan_world

    library = Library(settings.worlds_dir)
    rows: list[dict[str, object]] = []
    for name in names or library.world_names():
        world = library.world(name)
        manifest = scan_world(world.folder, world.spec)
        cases = library.cases(name)
        rows.append(
            {
                "world": name,
                "digest": manifest.digest,
                "n_files": manifest.n_files,
                "size_bytes": manifest.size_bytes,
                "n_cases": len(cases),
                "n_criteria": sum(len(case.spec.rubric.criteria) for case in cases),
            }
        )
    columns = ["world", "digest", "n_files", "size_bytes", "n_cases", "n_criteria"]
    shown = [[str(row[c])[:12] if c == "digest" else row[c] for c in columns] for row in rows]
    emit(rows, as_json, lambda: table(columns, shown, right=columns[2:]))


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
