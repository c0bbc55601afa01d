from __future__ import annotations

import click

from eval_pipeline.cli.experiment_archive import archive, restore
from eval_pipeline.cli.experiment_cells import cells
from eval_pipeline.cli.experiment_plan import plan_command
from eval_pipeline.cli.experiment_run import rerun, run
from eval_pipeline.cli.experiment_status import status
from eval_pipeline.cli.output import dry_run_option, emit, json_option, table, with_settings
from eval_pipeline.settings import Settings


@click.group()
def command() -> None:
    """Experiments: cases x arms x trials, locked before anything runs."""


command.add_command(plan_command)
command.add_command(run)
command.add_command(rerun)
command.add_command(archive)
command.add_command(restore)
command.add_command(status)
command.add_command(cells)


@command.command("list")
@click.option("--all", "everything", is_flag=True, help="The archived ones too.")
@json_option
@with_settings
def list_experiments(settings: Settings, everything: bool, as_json: bool) -> None:
    """All experiments, newest first; archived ones are left out."""
    from eval_pipeline.cli.progress import status_of
    from eval_pipeline.store.records import read_records

    with read_records(settings) as records:
        experiments = records.ledger.experiments(archived=everything)
        tallies = records.views.tallies()  # after: one that is made in between is in both
        rows = [
            {
                "experiment": row.id,
                "name": row.name,
                "status": status_of(row, tallies[row.id]),
                "n_cells": row.n_cells,
                "n_done": tallies[row.id].n_done,
                "created_at": row.created_at,
                "created_by": row.created_by,
                "archived_at": row.archived_at,
            }
            for row in experiments
        ]
    columns = ["experiment", "status", "n_done", "n_cells", "created_at", "created_by", *(["archived_at"] if everything else [])]
    emit(rows, as_json, lambda: table(columns, [[row[c] for c in columns] for row in rows], right=["n_done", "n_cells"]))


@command.command("cancel")
@click.argument("name")
@dry_run_option
@json_option
@with_settings
def cancel(settings: Settings, name: str, dry_run: bool, as_json: bool) -> None:
    """End its sandboxes and open its cells again; what is done stays."""
    from eval_pipeline.cli.experiment_dry import dry_cancel
    from eval_pipeline.store.records import read_records

    with read_records(settings) as records:
        row = records.ledger.experiment(name)
        if dry_run:
            dry_cancel(records, row, as_json)
            return
        if records.views.tallies(row.id)[row.id].n_done == row.n_cells:
            emit({"experiment": row.id, "working": False}, as_json, lambda: click.echo(f"{row.id} is done; nothing to cancel"))
            return
        records.ledger.request_cancel(row.id)
        working = bool(records.leases.engines_of(row.id))
    data = {"experiment": row.id, "working": working}
    text = "its engine is ending the sandboxes" if working else "nobody was working on it"
    emit(data, as_json, lambda: click.echo(f"{row.id} is cancelled; {text}. Run its file again to go on."))
