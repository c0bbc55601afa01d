"""The cells of a step: an experiment of its own with one arm, on dev or on the holdout, and what is left of the budget reserved for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from eval_pipeline.analysis.frame import flat_row
from eval_pipeline.analysis.load import load_table
from eval_pipeline.analysis.tables import ScoredCell
from eval_pipeline.domain.canonical import canonical_json
from eval_pipeline.domain.cell import CellState
from eval_pipeline.domain.experiment import ArmSpec, Budget
from eval_pipeline.domain.lock import LockedArm, RunLock, ScoreLock
from eval_pipeline.errors import BudgetExceeded, Cancelled, InfrastructureError
from eval_pipeline.research.goal import Goal
from eval_pipeline.research.journal import Half, State
from eval_pipeline.runner.planning import Plan, commit, plan
from eval_pipeline.runner.rates import current_rates
from eval_pipeline.runner.room import no_room, reservations
from eval_pipeline.settings import Settings
from eval_pipeline.specs.lock import Locked
from eval_pipeline.store.ledger import ExperimentRow
from eval_pipeline.store.records import Records
from eval_pipeline.store.researches import Bounds, ResearchRow, Reservation
from eval_pipeline.vault.delivery import Secrets

_ENGINES = 3
_TAG = 6


@dataclass(frozen=True, kw_only=True)
class Lab:
    """run: starts an engine for the experiment and returns when it has ended."""

    settings: Settings
    records: Records
    row: ResearchRow
    goal: Goal
    run: Callable[[ExperimentRow], None]

    def measure(self, state: State, step: int, half: Half) -> dict[str, Any]:
        """What has a valid result is not run again: neither of this step nor of an equal cell of any experiment.

        Raises BudgetExceeded (before anything begins, if it can be foreseen), Cancelled and InfrastructureError (cells are open still).
        """
        arm = LockedArm.model_validate_json(canonical_json(state.steps[step].arm))
        locked = self._locked(arm, step, half)
        planned = plan(locked, self.records, Secrets(self.settings, self.records), fresh=True)
        budget = self._reserve(planned, step, half)
        locked = replace(locked, spec=locked.spec.model_copy(update={"budget": budget}))
        experiment = commit(locked, planned, self.records, self.row.created_by)
        self._settle(experiment)
        cells = self._table(experiment)
        return {"experiment": experiment.id, "n_adopted": len(planned.adopted), **measured(self.goal.metric.columns, cells)}

    def _locked(self, arm: LockedArm, step: int, half: Half) -> Locked:
        """The research's own locks with this arm and this half's cases; no file is read, so nothing can have changed since."""
        row, names = self.row, set(self.row.split[half])
        arm = arm.model_copy(update={"name": arm_name(step)})
        cases = tuple(case for case in row.run.cases if case.name in names)
        worlds = {case.world: row.run.worlds[case.world] for case in cases}
        name = f"{row.name}-{row.id[-_TAG:]}-s{step}-{half}"
        run = RunLock.model_validate(_fields(row.run) | {"name": name, "arms": (arm,), "cases": cases, "worlds": worlds})
        rubrics = {name: case for name, case in row.score.cases.items() if name in names}
        score = ScoreLock.model_validate(_fields(row.score) | {"cases": rubrics})
        arms = (ArmSpec(name=arm.name, ref=arm.ref, config=arm.config),)
        spec = self.goal.experiment().model_copy(update={"name": name, "arms": arms, "baseline": None, "budget": None})
        return Locked(spec, run, score, Path(row.repo))

    def _reserve(self, planned: Plan, step: int, half: Half) -> Budget | None:
        run = planned.run
        done = set(self.records.views.keys(run.experiment_id, [CellState.DONE])) if planned.resumes else set[str]()
        keys = [key for key in run.cell_keys() if str(key) not in done and str(key) not in planned.adopted]
        rates = asyncio.run(current_rates(self.settings, run.backend))
        held = reservations(self.records, run, None, keys, run.experiment_id, rates)
        judges = Decimal(str(planned.judge.cost_usd or 0)) if keys else Decimal(0)
        asked = Reservation(
            experiment=run.experiment_id,
            step=step,
            half=half,
            usd=sum(held, judges),
            cells=len(keys) - self._n_begun(planned, [str(key) for key in keys]),
            other_usd=self.other_usd(),
        )
        left = self.records.researches.reserve(self.row.id, asked, bounds_of(self.goal))
        if left == Bounds(cost_usd=None, cells=None, wall_s=None):
            return None
        cost_usd = None if left.cost_usd is None else float(left.cost_usd)
        return Budget.model_construct(cost_usd=cost_usd, cells=left.cells, wall_s=left.wall_s)  # nothing left is no mistake

    def _n_begun(self, planned: Plan, keys: Sequence[str]) -> int:
        """Of the open cells: they count as begun already."""
        return (
            0
            if planned.resumes is None
            else sum(bool(cell.attempts) for cell in self.records.views.cells(planned.resumes.id, keys))
        )

    def other_usd(self) -> Decimal:
        """What proposers say they have cost."""
        said = [row.data.get("cost_usd") for row in self.records.researches.journal(self.row.id)]
        return sum((Decimal(str(cost)) for cost in said if cost), Decimal(0))

    def _settle(self, experiment: ExperimentRow) -> None:
        """Until every cell has a valid result, with its verdicts, or no attempts left."""
        for _ in range(_ENGINES):
            left, unjudged = self._unsettled(experiment), self._unjudged(experiment)
            if not left and not unjudged:
                return
            self.run(experiment)
            if self.records.ledger.cancel_requested(experiment.id):
                break
        self._complain(experiment)

    def _complain(self, experiment: ExperimentRow) -> None:
        left, unjudged = self._unsettled(experiment), self._unjudged(experiment)
        if not left and not unjudged:
            return
        row = self.records.ledger.experiment(experiment.id)
        if row.cancel_requested_at is not None:
            raise Cancelled(f"{row.id} was cancelled with {len(left)} cells open")
        if (out := no_room(self.records, row, asyncio.run(current_rates(self.settings, row.run.backend)))) is not None:
            raise BudgetExceeded(f"{row.id}: {out.said}", hint="raise the budget in the goal file and run it again: it goes on")
        if not left and row.score.judge is not None and row.budget_usd is not None:
            raise BudgetExceeded(
                f"{row.id}: its judge was not asked about {unjudged} cells; {row.committed_usd:f} of {row.budget_usd:f} USD are spent",
                hint="raise budget.cost_usd in the goal file and run it again: it goes on",
            )
        raise InfrastructureError(
            f"{row.id}: of {row.n_cells} cells {len(left)} are still open and {unjudged} not judged after {_ENGINES} engines",
            hint=f"`evals experiment status {row.id}` says why; the same command goes on with them",
        )

    def _table(self, experiment: ExperimentRow) -> list[ScoredCell]:
        return load_table(self.records, self.records.ledger.experiment(experiment.id))

    def _unjudged(self, experiment: ExperimentRow) -> int:
        return sum(cell.n_not_judged > 0 for cell in self._table(experiment))

    def _unsettled(self, experiment: ExperimentRow) -> list[str]:
        at_rest = {*self.records.views.keys(experiment.id, [CellState.DONE, CellState.FAILED])}
        return [key for key in self.records.views.keys(experiment.id) if key not in at_rest]


def _fields(lock: RunLock | ScoreLock) -> dict[str, Any]:
    return {name: getattr(lock, name) for name in type(lock).model_fields}


def arm_name(step: int) -> str:
    return f"s{step}" if step else "baseline"


def bounds_of(goal: Goal) -> Bounds:
    usd = goal.budget.cost_usd
    return Bounds(cost_usd=None if usd is None else Decimal(str(usd)), cells=goal.budget.cells, wall_s=goal.budget.wall_s)


def measured(columns: Sequence[str], cells: Sequence[ScoredCell]) -> dict[str, Any]:
    """Per column, by case, a value of every planned trial: what could not be had is None, whatever the reason."""
    values: dict[str, dict[str, list[float | None]]] = {column: {} for column in columns}
    for cell in cells:
        row = flat_row(cell)
        for column in columns:
            value = row[column] if cell.valid else None
            values[column].setdefault(cell.key.case_name, []).append(None if value is None else float(value))
    return {
        "columns": values,
        "n_cells": len(cells),
        "n_valid": sum(cell.valid for cell in cells),
        "n_missing": sum(value is None for trials in values[columns[0]].values() for value in trials),
    }
