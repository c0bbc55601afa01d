"""The cells of an experiment, whole or page by page."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import click

from eval_pipeline.cli.output import emit, examples, json_option, table, with_settings
from eval_pipeline.cli.paging import cursor_option, limit_option, page
from eval_pipeline.settings import Settings

if TYPE_CHECKING:
    from eval_pipeline.analysis.tables import ScoredCell


@click.command(
    "cells",
    epilog=examples(
        "evals experiment cells demo --state failed",
        "evals experiment cells demo --arm base --limit 100 --json   # then --cursor: the `next` of the page before",
    ),
)
@click.argument("name")
@click.option("--state", "states", multiple=True, help="Only cells in this state; may be given again.")
@click.option("--arm", help="Only this arm's cells.")
@click.option("--case", "case_name", metavar="WORLD.CASE", help="Only this case's cells.")
@limit_option
@cursor_option
@json_option
@with_settings
def cells(
    settings: Settings,
    name: str,
    states: tuple[str, ...],
    arm: str | None,
    case_name: str | None,
    limit: int | None,
    cursor: str | None,
    as_json: bool,
) -> None:
    """Every cell with its score, cost, latency and attempts.

    In the experiment's own order, which never changes: a page goes on after the cell that --cursor names.
    """
    from eval_pipeline.analysis.load import load_table
    from eval_pipeline.domain.ids import CellKey
    from eval_pipeline.store.records import read_records

    with read_records(settings) as records:
        row = records.ledger.experiment(name)
        wanted = set(records.views.keys(row.id, states or None))

        def fits(key: CellKey) -> bool:
            return str(key) in wanted and arm in (None, key.arm) and case_name in (None, key.case_name)

        every = [str(key) for key in row.run.cell_keys()]
        of = {str(key) for key in row.run.cell_keys() if fits(key)}
        found = page(every, of, limit, cursor, f"`evals experiment cells {row.id}` lists them")
        chosen = load_table(records, row, found.keys if len(found.keys) < len(every) else None)
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
    emit(rows, as_json, lambda: table(columns, people, right=columns[4:9], cut="error"), next_page=found.following)


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


def _first_line(text: str | None) -> str:
    line = text.splitlines()[0] if text else ""
    return line if len(line) <= 160 else line[:159] + "…"
