import json

import dagster as dg

from eval_pipeline.defs.assets import leaderboard, scored_table, world_snapshots
from eval_pipeline.defs.cells import describe
from eval_pipeline.defs.events import BATCH
from eval_pipeline.defs.orphans import end_orphans, requests_again
from eval_pipeline.defs.partitions import CELLS, EXPERIMENTS, WORLDS
from eval_pipeline.defs.resources import EvalsResource
from eval_pipeline.defs.runs import run_cells
from eval_pipeline.store.records import Records

FIRST = {"dagster/priority": "10"}
"""Tags of the runs that a clock or a sensor starts: they go before the cells in the queue. With no pool of the cells' (pools.py) on
their assets, nothing that runs holds them up either."""

snapshot_job = dg.define_asset_job("snapshot_worlds", selection=[world_snapshots], tags=FIRST, description="Pack worlds.")
results_job = dg.define_asset_job(
    "score_experiment", selection=[scored_table, leaderboard], tags=FIRST, description="Score a finished experiment."
)

DELETED_A_TICK = 500  # Dagster takes 30 ms for each
_AGAIN = [snapshot_job, run_cells, results_job]


@dg.sensor(job=results_job, minimum_interval_seconds=15, default_status=dg.DefaultSensorStatus.RUNNING)
def score_finished_experiments(context: dg.SensorEvaluationContext, evals: EvalsResource):
    """Score an experiment once for each time its cells have come to rest."""
    seen: dict[str, str] = json.loads(context.cursor or "{}")
    requests: list[dg.RunRequest] = []
    with evals.records() as records:
        tallies = records.views.tallies()
    known = set(context.instance.get_dynamic_partitions("experiments"))
    for name, tally in tallies.items():
        rested_at = tally.finished_at.isoformat() if tally.finished_at and tally.n_done else None
        if name in known and not tally.working and rested_at is not None and seen.get(name) != rested_at:
            seen[name] = rested_at
            requests.append(dg.RunRequest(run_key=f"{name}:{rested_at}", partition_key=name))
    return dg.SensorResult(run_requests=requests, cursor=json.dumps(seen))


@dg.sensor(jobs=_AGAIN, minimum_interval_seconds=30, default_status=dg.DefaultSensorStatus.RUNNING)
def repair_records(context: dg.SensorEvaluationContext, evals: EvalsResource):
    """Bring Dagster's records up to the ledger after a crash: dead runs, worlds, partitions, those of archived experiments, and results without an event."""
    ended = end_orphans(evals.settings(), context.instance)
    if ended:
        context.log.warning(f"ended {len(ended)} runs whose process is gone: {', '.join(run.run_id for run in ended)}")
    dynamic: list[dg.AddDynamicPartitionsRequest | dg.DeleteDynamicPartitionsRequest] = []
    worlds = set(context.instance.get_dynamic_partitions("worlds"))
    missing = [name for name in evals.library().world_names() if name not in worlds]
    if missing:
        dynamic.append(WORLDS.build_add_request(missing))
    with evals.records() as records:
        known = set(context.instance.get_dynamic_partitions("experiments"))
        lost = [name for name in records.views.experiment_ids() if name not in known]
        for name in lost:
            dynamic.append(CELLS.build_add_request(records.views.keys(name)))
        if lost:
            dynamic.append(EXPERIMENTS.build_add_request(lost))
        dynamic += _put_away(context.instance, set(records.views.experiment_ids(archived=True)))
        for name in records.views.unlogged_without_owner():
            _log_lost_results(context.instance, records, name)
    again = requests_again(ended, {job.name for job in _AGAIN})
    if dynamic or again:
        return dg.SensorResult(dynamic_partitions_requests=dynamic, run_requests=again)
    return dg.SkipReason("nothing to repair")


def _put_away(instance: dg.DagsterInstance, archived: set[str]) -> list[dg.DeleteDynamicPartitionsRequest]:
    """What is left of the partitions of archived experiments, some at a time. The experiment's own goes first: one that is restored
    meanwhile lacks it, so all that it had come back."""
    requests: list[dg.DeleteDynamicPartitionsRequest] = []
    names = [name for name in instance.get_dynamic_partitions("experiments") if name in archived]
    keys = [key for key in instance.get_dynamic_partitions("cells") if key.partition("/")[0] in archived] if archived else []
    if names:
        requests.append(EXPERIMENTS.build_delete_request(names))
    if keys:
        requests.append(CELLS.build_delete_request(keys[:DELETED_A_TICK]))
    return requests


def _log_lost_results(instance: dg.DagsterInstance, records: Records, name: str) -> None:
    """In small steps: a tick that is cut off repeats at most one of them."""
    experiment, lost = records.ledger.experiment(name), records.views.unlogged(name)
    for start in range(0, len(lost), BATCH):
        described = describe(records, experiment, lost[start : start + BATCH])
        for materialization, _ in described:
            instance.report_runless_asset_event(materialization)
        records.ledger.mark_logged({str(materialization.partition): attempt for materialization, attempt in described})
