"""The Dagster runs of one experiment, executed in this process on the real instance: world_snapshots, cell_results, then scored_table
and leaderboard.
"""

import asyncio
import logging
from typing import Any

import dagster as dg

from eval_pipeline.definitions import defs
from eval_pipeline.defs.connections import keeping_connections
from eval_pipeline.defs.partitions import CELLS, EXPERIMENTS, WORLDS, add_partitions
from eval_pipeline.errors import EvalsError
from eval_pipeline.runner.notify import send, tell_state
from eval_pipeline.runner.reaper import reap
from eval_pipeline.settings import Settings
from eval_pipeline.store.artifacts import open_store
from eval_pipeline.store.ledger import ExperimentRow
from eval_pipeline.store.liveness import end_dead_engines
from eval_pipeline.store.records import Records
from eval_pipeline.store.strays import GRACE_S

log = logging.getLogger("eval_pipeline.launcher")


def run_experiment(
    settings: Settings, records: Records, experiment: ExperimentRow, keys: list[str], *, only_score: bool = False
) -> int:
    """keys: only these cells; empty means all that are not done. only_score: no cell is run, whatever its state."""
    open_store(settings).claim(records.ledger.installation_id())
    digests = experiment.run.worlds
    missing = sorted(name for name, digest in digests.items() if digest not in records.ledger.snapshots(digests.values()))
    wanted = keys or [
        *records.views.keys(experiment.id, ["open", "setup", "running", "persisting", "failed"]),
        *records.views.unlogged(experiment.id),  # what was adopted has a result that Dagster does not know
    ]
    with dg.DagsterInstance.get() as instance, keeping_connections(instance):
        _register(instance, experiment)
        for world in [] if only_score else missing:
            _execute(instance, "snapshot_worlds", experiment, world)
        if wanted and not only_score:
            ops = {"drive_cells": {"config": {"keys": wanted, "lift_cancel": False}}}
            _execute(instance, "run_cells", experiment, experiment.id, ops)
        # what a crash left; while another engine works, only what nobody has owned for a while
        end_dead_engines(records.leases, settings)
        grace_s = GRACE_S if records.leases.living() else 0.0
        _reap(settings, records, experiment.run.backend, grace_s)
        tags = {"evals/judged": "yes"} if only_score else {}
        scored = _execute(instance, "score_experiment", experiment, experiment.id, tags=tags)
    tell_state(settings, records)
    send(settings, records)
    n_done = records.views.tallies(experiment.id)[experiment.id].n_done
    return 0 if scored and n_done == experiment.n_cells else 1


def _reap(settings: Settings, records: Records, backend: str, grace_s: float) -> None:
    try:
        asyncio.run(reap(settings, records, backend, grace_s=grace_s))
    except EvalsError as error:  # what is left stays counted as leaked; the results don't wait for it
        log.warning("the sandboxes on %s could not be looked through: %s", backend, error)


def _register(instance: dg.DagsterInstance, experiment: ExperimentRow) -> None:
    add_partitions(instance, WORLDS, sorted(experiment.run.worlds))
    if experiment.id not in instance.get_dynamic_partitions("experiments"):
        add_partitions(instance, CELLS, [str(key) for key in experiment.run.cell_keys()])
        add_partitions(instance, EXPERIMENTS, [experiment.id])


def _execute(
    instance: dg.DagsterInstance,
    job: str,
    experiment: ExperimentRow,
    partition_key: str,
    ops: dict[str, Any] | None = None,
    tags: dict[str, str] | None = None,
) -> bool:
    tags = {"evals/experiment": experiment.id, "evals/name": experiment.name, **(tags or {})}
    config = {"ops": ops or {}, "loggers": {"console": {"config": {"log_level": "INFO"}}}}
    result = defs.resolve_job_def(job).execute_in_process(
        instance=instance, tags=tags, raise_on_error=False, partition_key=partition_key, run_config=config
    )
    if not result.success:
        failures = [event for event in result.all_events if event.is_failure]
        log.error("%s failed: %s", job, failures[0].message if failures else "see the run in the Dagster UI")
    return result.success
