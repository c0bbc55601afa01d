"""What a run does that drives cells, whoever launched it: the CLI, the UI or a backfill."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from itertools import groupby
from typing import Any

import dagster as dg

from eval_pipeline.analysis.tables import ScoredCell
from eval_pipeline.defs.events import CELL_RESULTS, CellEvents, Described
from eval_pipeline.defs.partitions import unchanged_by
from eval_pipeline.domain.cell import CellState
from eval_pipeline.errors import EvalsError
from eval_pipeline.runner.engine import Engine
from eval_pipeline.runner.services import Services
from eval_pipeline.store.cell_views import CellView
from eval_pipeline.store.ledger import ExperimentRow
from eval_pipeline.store.records import Records

_ENDING = {dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED}
_POLL_S = 1.0
CANCELLED = "cancelled"
"""The reason for cells that were left open because somebody asked for the end."""


def cell_events(context: dg.OpExecutionContext, records: Records) -> CellEvents:
    experiment = cache(records.ledger.experiment)

    def described(keys: Sequence[str]) -> Described:
        return [row for name, group in by_experiment(keys) for row in describe(records, experiment(name), group)]

    return CellEvents(context, records.ledger, described)


def by_experiment(keys: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Runs of neighbours: keys in the order of their partitions give each experiment once."""
    return [(name, list(group)) for name, group in groupby(keys, key=lambda key: key.partition("/")[0])]


class Drive:
    """Brings cells to an end on behalf of one run and logs their results. A cell with a valid result is only logged again.

    asked_at: when somebody asked for these cells. A failure after that is an answer, not a reason to run the cell again.
    lift_cancel: a cancel before that no longer holds.
    """

    def __init__(
        self,
        context: dg.OpExecutionContext,
        services: Services,
        events: CellEvents,
        asked_at: datetime,
        *,
        lift_cancel: bool = True,
    ) -> None:
        self._context = context
        self._services = services
        self._events = events
        self._asked_at = asked_at
        self._lift_cancel = lift_cancel
        self._put: set[str] = set()
        self._drained = False
        self.failed: list[str] = []
        """Cells that ended without a valid result since they were asked for."""

    def run(self, keys: Sequence[str]) -> dict[str, str]:
        """The cells that have no valid result now, each with the reason."""
        left: dict[str, str] = {}
        for name, group in by_experiment(keys):
            left |= self._experiment(self._services.ledger.experiment(name), group)
        return left

    def ending(self) -> bool:
        """Somebody ends the run through Dagster."""
        run = self._context.instance.get_run_by_id(self._context.run_id)
        return run is not None and run.status in _ENDING

    def _experiment(self, experiment: ExperimentRow, keys: list[str]) -> dict[str, str]:
        self._log_done(experiment, keys)
        try:
            stopped = self._until_settled(experiment, keys)
        except EvalsError as error:  # one experiment that cannot run is no reason to leave the others of the run alone
            self._context.log.error(f"{experiment.id}: {error}")
            stopped = str(error)
        done = self._log_done(experiment, keys)
        self._context.log.info(f"{experiment.id}: {len(done)} of {len(keys)} cells have a valid result")
        if self.ending() or self._drained:
            raise dg.DagsterExecutionInterruptedError(stopped)
        open_keys = [key for key in keys if key not in done]
        seen = {cell.key: cell for cell in self._services.views.cells(experiment.id, open_keys)}
        failed = {key: cell.attempts[-1].error or "no valid result" for key, cell in seen.items() if self._failed(cell)}
        self.failed += failed
        return {key: failed.get(key, stopped or "not started") for key in open_keys}

    def _log_done(self, experiment: ExperimentRow, keys: Sequence[str]) -> set[str]:
        done = set(self._services.views.keys(experiment.id, [CellState.DONE])).intersection(keys)
        for key in keys:
            if key in done and key not in self._put:
                self._log(key)
        return done

    def _log(self, key: str) -> None:
        self._put.add(key)
        self._events.put(key)

    def _failed(self, cell: CellView) -> bool:
        """Attempts are used up, and the last one ended after the cell was asked for."""
        ended_at = cell.attempts[-1].ended_at if cell.attempts else None
        return cell.state == CellState.FAILED and ended_at is not None and ended_at > self._asked_at

    def _until_settled(self, experiment: ExperimentRow, keys: Sequence[str]) -> str | None:
        """Drive what nobody drives and wait for what somebody else does. None, or why cells were left open."""
        cancelled_at = experiment.cancel_requested_at
        if self._lift_cancel and cancelled_at is not None and cancelled_at < self._asked_at:
            self._services.ledger.clear_cancel(experiment.id)
        tried: set[str] = set()
        while True:
            if self._cancelled(experiment):
                return CANCELLED
            unsettled = self._unsettled(experiment, keys)
            busy = set(self._services.views.in_other_hands(unsettled, handed_over=self._services.settings.persist == "workers"))
            mine = [key for key in unsettled if key not in busy | tried]
            if not mine and not busy:
                return None
            if mine:
                report = asyncio.run(self._engine(experiment).run(mine))
                self._drained = report.drained
                if report.stopped is not None:
                    return report.stopped
            else:
                time.sleep(_POLL_S)
            tried = (tried | set(mine)) - busy

    def _unsettled(self, experiment: ExperimentRow, keys: Sequence[str]) -> list[str]:
        done = set(self._services.views.keys(experiment.id, [CellState.DONE]))
        cells = self._services.views.cells(experiment.id, [key for key in keys if key not in done])
        return [cell.key for cell in cells if not self._failed(cell)]

    def _cancelled(self, experiment: ExperimentRow) -> bool:
        return self.ending() or self._services.ledger.cancel_requested(experiment.id)

    def _engine(self, experiment: ExperimentRow) -> Engine:
        return Engine(
            self._services,
            experiment,
            run_id=self._context.run_id,
            on_done=lambda done: self._log(done.key) if done.outcome is not None and done.outcome.valid else None,
            cancelled=self.ending,
        )


