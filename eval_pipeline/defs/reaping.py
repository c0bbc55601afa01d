"""The reaper as a sensor: it works wherever the daemon does, whoever made the sandboxes and however they were lost."""

import asyncio

import dagster as dg

from eval_pipeline.defs.resources import EvalsResource
from eval_pipeline.errors import EvalsError
from eval_pipeline.runner.reaper import reap
from eval_pipeline.store.strays import GRACE_S

LOCAL_S, MODAL_S = 20.0, 30.0
"""A tick is cut off after a minute."""
AT_MOST = 100


@dg.sensor(minimum_interval_seconds=60, default_status=dg.DefaultSensorStatus.RUNNING)
def reap_sandboxes(context: dg.SensorEvaluationContext, evals: EvalsResource):
    """End sandboxes that no open attempt, build, warm row or person has owned for two minutes. Those of other installations are left alone."""
    said: list[str] = []
    with evals.records() as records:
        for backend, within_s in (("local", LOCAL_S), ("modal", MODAL_S)):
            if backend == "modal" and not records.views.uses("modal"):
                continue
            work = reap(evals.settings(), records, backend, grace_s=GRACE_S, at_most=AT_MOST)
            try:
                reaped = asyncio.run(asyncio.wait_for(work, within_s))
            except (EvalsError, TimeoutError) as error:  # the other backend's are no less leaked
                context.log.warning(f"sandboxes on {backend} could not be looked through: {error or 'it took too long'}")
                continue
            if reaped.ended:
                context.log.warning(f"ended {len(reaped.ended)} leaked sandboxes on {backend}: {', '.join(reaped.ended)}")
            said.append(f"{backend}: {len(reaped.ended)} ended, {len(reaped.waiting)} waiting, {len(reaped.foreign)} foreign")
    return dg.SkipReason("; ".join(said) or "nothing could be looked through")
