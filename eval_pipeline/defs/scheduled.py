"""Experiments with a `schedule:`: each is started when it is due, on its refs as they are then."""

import json
import subprocess
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg

from eval_pipeline.defs.automation import FIRST
from eval_pipeline.defs.resources import EvalsResource
from eval_pipeline.domain.cell import CellState
from eval_pipeline.errors import EvalsError, IsolationUnavailable, SpecError
from eval_pipeline.runner.planning import Plan, commit, plan, to_confirm
from eval_pipeline.sandbox.local import preflight
from eval_pipeline.settings import Settings
from eval_pipeline.specs.library import Library
from eval_pipeline.specs.lock import lock_experiment
from eval_pipeline.specs.schedule import Seen, due
from eval_pipeline.store.ledger import ExperimentRow
from eval_pipeline.store.records import Records
from eval_pipeline.vault.delivery import Secrets

FILE_TAG = "evals/file"
DUE_TAG = "evals/due"
_UNFINISHED = [
    status for status in dg.DagsterRunStatus if status.name in ("QUEUED", "NOT_STARTED", "STARTING", "STARTED", "CANCELING")
]


class DueConfig(dg.Config):
    """file: below worlds_src/experiments. due: the time it is started for."""

    file: str
    due: str


@dg.op(description="Lock an experiment's file on its refs as they are now, and run what has no valid result.")
def start_due(context: dg.OpExecutionContext, config: DueConfig, evals: EvalsResource) -> None:
    settings, library = evals.settings(), evals.library()
    try:
        with evals.records() as records:
            experiment, planned = _commit(settings, records, library.root / "experiments" / config.file, library)
    except EvalsError as error:
        said = f"{config.file} was due at {config.due} and can't be started: {error}"
        raise dg.Failure(f"{said}\n{error.hint}" if error.hint else said, allow_retries=False) from error
    said = f"{experiment.id}: {planned.n_open} of {planned.n_cells} cells to run"
    if planned.resumes is not None:
        said += "; nothing has moved since it was locked" + ("" if planned.n_open else ", and nothing is run again")
    context.log.info(said)
    context.add_output_metadata({"experiment": experiment.id, "cells": planned.n_cells, "to_run": planned.n_open, "said": said})
    if planned.n_done < planned.n_cells:
        _run(context, evals, experiment)


def _commit(settings: Settings, records: Records, path: Path, library: Library) -> tuple[ExperimentRow, Plan]:
    locked = lock_experiment(library, path)
    if locked.run.backend == "local" and (found := preflight.look(unsafe=settings.unsafe_no_isolation)).way is None:
        raise IsolationUnavailable(found.said, hint=found.remedy)
    planned = plan(locked, records, Secrets(settings, records), fresh=True)
    if (error := to_confirm(records, locked, planned)) is not None:
        raise error
    return commit(locked, planned, records, "schedule"), planned


def _run(context: dg.OpExecutionContext, evals: EvalsResource, experiment: ExperimentRow) -> None:
    """In an engine process of its own, as the command line does: it outlives this run. Ended when this run is canceled."""
    command = [sys.executable, "-m", "eval_pipeline.defs.launcher", experiment.id]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        code = process.wait()
    except dg.DagsterExecutionInterruptedError:
        run = context.instance.get_run_by_id(context.run_id)
        if run is not None and run.status is dg.DagsterRunStatus.CANCELING:
            with evals.records() as records:
                records.ledger.request_cancel(experiment.id)
        raise
    if code != 0:
        with evals.records() as records:
            n_done = len(records.views.keys(experiment.id, [CellState.DONE]))
        hint = f"`evals experiment status {experiment.id}` says why"
        raise dg.Failure(
            f"{experiment.n_cells - n_done} of {experiment.n_cells} cells have no valid result; {hint}", allow_retries=False
        )


@dg.job(tags=FIRST, description="Start an experiment that is due by its `schedule:`. A sensor launches it.")
def start_experiment() -> None:
    start_due()


@dg.sensor(job=start_experiment, minimum_interval_seconds=30, default_status=dg.DefaultSensorStatus.RUNNING)
def start_due_experiments(context: dg.SensorEvaluationContext, evals: EvalsResource):
    """Start each experiment whose file has a `schedule:` once for each due time; of those that were missed, or passed while it still ran, the last."""
    now, library = datetime.now(UTC), evals.library()
    before: dict[str, dict[str, str]] = json.loads(context.cursor or "{}")
    kept: dict[str, dict[str, str]] = {}
    requests: list[dg.RunRequest] = []
    busy = _busy(context.instance)
    for path in library.experiment_files():
        seen = Seen(**before[path.name]) if path.name in before else None
        try:
            schedule = library.experiment(path)[1].schedule
        except SpecError as error:  # it is not forgotten while somebody writes at it
            context.log.warning(f"{path.name} can't be read: {error}")
            kept |= {} if seen is None else {path.name: asdict(seen)}
            continue
        if schedule is None:
            continue
        after, at = due(schedule, seen, now)
        if at is not None and path.name in busy:
            after, at = seen or after, None
        kept[path.name] = asdict(after)
        if at is not None:
            requests.append(_request(path.name, at))
    return dg.SensorResult(run_requests=requests, cursor=json.dumps(kept))


def _request(file: str, at: datetime) -> dg.RunRequest:
    """A run key that was used is never used again: a tick that is repeated starts nothing twice."""
    return dg.RunRequest(
        run_key=f"{file}:{at.isoformat()}",
        run_config={"ops": {"start_due": {"config": {"file": file, "due": at.isoformat()}}}},
        tags={FILE_TAG: file, DUE_TAG: at.isoformat()},
    )


def _busy(instance: dg.DagsterInstance) -> set[str]:
    """Files whose last start still runs."""
    runs = instance.get_runs(dg.RunsFilter(job_name="start_experiment", statuses=_UNFINISHED))
    return {run.tags[FILE_TAG] for run in runs if FILE_TAG in run.tags}
