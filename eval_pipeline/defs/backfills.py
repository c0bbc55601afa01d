"""One process for a whole backfill.

Dagster makes a run of every gapless range of a backfill's cells: 100 scattered failures would be 100 processes. dagster.yaml lets
one run of a backfill start at a time; that one, the leader, drives the cells of all of them and closes the runs that still wait.
When the leader dies, the next run of the backfill takes over.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import dagster as dg

# The public API knows nothing of a backfill's content; tests/defs hold these names to the pinned version.
from dagster._core.definitions.assets.graph.asset_graph_subset import AssetGraphSubset
from dagster._core.definitions.partitions.context import partition_loading_context
from dagster._core.events import DagsterEvent, DagsterEventType, JobFailureData, RunFailureReason
from dagster._core.execution.asset_backfill import AssetBackfillData
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    BACKFILL_ID_TAG,
    PARTITION_NAME_TAG,
    RETRY_NUMBER_TAG,
)

from eval_pipeline.defs.cells import CANCELLED
from eval_pipeline.defs.events import CELL_RESULTS

_POLL_S = 1.0
_WAITING = [dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.QUEUED]


@dataclass(frozen=True)
class Backfill:
    """A backfill of cells, seen from one of its runs."""

    instance: dg.DagsterInstance
    run: dg.DagsterRun
    id: str

    @property
    def asked_at(self) -> datetime:
        return datetime.fromtimestamp(self._stored().backfill_timestamp, UTC)

    def cells(self) -> list[str]:
        """All cells of the backfill, in the order of the partitions; those deleted meanwhile are left out."""
        targeted = self._subset(self._data().target_subset)
        return [key for key in self.instance.get_dynamic_partitions("cells") if key in targeted]

    def close_waiting(self, left: Mapping[str, str], log_again: Callable[[str], None], ending: Callable[[], bool]) -> int:
        """End the backfill's other runs as what became of their cells; returns how many. left: cells without a valid result."""
        keys = self.instance.get_dynamic_partitions("cells")
        position = {key: number for number, key in enumerate(keys)}
        closed = 0
        while not ending():
            complete = self._all_runs_made()
            waiting = list(self._waiting())
            for run in waiting:
                cells = _range(run, keys, position) if run.status is dg.DagsterRunStatus.QUEUED else None
                if cells:
                    self._close(run, cells, left, log_again)
                    closed += 1
            if complete and all(run.status is dg.DagsterRunStatus.QUEUED for run in waiting):
                break
            time.sleep(_POLL_S)
        return closed

    def _close(self, run: dg.DagsterRun, keys: Sequence[str], left: Mapping[str, str], log_again: Callable[[str], None]) -> None:
        without = [key for key in keys if key in left]
        if without and all(left[key] == CANCELLED for key in without):
            self.instance.report_run_canceled(run, f"{len(without)} cells were cancelled")
            return
        self.instance.report_engine_event(f"the cells of this run were driven by run {self.run.run_id} of the same backfill", run)
        self._report(run, DagsterEventType.PIPELINE_START)
        if not without:
            self._report(run, DagsterEventType.PIPELINE_SUCCESS)
            return
        for key in keys:
            if key not in left:
                log_again(key)  # an event older than this failing run would leave the cell shown as failed
        # Without a reason Dagster would take it for a crash and try the run again.
        reason = JobFailureData(error=None, failure_reason=RunFailureReason.STEP_FAILURE)
        self.instance.report_run_failed(run, f"{len(without)} of {len(keys)} cells have no valid result: {without[:5]}", reason)

    def _report(self, run: dg.DagsterRun, kind: DagsterEventType) -> None:
        event = DagsterEvent(kind.value, run.job_name, message=f"recorded by run {self.run.run_id}")
        self.instance.report_dagster_event(event, run_id=run.run_id)

    def _waiting(self) -> Iterator[dg.DagsterRun]:
        for run in self.instance.get_runs(dg.RunsFilter(tags={BACKFILL_ID_TAG: self.id}, statuses=_WAITING)):
            if run.run_id != self.run.run_id and run.asset_selection == {CELL_RESULTS}:
                yield run

    def _all_runs_made(self) -> bool:
        if self._stored().status is not BulkActionStatus.REQUESTED:
            return True
        data = self._data()
        return self._subset(data.target_subset) <= self._subset(data.requested_subset)

    def _subset(self, subset: AssetGraphSubset) -> set[str]:
        with partition_loading_context(dynamic_partitions_store=self.instance):
            cells = subset.partitions_subsets_by_asset_key.get(CELL_RESULTS)
            return set(cells.get_partition_keys()) if cells is not None else set()

    def _stored(self) -> PartitionBackfill:
        stored = self.instance.get_backfill(self.id)
        if stored is None:
            raise dg.Failure(f"the backfill {self.id} of this run no longer exists", allow_retries=False)
        return stored

    def _data(self) -> AssetBackfillData:
        data = self._stored().asset_backfill_data
        assert data is not None
        return data


def backfill_of(instance: dg.DagsterInstance, run: dg.DagsterRun) -> Backfill | None:
    """None when the run stands for its own cells alone: outside a backfill, or launched again by hand."""
    by_hand = run.parent_run_id is not None and RETRY_NUMBER_TAG not in run.tags
    backfill_id = run.tags.get(BACKFILL_ID_TAG)
    if backfill_id is None or by_hand:
        return None
    stored = instance.get_backfill(backfill_id)
    return Backfill(instance, run, backfill_id) if stored is not None and stored.is_asset_backfill else None


def _range(run: dg.DagsterRun, keys: Sequence[str], position: Mapping[str, int]) -> Sequence[str]:
    """The cells a run was made for; none when their partitions were deleted meanwhile, which is for Dagster to say."""
    if PARTITION_NAME_TAG in run.tags:
        return [run.tags[PARTITION_NAME_TAG]]
    first, last = position.get(run.tags[ASSET_PARTITION_RANGE_START_TAG]), position.get(run.tags[ASSET_PARTITION_RANGE_END_TAG])
    return [] if first is None or last is None else keys[first : last + 1]
