from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import click

from eval_pipeline.cli.experiment_archive import archive, restore
from eval_pipeline.cli.experiment_plan import plan_command
from eval_pipeline.cli.experiment_run import rerun, run
from eval_pipeline.cli.experiment_status import status
from eval_pipeline.cli.output import emit, json_option, table, with_settings
from eval_pipeline.settings import Settings

if TYPE_CHECKING:
    from eval_pipeline.analysis.tables import ScoredCell


@click.group()
def command() -> None:
    """Experiments: cases x arms x trials, locked before anything runs."""


command.add_command(plan_command)
command.add_command(run)
command.add_command(rerun)
command.add_command(archive)
command.add_command(restore)
command.add_command(status)


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


@command.command("cells")
@click.argument("name")
@click.option("--state", "states", multiple=True, help="Only cells in this state; may be given again.")
@click.option("--arm", help="Only this arm's cells.")
@json_option
@with_settings
def cells(settings: Settings, name: str, states: tuple[str, ...], arm: str | None, as_json: bool) -> None:
    """Every cell with its score, cost, latency and attempts."""
    from eval_pipeline.analysis.load import load_table
    from eval_pipeline.store.records import read_records

    with read_records(settings) as records:
        found = load_table(records, records.ledger.experiment(name))
    chosen = [cell for cell in found if (not states or cell.state in states) and (arm is None or cell.key.arm == arm)]
    rows = [_cell_row(cell) for cell in chosen]
    columns = ["cell", "state", "outcome", "failure", "score", "cost_usd", "sandbox_usd", "latency_s", "attempts", "error"]
    people = [
        [
            str(c.key),
            c.state,
            c.view.outcome,
            c.failure,
            c.score,
            _money(c.cost_usd),
            _money(c.sandbox_cost_usd),
            c.latency_s,
            len(c.view.attempts) if c.view.adopted_from is None else "adopted",
            _first_line(c.error),
        ]
        for c in chosen
    ]
    emit(rows, as_json, lambda: table(columns, people, right=columns[4:9], cut="error"))


def _money(usd: Decimal | None) -> str | None:
    return None if usd is None else f"{usd:.5f}"


def _cell_row(cell: ScoredCell) -> dict[str, Any]:
    return {
        "cell": str(cell.key),
        "world": cell.key.world,
        "case": cell.key.case_name,
        "arm": cell.key.arm,
        "trial": cell.key.trial,
        "state": cell.state,
        "outcome": cell.view.outcome,
        "failure": cell.failure,
        "error_class": cell.error_class,
        "score": cell.score,
        "passed": cell.passed,
        "n_not_judged": cell.n_not_judged,
        "cost_usd": cell.cost_usd,
        "cost_over_usd": cell.cost_over_usd,
        "sandbox_cost_usd": cell.sandbox_cost_usd,
        "sandbox_s": cell.sandbox_s,
        "sandbox_spent_usd": cell.sandbox_spent_usd,
        "sandbox_spent_s": cell.sandbox_spent_s,
        "latency_s": cell.latency_s,
        "adopted_from": cell.view.adopted_from,
        "attempts": [
            {
                "attempt": attempt.number,
                "sandbox": attempt.sandbox,
                "outcome": attempt.outcome,
                "started_at": attempt.created_at,
                "ended_at": attempt.ended_at,
                "error": attempt.error,
                "sandbox_s": attempt.sandbox_s,
                "sandbox_cost_usd": attempt.sandbox_cost_usd,
            }
            for attempt in cell.view.attempts
        ],
    }


@command.command("cancel")
@click.argument("name")
@json_option
@with_settings
def cancel(settings: Settings, name: str, as_json: bool) -> None:
    """End its sandboxes and open its cells again; what is done stays."""
    from eval_pipeline.store.records import read_records

    with read_records(settings) as records:
        row = records.ledger.experiment(name)
        if records.views.tallies(row.id)[row.id].n_done == row.n_cells:
            emit({"experiment": row.id, "working": False}, as_json, lambda: click.echo(f"{row.id} is done; nothing to cancel"))
            return
        records.ledger.request_cancel(row.id)
        working = bool(records.leases.engines_of(row.id))
    data = {"experiment": row.id, "working": working}
    text = "its engine is ending the sandboxes" if working else "nobody was working on it"
    emit(data, as_json, lambda: click.echo(f"{row.id} is cancelled; {text}. Run its file again to go on."))


def _first_line(text: str | None) -> str:
    line = text.splitlines()[0] if text else ""
    return line if len(line) <= 160 else line[:159] + "…"
