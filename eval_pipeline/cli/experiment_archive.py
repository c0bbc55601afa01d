"""The verbs that put an experiment away and take it back. Its results stay where they are; Dagster shows no partitions of it."""

from __future__ import annotations

import click

from eval_pipeline.cli.output import emit, json_option, with_settings
from eval_pipeline.settings import Settings


@click.command("archive")
@click.argument("name")
@json_option
@with_settings
def archive(settings: Settings, name: str, as_json: bool) -> None:
    """Hide it from the list and from Dagster; nothing is deleted. Only when it is done, failed or cancelled."""
    from eval_pipeline.cli.progress import status_of
    from eval_pipeline.errors import SpecError
    from eval_pipeline.store.records import read_records

    with read_records(settings) as records:
        row = records.ledger.experiment(name)
        tally = records.views.tallies(row.id)[row.id]
        status = status_of(row, tally)
        if status in ("running", "open") or not records.ledger.archive(row.id):
            raise SpecError(
                f"{row.id} is {status}: {tally.n_done} of {row.n_cells} cells have a valid result",
                hint=f"wait until it is done, or `evals experiment cancel {row.id}` first",
            )
    text = f"{row.id} is archived; Dagster drops its partitions within minutes. Take it back: evals experiment restore {row.id}"
    emit({"experiment": row.id, "archived": True}, as_json, lambda: click.echo(text))


@click.command("restore")
@click.argument("name")
@json_option
@with_settings
def restore(settings: Settings, name: str, as_json: bool) -> None:
    """Take it back from the archive; so does running its file or its cells again."""
    from eval_pipeline.store.records import read_records

    with read_records(settings) as records:
        row = records.ledger.experiment(name)
        records.ledger.restore(row.id)
    text = f"{row.id} is in the list again" if row.archived_at else f"{row.id} is not archived"
    emit({"experiment": row.id, "archived": False}, as_json, lambda: click.echo(text))
