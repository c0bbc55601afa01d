from __future__ import annotations

from dataclasses import asdict

import click

from eval_pipeline.cli.output import emit, json_option, with_settings
from eval_pipeline.settings import Settings


@click.group()
def command() -> None:
    """The store of bundles, snapshots and dumps."""


@command.command("gc")
@click.option(
    "--grace",
    "hours",
    type=click.FloatRange(min=1),
    default=24.0,
    show_default=True,
    metavar="HOURS",
    help="Unreferenced for so long.",
)
@click.option("--dry-run", is_flag=True, help="Say what could go, and mark and remove nothing.")
@json_option
@with_settings
def gc(settings: Settings, hours: float, dry_run: bool, as_json: bool) -> None:
    """Remove what nothing in the ledger refers to, as a schedule does by the hour.

    It is marked at one call and removed at a later one.

    What an archived experiment refers to is kept, unless EVALS_ARCHIVE_DELETE_DAYS gives it up.
    """
    from eval_pipeline.runner.artifact_gc import collect
    from eval_pipeline.store.records import read_records

    with read_records(settings) as records:
        found = collect(settings, records, grace_s=hours * 3600, dry_run=dry_run)

    def people() -> None:
        verb = "could be removed" if dry_run else "removed"
        click.echo(
            f"{len(found.removed)} of {found.n_stored} artifacts {verb}, {found.removed_bytes / 2**20:.1f} MiB; {found.marked} wait"
        )

    emit({**asdict(found), "dry_run": dry_run}, as_json, people)
