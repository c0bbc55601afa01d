"""Sandboxes that stand ready on the newest image."""

import asyncio
from typing import Any

import dagster as dg

from eval_pipeline.defs.app_image import app_image
from eval_pipeline.defs.assets import OWNERS
from eval_pipeline.defs.resources import EvalsResource
from eval_pipeline.errors import EvalsError
from eval_pipeline.runner.warm_pool import PoolReport, fill


@dg.asset(deps=[app_image], group_name="environment", kinds={"python", "postgres"}, owners=OWNERS)
def warm_sandboxes(context: dg.AssetExecutionContext, evals: EvalsResource) -> dg.MaterializeResult[Any]:
    """Sandboxes with the app up on a world, at the image's commit, for the next cells of that commit; as many as app.yaml asks for.

    Those that expired, or that no cell can take any more, are ended.
    """
    with evals.services() as services:
        try:
            report = asyncio.run(fill(services, evals.library()))
        except EvalsError as error:
            raise dg.Failure(str(error), allow_retries=False) from error
    if report.failed:
        said = "; ".join(f"{world}: {why}" for world, why in report.failed.items())
        raise dg.Failure(f"no warm sandbox for {said}", metadata=_metadata(report), allow_retries=False)
    return dg.MaterializeResult(metadata=_metadata(report))


def _metadata(report: PoolReport) -> dict[str, Any]:
    return {
        "dagster/row_count": sum(report.ready.values()),
        "asked_for_each_world": report.count,
        "cost_cap_leaves": report.allowed,
        "ready": dg.MetadataValue.json(report.ready),
        "started": dg.MetadataValue.json(report.started),
        "failed": dg.MetadataValue.json(report.failed),
        "ended": len(report.ended),
        "show": dg.MetadataValue.md("`evals image status`"),
    }
