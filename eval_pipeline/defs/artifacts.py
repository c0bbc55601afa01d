from typing import Any

import dagster as dg

from eval_pipeline.defs.automation import FIRST
from eval_pipeline.defs.resources import EvalsResource
from eval_pipeline.defs.unfinished import unfinished_run
from eval_pipeline.runner.artifact_gc import collect


@dg.op(description="Remove artifacts that nothing in the ledger has referred to for a day (`evals artifact gc`).")
def remove_unreferenced(context: dg.OpExecutionContext, evals: EvalsResource) -> None:
    with evals.records() as records:
        found = collect(evals.settings(), records)
    context.log.info(
        f"{len(found.removed)} removed, {found.removed_bytes} bytes; {found.marked} wait; {found.n_stored} were stored"
    )


@dg.job(tags=FIRST, description="Remove artifacts that nothing refers to.")
def collect_artifacts() -> None:
    remove_unreferenced()


@dg.schedule(job=collect_artifacts, cron_schedule="37 * * * *", default_status=dg.DefaultScheduleStatus.RUNNING)
def collect_artifacts_hourly(context: dg.ScheduleEvaluationContext) -> Any:
    """Hourly; left out while the run before has not ended."""
    run = unfinished_run(context.instance, collect_artifacts.name)
    return dg.RunRequest() if run is None else dg.SkipReason(f"run {run} has not ended")