def raise_for(context: dg.OpExecutionContext, left: Mapping[str, str], n_cells: int) -> None:
    """End the step as failed when cells have no valid result, and the run as canceled when that is all that was the matter."""
    if left and all(why == CANCELLED for why in left.values()):
        context.instance.report_run_canceling(context.run, "the experiment was cancelled")
        raise dg.DagsterExecutionInterruptedError(CANCELLED)
    if left:
        raise dg.Failure(
            f"{len(left)} of {n_cells} cells have no valid result",
            metadata={"cells": dg.MetadataValue.json(dict(left))},
            allow_retries=False,
        )


def describe(records: Records, experiment: ExperimentRow, keys: Sequence[str]) -> Described:
    """The materializations of those of `keys` that have a valid result, as the ledger knows it."""
    from eval_pipeline.analysis.load import load_table  # the statistics come with it: no agent waits for them

    return [
        (
            dg.AssetMaterialization(
                asset_key=CELL_RESULTS,
                partition=str(cell.key),
                metadata=_metadata(cell),
                tags={"dagster/data_version": f"attempt-{cell.counted.id}", **unchanged_by("sandbox_secrets", "app_image")},
            ),
            cell.counted.id,
        )
        for cell in load_table(records, experiment, keys)
        if cell.counted is not None
    ]


def _metadata(cell: ScoredCell) -> dict[str, Any]:
    values: dict[str, Any] = {
        "outcome": cell.status,
        "failure": ", ".join(cell.failures) or "none",
        "score": cell.score,
        "passed": cell.passed,
        "not_judged": cell.n_not_judged,
        "judge_failed": cell.n_judge_failed,
        "latency_s": None if cell.latency_s is None else round(cell.latency_s, 3),
        "cost_usd": None if cell.cost_usd is None else float(cell.cost_usd),
        "cost_over_usd": None if cell.cost_over_usd is None else float(cell.cost_over_usd),
        "sandbox_cost_usd": None if cell.sandbox_cost_usd is None else float(cell.sandbox_cost_usd),
        "sandbox_s": None if cell.sandbox_s is None else round(cell.sandbox_s, 3),
        "sandbox_rate": cell.counted.sandbox_rate if cell.counted else None,
        "attempts": len(cell.view.attempts),
        "bundle": cell.counted.bundle if cell.counted else None,
        "error": cell.error,
    }
    return {**_shown(values), **_links(str(cell.key))}


def _shown(values: dict[str, Any]) -> dict[str, Any]:
    """Dagster shows no null: what could not be had is said in words."""
    return {
        name: "not available" if value is None else value
        for name, value in values.items()
        if value is not None or name != "error"
    }


def _links(key: str) -> dict[str, Any]:
    return {
        "show": dg.MetadataValue.md(f"`evals cell show {key}`"),
        "transcript": dg.MetadataValue.md(f"`evals cell logs {key}`"),
        "rerun": dg.MetadataValue.md(f"`evals experiment rerun {key.partition('/')[0]} --cell {key}`"),
    }
