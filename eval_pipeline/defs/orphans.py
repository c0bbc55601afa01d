"""Runs whose process is gone without a word: Dagster's default launcher would show them as started for ever."""

import time
from collections.abc import Container, Generator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg

from eval_pipeline.host import host_identity
from eval_pipeline.settings import Settings
from eval_pipeline.store.liveness import alive, is_held

PLACE_TAG = "evals/place"
_SETTLE_S = 3.0
_UNSAID_S = 60.0
_ACTIVE = [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]


def _runs_dir(settings: Settings) -> Path:
    return settings.state_dir / "runs"


@contextmanager
def held(settings: Settings, instance: dg.DagsterInstance, run: dg.DagsterRun) -> Generator[None]:
    """Hold the run's lock file; the kernel lets go of it when this process ends, however it ends."""
    with alive(_runs_dir(settings), run.run_id):
        instance.add_run_tags(run.run_id, {PLACE_TAG: host_identity(settings.state_dir).place})
        yield


def end_orphans(settings: Settings, instance: dg.DagsterInstance) -> list[dg.DagsterRun]:
    """End the runs of this place that nobody holds: failed, so that Dagster tries them again, or canceled when that was asked for.

    Returns those that were ended as failed.
    """
    failed: list[dg.DagsterRun] = []
    unheld = _unheld(settings, instance)
    if unheld:
        time.sleep(_SETTLE_S)  # a run lets go of its lock a moment before Dagster records its end
    for run in unheld:
        now = instance.get_run_by_id(run.run_id)
        if now is None or now.status not in _ACTIVE or now.tags.get(PLACE_TAG) != run.tags.get(PLACE_TAG):
            continue
        if now.status is dg.DagsterRunStatus.CANCELING:
            instance.report_run_canceled(now, "its process is gone")
        else:
            instance.report_run_failed(now, "its process is gone without having recorded an end")
            failed.append(now)
    return failed


def _unheld(settings: Settings, instance: dg.DagsterInstance) -> list[dg.DagsterRun]:
    """Runs of this place without a holder, and those that began a while ago and never came as far as to say where."""
    place = host_identity(settings.state_dir).place
    found: list[dg.DagsterRun] = []
    for record in instance.get_run_records(dg.RunsFilter(statuses=_ACTIVE)):
        run = record.dagster_run
        if PLACE_TAG not in run.tags:
            lost = record.start_time is not None and time.time() - record.start_time > _UNSAID_S
        else:
            lost = run.tags[PLACE_TAG] == place and not is_held(_runs_dir(settings) / f"{run.run_id}.lock")
        if lost:
            found.append(run)
    return found


def requests_again(ended: list[dg.DagsterRun], jobs: Container[str]) -> list[dg.RunRequest]:
    """Runs in place of those that Dagster does not try again itself, because a process of its own never launched them."""
    return [
        dg.RunRequest(
            run_key=f"after:{run.run_id}",
            job_name=run.job_name,
            partition_key=run.tags["dagster/partition"],
            run_config={"ops": run.run_config.get("ops", {})},
            tags={"evals/after": run.run_id},
        )
        for run in ended
        if run.remote_job_origin is None and run.job_name in jobs and "dagster/partition" in run.tags
    ]
