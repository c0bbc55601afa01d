"""What `run`, `rerun`, `cancel` and `gate` would do: the same steps as far as nothing is changed by them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from eval_pipeline.cli.output import counted, emit, harmless, note
from eval_pipeline.settings import Settings

if TYPE_CHECKING:
    from eval_pipeline.specs.lock import Locked
    from eval_pipeline.store.ledger import ExperimentRow
    from eval_pipeline.store.records import Records

_SHOWN = 20


def dry_plan(
    settings: Settings, records: Records, locked: Locked, *, file: str | None = None, fresh: bool, reuse: bool = True, yes: bool
) -> tuple[dict[str, Any], list[str]]:
    """As data and, for people, in lines: what the plan says, which cells would run, and whether somebody would be asked first."""
    from eval_pipeline.cli.experiment_plan import plan_data, plan_lines, rated_plan
    from eval_pipeline.runner.planning import moved_text, to_confirm

    planned, time = rated_plan(settings, records, locked, fresh=fresh, reuse=reuse)
    asks = None if yes else to_confirm(records, locked, planned)
    judges_again = planned.resumes is not None and planned.resumes.score.digest != locked.score.digest
    data = plan_data(locked, planned, time) | {
        "judges_again": judges_again,
        "starts_engine": planned.n_done < planned.n_cells or judges_again,
        "must_confirm": None if asks is None else str(asks),
        "dry_run": True,
    }
    lines = plan_lines(locked, planned, time, None if file is None else moved_text(planned, file))
    lines += cell_lines("would run", planned.open_cells)
    if judges_again:
        lines.append("its cells would be judged again: the rubric, the policy or a price has changed")
    if asks is not None:
        lines.append(f"it would be refused without --yes: {asks}")
    return data, lines


def dry_rerun(
    settings: Settings, records: Records, experiment: ExperimentRow, cells: Sequence[str], discarded: Sequence[str], as_json: bool
) -> int:
    """cells: that would run; those of them that have a valid result are discarded."""
    from eval_pipeline.domain.ids import CellKey
    from eval_pipeline.runner.planning import costs
    from eval_pipeline.runner.rates import current_rates

    run = experiment.run
    rates = asyncio.run(current_rates(settings, run.backend))
    cost = costs(run, [CellKey.parse(key) for key in cells], records, rates)
    takers = records.reuse.takers(sorted(discarded))
    data = {
        "experiment": experiment.id,
        "open_cells": list(cells),
        "discards": list(discarded),
        "counted_elsewhere": takers,
        **asdict(cost),
        "restores": experiment.archived_at is not None,
        "starts_engine": bool(cells),
        "dry_run": True,
    }
    most = "an unknown sum: cases have no limits.cost_usd" if cost.max_cost_usd is None else f"{cost.max_cost_usd:.4f} USD"
    lines = [f"{experiment.id}: {counted(len(cells), 'cell', 'cells')} would run, models cost at most {most}"]
    lines += cell_lines("would run", cells) + cell_lines("would lose its valid result", discarded)
    show_dry(data, lines, as_json)
    return 0


def show_dry(data: dict[str, Any], lines: Sequence[str], as_json: bool) -> None:
    emit(data, as_json, lambda: click.echo(harmless("\n".join(lines))))
    note("dry run: nothing was changed")


def cell_lines(what: str, keys: Sequence[str]) -> list[str]:
    more = [f"  and {len(keys) - _SHOWN} more (--json lists all)"] if len(keys) > _SHOWN else []
    return [*(f"  {what}: {key}" for key in keys[:_SHOWN]), *more]


def dry_cancel(records: Records, experiment: ExperimentRow, as_json: bool) -> None:
    """What would be ended, and which cells would be open again."""
    done = records.views.tallies(experiment.id)[experiment.id].n_done == experiment.n_cells
    open_attempts = {
        attempt.sandbox: cell.key
        for cell in ([] if done else records.views.cells(experiment.id))
        for attempt in cell.attempts
        if attempt.ended_at is None
    }
    working = not done and bool(records.leases.engines_of(experiment.id))
    data = {"experiment": experiment.id, "working": working, "ends": open_attempts, "dry_run": True}
    lines = [f"{experiment.id} would be cancelled" if not done else f"{experiment.id} is done; nothing to cancel"]
    lines += cell_lines("would be ended and opened again", [f"{key} ({sandbox})" for sandbox, key in open_attempts.items()])
    show_dry(data, lines, as_json)
