"""The app's image, built by the hour from its branch's head, so that a cell pays for what its commit changes and no more."""

import asyncio
from collections.abc import Iterator
from typing import Any

import dagster as dg

from eval_pipeline.defs.assets import OWNERS
from eval_pipeline.defs.automation import FIRST
from eval_pipeline.defs.partitions import UNCHANGING
from eval_pipeline.defs.resources import EvalsResource
from eval_pipeline.defs.unfinished import unfinished_run
from eval_pipeline.environment.building import in_progress
from eval_pipeline.errors import EvalsError
from eval_pipeline.runner.app_image import BUILDING, HeadImage, build_image, image_status
from eval_pipeline.runner.backends import build_locks
from eval_pipeline.runner.services import Services
from eval_pipeline.specs.library import Library

_WORDS = 2000


@dg.asset(
    group_name="environment",
    kinds={"python", "git"},
    owners=OWNERS,
    check_specs=[
        dg.AssetCheckSpec(
            "image_is_current",
            asset="app_image",
            description="The newest image is of the branch's head; else how far it is behind, and why.",
        )
    ],
)
def app_image(context: dg.AssetExecutionContext, evals: EvalsResource) -> Iterator[Any]:
    """The whole app at the head of app.yaml's branch, as a layer. A cell of another commit adds its delta to the nearest image.

    When a build fails, the last good image stays in use.
    """
    library = evals.library()
    with evals.services() as services:
        try:
            made = asyncio.run(build_image(services, library))
        except EvalsError as error:
            said = f"{error}\n{error.hint}" if error.hint else str(error)
            yield _check(services, library, said)
            raise dg.Failure(f"no new image, the last good one stays in use: {said}", allow_retries=False) from error
        yield _check(services, library, None)
    yield dg.MaterializeResult(metadata=_metadata(made), data_version=dg.DataVersion(UNCHANGING))


def _check(services: Services, library: Library, failure: str | None) -> dg.AssetCheckResult:
    """failure: the last words of the build that failed; they are kept in this evaluation."""
    try:
        status = image_status(services, library)
    except EvalsError as error:  # there is no branch to compare with
        found, passed = {"status": str(error)}, False
    else:
        found = {
            "image_commit": status.image.commit if status.image else None,
            "branch": status.branch,
            "head": status.head,
            "commits_behind": status.behind,
            "age_s": None if status.age_s is None else round(status.age_s, 1),
        }
        passed = failure is None and status.behind == 0
    words = {} if failure is None else {"failure": dg.MetadataValue.text(failure[-_WORDS:])}
    return dg.AssetCheckResult(
        check_name="image_is_current",
        passed=passed,
        severity=dg.AssetCheckSeverity.WARN if found.get("image_commit") else dg.AssetCheckSeverity.ERROR,
        metadata={**found, **words},
    )


def _metadata(made: HeadImage) -> dict[str, Any]:
    row, arm = made.row, made.head.arm
    return {
        "app": row.app,
        "branch": made.head.branch,
        "commit": arm.commit,
        "tree": arm.tree,
        "image": row.key,
        "digest": row.digest,
        "size_bytes": row.size_bytes,
        "built_s": None if row.built_s is None else round(row.built_s, 3),
        "built": made.built,
        "repository": dg.MetadataValue.path(str(made.head.source.repo)),
        "show": dg.MetadataValue.md("`evals image list`, `evals image build`"),
    }


image_job = dg.define_asset_job(
    "build_app_image",
    selection=["app_image", "warm_sandboxes"],
    tags=FIRST,
    description="Build the app's image from its branch's head, and warm up sandboxes on it.",
)


@dg.schedule(job=image_job, cron_schedule="0 * * * *", default_status=dg.DefaultScheduleStatus.RUNNING)
def build_app_image_hourly(context: dg.ScheduleEvaluationContext, evals: EvalsResource) -> Any:
    """Hourly; left out while a build goes on, whoever started it, and where there is no app."""
    run = unfinished_run(context.instance, image_job.name)
    if run is not None:
        return dg.SkipReason(f"run {run} has not ended")
    if in_progress(build_locks(evals.settings()), BUILDING):
        return dg.SkipReason("an image is being built by hand: by a run of the asset alone, or by `evals image build`")
    if evals.library().the_app() is None:
        return dg.SkipReason("there is no app.yaml")
    return dg.RunRequest()
