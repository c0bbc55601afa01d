"""Runs whose process is gone without a word: Dagster's default launcher would show them as started for ever."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg

from eval_pipeline.host import host_identity
from eval_pipeline.settings import Settings
from eval_pipeline.store.liveness import alive, is_held

PLACE_TAG = "evals/place"
_SETTLE_S = 3.0
_ACTIVE = [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]


def _runs_dir(settings: Settings) -> Path:
    return settings.state_dir / "runs"


@contextmanager
def held(settings: Settings, instance: dg.DagsterInstance, run: dg.DagsterRun) -> Generator[None]:
    """Hold the run's lock file; the kernel lets go of it when this process ends, however it ends."""
    with alive(_runs_dir(settings), run.run_id):
        instance.add_run_tags(run.run_id, {PLACE_TAG: host_identity(settings.state_dir).place})
        yield


def end_orphans(settings: Settings, instance: dg.DagsterInstance) -> list[str]:
    """End the runs of this place that nobody holds: failed, so that Dagster tries them again, or canceled when that was asked for."""
    ended: list[str] = []
    place = host_identity(settings.state_dir).place
    active = instance.get_runs(dg.RunsFilter(tags={PLACE_TAG: place}, statuses=_ACTIVE))
    unheld = [run for run in active if not is_held(_runs_dir(settings) / f"{run.run_id}.lock")]
    if unheld:
        time.sleep(_SETTLE_S)  # a run lets go of its lock a moment before Dagster records its end
    for run in unheld:
        now = instance.get_run_by_id(run.run_id)
        if now is None or now.status not in _ACTIVE:
            continue
        if now.status is dg.DagsterRunStatus.CANCELING:
            instance.report_run_canceled(now, "its process is gone")
        else:
            instance.report_run_failed(now, "its process is gone without having recorded an end")
        ended.append(run.run_id)
    return ended
