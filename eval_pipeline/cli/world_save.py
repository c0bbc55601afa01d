"""What the app of an open world holds, kept as the world's source."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from eval_pipeline.cli.output import dry_run_option, emit, harmless, json_option, note, with_settings
from eval_pipeline.cli.world_open import backend_option
from eval_pipeline.settings import Settings


@click.command("save")
@click.argument("world")
@click.option("--into", metavar="NAME", help="Write it as a new world, with this one's cases.")
@click.option("--yes", is_flag=True, help="Also where something that git does not have is overwritten.")
@backend_option
@dry_run_option
@json_option
@with_settings
def save_world(settings: Settings, world: str, into: str | None, yes: bool, backend: str, dry_run: bool, as_json: bool) -> None:
    """Write what the app of an open world holds as the world's source.

    What changed is shown first.
    """
    data = asyncio.run(_save(settings, world, backend, into, yes=yes, dry_run=dry_run))
    digest = data["digest"]
    where = data["saved_as"] + ("" if digest is None else f": {digest[:12]}")
    saved = "would be saved as" if dry_run else "saved as"
    emit(data, as_json, lambda: click.echo(f"{saved if data['written'] else 'nothing to save,'} {where}"))


async def _save(settings: Settings, world: str, backend: str, into: str | None, *, yes: bool, dry_run: bool) -> dict[str, Any]:
    from eval_pipeline.analysis.diffs import diff_lines
    from eval_pipeline.environment.snapshotting import record_snapshot
    from eval_pipeline.errors import SpecError
    from eval_pipeline.runner import world_save
    from eval_pipeline.runner.services import open_services
    from eval_pipeline.runner.workbench import opened, started_on
    from eval_pipeline.specs.library import Library, given_name
    from eval_pipeline.store.records import open_records

    library = Library(settings.worlds_dir)
    found = library.world(world)
    with open_records(settings) as records, open_services(settings, records) as services, TemporaryDirectory() as scratch:
        info, sandbox = await opened(services.backends.named(backend)[0], services.installation, world)
        on = started_on(services, library, info)
        dumped = await world_save.dump(sandbox, found, on.manifest, on.commit, on.world_dir, on.snapshot, Path(scratch))
        for line in diff_lines(dumped.diff):
            note(harmless(line))
        world_save.require_comparable(dumped)
        written = into is not None or not (dumped.diff.unchanged and found.spec.made_with == dumped.made_with)
        name = None if into is None else given_name(into)
        unsure = world_save.doubts(found, on.digest, dumped.disk_digest) if written and name is None else []
        if unsure and not yes:
            hint = "commit it first, or take --into NAME; --yes overwrites it all the same"
            raise SpecError(f"{library.shown(found.folder)} is not overwritten: {'; '.join(unsure)}", hint=hint)
        if name is not None:
            world_save.require_free(library, name)
        digest = None
        if not dry_run:
            if name is not None:
                world_save.save_as(library, found, dumped, name)
            elif written:
                world_save.save(found, dumped)
            digest = record_snapshot(library.world(into or world), services.store, services.ledger).digest
    made_with = dumped.made_with.model_dump()
    summary = dumped.diff.summary()
    return {
        "world": world,
        "saved_as": into or world,
        "written": written,
        "digest": digest,
        "changed": summary,
        "made_with": made_with,
        "dry_run": dry_run,
    }
