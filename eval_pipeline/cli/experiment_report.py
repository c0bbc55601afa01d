"""What `run` and `rerun` say at the end: the counts, why cells have no valid result, and what to do."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from eval_pipeline.cli.output import Failure, counted, emit, note, shown
from eval_pipeline.domain.cell import CellState
from eval_pipeline.settings import Settings

if TYPE_CHECKING:
    from eval_pipeline.cli.launch import Launched
    from eval_pipeline.store.ledger import ExperimentRow
    from eval_pipeline.store.records import Records


@dataclass(frozen=True, kw_only=True)
class Asked:
    """file: None for a rerun. moved: that the app has changed since it was locked. keys: the cells that were asked for; empty: all."""

    resumed: bool
    file: str | None = None
    wait: bool = False
    moved: str | None = None
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Watched:
    """ended: whether the engine has ended; it goes on otherwise."""

    ended: bool
    launched: Launched


def report(
    settings: Settings, records: Records, experiment: ExperimentRow, as_json: bool, asked: Asked, watched: Watched | None = None
) -> int:
    """Print the counts. The exit code is 0 unless somebody waited: then 1 when cells have no valid result, 3 for want of budget.

    Only the cells that were asked for decide the exit code.
    """
    from eval_pipeline.analysis.load_tables import load_tables
    from eval_pipeline.analysis.standing import alarms, expected
    from eval_pipeline.analysis.tables import count_failures
    from eval_pipeline.cli.progress import failures_line, loud, outcomes_line

    row = records.ledger.experiment(experiment.id)
    tally = records.views.tallies(row.id)[row.id]
    n_failed = tally.states.get(CellState.FAILED, 0)
    data = {
        "experiment": row.id,
        "n_cells": row.n_cells,
        "n_ok": tally.n_done,
        "n_failed": n_failed,
        "n_open": row.n_cells - tally.n_done - n_failed,
        "resumed": asked.resumed,
        "moved": asked.moved,
        "failures": count_failures(load_tables(records, row).decided),
    }
    n_wanted = len(asked.keys) or row.n_cells
    done = records.views.keys(row.id, [CellState.DONE])
    n_missing = n_wanted - (len(set(done).intersection(asked.keys)) if asked.keys else len(done))
    missing = f"{n_missing} of {counted(n_wanted, 'cell has', 'cells have')} no valid result"
    failure = why_missing(settings, records, row, missing, watched, asked) if watched and n_missing else None

    def people() -> None:
        line = expected(tally.n_done, row.n_cells, tally.states)
        click.echo(f"{row.id}: {line}; outcomes: {outcomes_line(tally.outcomes)}; failed: {failures_line(data['failures'])}")

    if watched:
        for alarm in alarms(records.database, row.id):
            loud(str(alarm))
    if asked.moved and failure is None:
        note(asked.moved)
    if watched and watched.ended and tally.n_done:
        note(f"all of it as pages for a browser: evals report {row.id}")
    emit(data, as_json, people, None if failure is None else _with_moved(failure, asked.moved, first=not tally.n_done))
    return 0 if failure is None else 3 if failure.code == "budget_exceeded" else 1


def _with_moved(failure: Failure, moved: str | None, *, first: bool) -> Failure:
    """first: nothing that was locked would be lost."""
    if moved is None:
        return failure
    hints = [moved, failure.hint] if first else [failure.hint, moved]
    return Failure(failure.code, failure.message, "\n  ".join(filter(None, hints)))


def why_missing(
    settings: Settings, records: Records, row: ExperimentRow, missing: str, watched: Watched, asked: Asked
) -> Failure:
    """Why cells have no valid result, and what to do. missing: how many, in words. Its code is budget_exceeded for want of budget."""
    from eval_pipeline.analysis.standing import died_at
    from eval_pipeline.cli.launch import death_of
    from eval_pipeline.runner.rates import current_rates
    from eval_pipeline.runner.room import no_room
    from eval_pipeline.store.standing import open_cells

    if not watched.ended:
        return Failure("unfinished", f"{missing} yet; the run goes on", f"evals experiment status {row.id} --watch")
    log = watched.launched.log
    died = died_at(open_cells(records.database, row.id)) or death_of(watched.launched)
    if died is not None:
        said = f"{missing}: the engine died at {shown(died)}. What is done stays"
        return Failure("engine_died", said, f"go on with: evals experiment rerun {row.id} --failed; its log: {log}")
    again = run_command(settings, row, asked.file)
    if row.cancel_requested_at is not None:
        return Failure("cancelled", f"{missing}: it was cancelled", f"to go on: {again}")
    if (out := no_room(records, row, asyncio.run(current_rates(settings, row.run.backend)))) is not None:
        where = f" (in {asked.file or _file_of(settings, row) or 'its file'})" if out.in_file else ""
        return Failure("budget_exceeded", f"{missing}: {out.said}", f"{out.remedy}{where}, and it goes on with: {again}")
    if not records.views.keys(row.id, [CellState.FAILED]):
        return Failure("cells_open", f"{missing}: the engine ended before they were run", f"go on with: {again}; its log: {log}")
    return Failure("cells_failed", missing, f"evals experiment status {row.id} says why; log: {log}")


def run_command(settings: Settings, row: ExperimentRow, file: str | None = None) -> str:
    """How it goes on, cells that never ran too."""
    return f"evals experiment run {file or _file_of(settings, row) or 'FILE'}"


def _file_of(settings: Settings, row: ExperimentRow) -> str | None:
    """Where it stands, if it is one of those that have their place; None for one from elsewhere."""
    path = settings.worlds_dir / "experiments" / f"{row.name}.yaml"
    return row.name if path.is_file() else None
