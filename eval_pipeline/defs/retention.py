import dagster as dg

from eval_pipeline.defs.resources import EvalsResource
from eval_pipeline.runner.retention import archive_old, partitions_warning


@dg.sensor(minimum_interval_seconds=3600, default_status=dg.DefaultSensorStatus.RUNNING)
def archive_experiments(context: dg.SensorEvaluationContext, evals: EvalsResource):
    """Put old experiments away, and the oldest of too many (EVALS_ARCHIVE_*); never open ones. `evals experiment restore` takes one back."""
    with evals.records() as records:
        archived = archive_old(records, evals.settings().retention)
        warning = partitions_warning(records.views.n_partitions())
    if archived:
        context.log.info(f"archived {len(archived)} experiments: {', '.join(archived)}")
    if warning is not None:
        context.log.warning(warning)
    return dg.SkipReason(f"{len(archived)} archived")
