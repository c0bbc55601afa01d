"""Sandboxes that stand ready on the newest image."""

import asyncio
from collections.abc import Sequence
from typing import Any

import dagster as dg

from eval_pipeline.defs.app_image import app_image
from eval_pipeline.defs.assets import OWNERS
from eval_pipeline.defs.resources import EvalsResource
from eval_pipeline.errors import EvalsError
from eval_pipeline.runner.services import Services
from eval_pipeline.runner.warm_pool import PoolReport, fill
from eval_pipeline.specs.library import Library


@dg.asset(deps=[app_image], group_name="environment", kinds={"python", "postgres"}, owners=OWNERS)
def warm_sandboxes(context: dg.AssetExecutionContext, evals: EvalsResource) -> dg.MaterializeResult[Any]:
    """Sandboxes with the app up on a world, at the image's commit, for the next cells of that commit; as many as app.yaml asks for, on each
    of its backends.

    Those that expired, or that no cell can take any more, are ended.
    """
    library = evals.library()
    backends = library.only_app().backends
    with evals.services() as services:
        try:
            reports = asyncio.run(_fill(services, library, backends))
        except EvalsError as error:
            raise dg.Failure(str(error), allow_retries=False) from error
    metadata: dict[str, Any] = {}
    for name in reversed(backends):
        prefix = "" if name == backends[0] else f"{name}/"
        metadata |= {f"{prefix}{key}": value for key, value in _metadata(reports[name]).items()}
    metadata["dagster/row_count"] = sum(sum(report.ready.values()) for report in reports.values())
    said = [f"{world} on {name}: {why}" for name, report in reports.items() for world, why in report.failed.items()]
    if said:
        raise dg.Failure(f"no warm sandbox for {'; '.join(said)}", metadata=metadata, allow_retries=False)
    return dg.MaterializeResult(metadata=metadata)


async def _fill(services: Services, library: Library, backends: Sequence[str]) -> dict[str, PoolReport]:
    try:
        return {name: await fill(services.on(name), library) for name in backends}
    finally:
        await services.backends.aclose()


def _metadata(report: PoolReport) -> dict[str, Any]:
    return {
        "asked_for_each_world": report.count,
        "cost_cap_leaves": report.allowed,
        "ready": dg.MetadataValue.json(report.ready),
        "started": dg.MetadataValue.json(report.started),
        "failed": dg.MetadataValue.json(report.failed),
        "ended": len(report.ended),
        "show": dg.MetadataValue.md("`evals image status`"),
    }
