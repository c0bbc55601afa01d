"""The app's image, built by the hour from its branch's head, so that a cell pays for what its commit changes and no more."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

from eval_pipeline.defs.assets import OWNERS
from eval_pipeline.defs.automation import FIRST
from eval_pipeline.defs.partitions import UNCHANGING
from eval_pipeline.defs.resources import EvalsResource
from eval_pipeline.defs.unfinished import unfinished_run
from eval_pipeline.errors import EvalsError
from eval_pipeline.runner.app_dependencies import app_dependencies
from eval_pipeline.runner.app_image import BUILDING, HeadImage, build_image, image_status
from eval_pipeline.runner.backends import build_locks
from eval_pipeline.runner.notify import tell_stale_image
from eval_pipeline.runner.services import Services
from eval_pipeline.settings import Settings
from eval_pipeline.specs.library import Library
from eval_pipeline.vault.supply_chain import Age

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
        ),
        dg.AssetCheckSpec(
            "dependency_age",
            asset="app_image",
            description="Every package in the app's lock files is known to be old enough (EVALS_DEPENDENCY_AGE_DAYS).",
        ),
    ],
)
def app_image(context: dg.AssetExecutionContext, evals: EvalsResource) -> Iterator[Any]:
    """The whole app at the head of app.yaml's branch, as a layer on each of its backends. A cell of another commit adds its delta to the
    nearest image.

    When a build fails, the last good image stays in use.
    """
    library = evals.library()
    backends = library.only_app().backends
    with evals.services() as services:
        made, failed = asyncio.run(_build(services, library, backends))
        yield _check(services, library, backends, failed)
        yield _dependency_age(services.settings, library)
    if failed:
        said = "; ".join(failed.values() if len(backends) == 1 else (f"{name}: {why}" for name, why in failed.items()))
        raise dg.Failure(f"no new image, the last good one stays in use: {said}", allow_retries=False)
    metadata = {f"{_prefix(name, backends)}{key}": value for name in backends for key, value in _metadata(made[name]).items()}
    yield dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(UNCHANGING))


def _prefix(backend: str, backends: Sequence[str]) -> str:
    """Of what is told of several backends; the first one's names stay plain."""
    return "" if backend == backends[0] else f"{backend}/"


async def _build(services: Services, library: Library, backends: Sequence[str]) -> tuple[dict[str, HeadImage], dict[str, str]]:
    """What was built, and why not, by backend."""
    made: dict[str, HeadImage] = {}
    failed: dict[str, str] = {}
    try:
        for name in backends:
            try:
                made[name] = await build_image(services.on(name), library)
            except EvalsError as error:
                failed[name] = f"{error}\n{error.hint}" if error.hint else str(error)
    finally:
        await services.backends.aclose()
    return made, failed


def _check(services: Services, library: Library, backends: Sequence[str], failed: Mapping[str, str]) -> dg.AssetCheckResult:
    """failed: the last words of the builds that failed, by backend; they are kept in this evaluation."""
    metadata: dict[str, Any] = {}
    passed, usable = not failed, True
    for name in backends:
        found, is_current = _look(services.on(name), library)
        if name in failed:
            found["failure"] = dg.MetadataValue.text(failed[name][-_WORDS:])
        metadata |= {f"{_prefix(name, backends)}{key}": value for key, value in found.items()}
        if name in failed or not is_current:
            why = failed.get(name) or str(found.get("status") or f"{found['commits_behind']} commits behind {found['branch']}")
            tell_stale_image(
                services.settings, services.records, name, found.get("image_commit"), why.partition("\n")[0][:_WORDS]
            )
        passed, usable = passed and is_current, usable and bool(found.get("image_commit"))
    severity = dg.AssetCheckSeverity.WARN if usable else dg.AssetCheckSeverity.ERROR
    return dg.AssetCheckResult(check_name="image_is_current", passed=passed, severity=severity, metadata=metadata)


def _dependency_age(settings: Settings, library: Library) -> dg.AssetCheckResult:
    """Of the branch's head. What is unknown does not pass."""
    show = {"show": dg.MetadataValue.md("`evals app dependencies`")}
    try:
        found = app_dependencies(settings, library)
    except EvalsError as error:  # there is no branch to look at
        status: dict[str, Any] = {"status": str(error), **show}
        return dg.AssetCheckResult(
            check_name="dependency_age", passed=False, severity=dg.AssetCheckSeverity.WARN, metadata=status
        )
    counts = {str(age): found.count(age) for age in Age}
    young = ", ".join(f"{one.package.name} {one.package.version}" for one in found.packages if one.age is Age.YOUNG)
    metadata: dict[str, Any] = {
        "commit": found.commit,
        "lock_files": ", ".join(found.locks) or "none",
        "min_age_days": found.min_age_days,
        **counts,
        **({"too_young": young[:_WORDS]} if young else {}),
        **({"unread": "; ".join(found.unread.values())[:_WORDS]} if found.unread else {}),
        **show,
    }
    return dg.AssetCheckResult(
        check_name="dependency_age", passed=found.fine, severity=dg.AssetCheckSeverity.WARN, metadata=metadata
    )


def _look(services: Services, library: Library) -> tuple[dict[str, Any], bool]:
    try:
        status = image_status(services, library)
    except EvalsError as error:  # there is no branch to compare with
        return {"status": str(error)}, False
    found = {
        "image_commit": status.image.commit if status.image else None,
        "branch": status.branch,
        "head": status.head,
        "commits_behind": status.behind,
        "age_s": None if status.age_s is None else round(status.age_s, 1),
    }
    return found, status.behind == 0


def _metadata(made: HeadImage) -> dict[str, Any]:
    row, arm = made.row, made.head.arm
    return {
        "app": row.app,
        "branch": made.head.branch,
        "commit": arm.commit,
        "tree": arm.tree,
        "image": row.key,
        "ref": row.ref,
        "published": made.published,
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
    app = evals.library().the_app()
    if app is None:
        return dg.SkipReason("there is no app.yaml")
    with evals.records() as records:
        if any(build_locks(evals.settings(), records, name).held(BUILDING) for name in app.backends):
            return dg.SkipReason("an image is being built by hand: by a run of the asset alone, or by `evals image build`")
    return dg.RunRequest()
