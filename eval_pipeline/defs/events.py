"""Dagster's record of cells, written by one thread in batches: 1 ms an event instead of 20."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence

import dagster as dg
from dagster._core.events import (  # the public API has no batched write; tests/defs hold these names to the pinned version
    AssetMaterializationPlannedData,
    DagsterEvent,
    DagsterEventType,
    StepMaterializationData,
)
from dagster._core.events.log import EventLogEntry

from eval_pipeline.store.ledger import Ledger

log = logging.getLogger(__name__)

CELL_RESULTS = dg.AssetKey("cell_results")
BATCH, FLUSH_S = 100, 3.0
_PATIENCE_S = 120.0


Described = list[tuple[dg.AssetMaterialization, int]]
"""Materializations, each with the id of the attempt it tells of."""


class CellEvents:
    """Materializations written on behalf of one run. `put` never blocks; leaving the context stores and marks what is left.

    describe: from cell keys to their materializations, read from the ledger; keys without a valid result are left out.
    """

    def __init__(self, context: dg.OpExecutionContext, ledger: Ledger, describe: Callable[[Sequence[str]], Described]) -> None:
        self._instance = context.instance
        self._run = context.run
        self._step = context.op.name
        self._ledger = ledger
        self._describe = describe
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._error: Exception | None = None
        self._stored, self._storing_s = 0, 0.0
        self._thread = threading.Thread(target=self._write, name="cell-events", daemon=True)

    def __enter__(self) -> CellEvents:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.put(None)
        self._thread.join()
        log.info("%d events stored in %.2f s", self._stored, self._storing_s)
        if self._error is not None:
            raise self._error

    def put(self, key: str) -> None:
        self._queue.put(key)

    def failed(self, keys: Iterable[str]) -> None:
        """A planned event without a materialization, in a run that fails, is what the UI shows as failed."""
        for key in keys:
            planned = AssetMaterializationPlannedData(CELL_RESULTS, partition=key, partitions_subset=None)
            event = DagsterEvent.build_asset_materialization_planned_event(self._run.job_name, self._step, planned)
            self._instance.report_dagster_event(event, run_id=self._run.run_id)

    def _write(self) -> None:
        try:
            ended = False
            while not ended:
                batch, ended = self._next_batch()
                if batch:
                    self._store(batch)
        except Exception as error:  # noqa: BLE001 - handed to the run's own thread by close()
            self._error = error

    def _next_batch(self) -> tuple[list[str], bool]:
        batch: list[str] = []
        flush_at = time.monotonic() + FLUSH_S
        while len(batch) < BATCH:
            try:
                key = self._queue.get(timeout=max(0.0, flush_at - time.monotonic()))
            except queue.Empty:
                break
            if key is None:
                return batch, True
            batch.append(key)
        return batch, False

    def _store(self, keys: list[str]) -> None:
        started = time.monotonic()
        described = self._describe(keys)
        entries = [self._entry(materialization) for materialization, _ in described]
        deadline = time.monotonic() + _PATIENCE_S
        while entries:
            try:
                self._instance.event_log_storage.store_event_batch(entries)
                break
            except Exception as error:
                if time.monotonic() > deadline:
                    raise
                log.warning("events could not be stored, trying again: %s", error)
                time.sleep(1.0)
        self._ledger.mark_logged({str(m.partition): attempt_id for m, attempt_id in described})
        self._stored += len(described)
        self._storing_s += time.monotonic() - started

    def _entry(self, materialization: dg.AssetMaterialization) -> EventLogEntry:
        event = DagsterEvent(
            event_type_value=DagsterEventType.ASSET_MATERIALIZATION.value,
            job_name=self._run.job_name,
            step_key=self._step,
            event_specific_data=StepMaterializationData(materialization),
        )
        return EventLogEntry(
            error_info=None,
            level=logging.INFO,
            user_message="",
            run_id=self._run.run_id,
            timestamp=time.time(),
            step_key=self._step,
            job_name=self._run.job_name,
            dagster_event=event,
        )
