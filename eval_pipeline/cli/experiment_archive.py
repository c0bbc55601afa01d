"""The verbs that put an experiment away and take it back. Its results stay where they are; Dagster shows no partitions of it."""

from __future__ import annotations

import click

from eval_pipeline.cli.output import dry_run_option, emit, json_option, with_settings
from eval_pipeline.settings import Settings


@click.command("archive")
@click.argument("name")
@dry_run_option
@json_option
@with_settings
def archive(settings: Settings, name: str, dry_run: bool, as_json: bool) -> None:
    """Hide it from the list and from Dagster; nothing is deleted. Only when it is done, failed or cancelled."""
    from eval_pipeline.cli.progress import status_of
    from eval_pipeline.errors import SpecError
    from eval_pipeline.store.records import read_records

    with read_records(settings) as records:
        row = records.ledger.experiment(name)
        tally = records.views.tallies(row.id)[row.id]
        status = status_of(row, tally)
        free = status not in ("running", "cancelling", "open")
        if not free or not (not records.leases.engines_of(row.id) if dry_run else records.ledger.archive(row.id)):
            raise SpecError(
                f"{row.id} is {status}: {tally.n_done} of {row.n_cells} cells have a valid result",
                hint=f"wait until it is done, or `evals experiment cancel {row.id}` first",
            )
    verb = "would be" if dry_run else "is"
    text = (
        f"{row.id} {verb} archived; Dagster drops its partitions within minutes. Take it back: evals experiment restore {row.id}"
    )
    emit({"experiment": row.id, "archived": not dry_run, "dry_run": dry_run}, as_json, lambda: click.echo(text))


@click.command("restore")
@click.argument("name")
@dry_run_option
@json_option
@with_settings
def restore(settings: Settings, name: str, dry_run: bool, as_json: bool) -> None:
    """Take it back from the archive; so does running its file or its cells again."""
    from eval_pipeline.store.records import read_records

    with read_records(settings) as records:
        row = records.ledger.experiment(name)
        if not dry_run:
            records.ledger.restore(row.id)
    back = "would be" if dry_run else "is"
    text = f"{row.id} {back} in the list again" if row.archived_at else f"{row.id} is not archived"
    still = dry_run and row.archived_at is not None
    emit({"experiment": row.id, "archived": still, "dry_run": dry_run}, as_json, lambda: click.echo(text))
