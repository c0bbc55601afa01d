"""Secrets for sandboxes, synced by the hour. Names, versions and ages are shown; a value never leaves the vault."""

import asyncio
from collections.abc import Iterator
from typing import Any

import dagster as dg

from eval_pipeline.defs.assets import OWNERS
from eval_pipeline.defs.automation import FIRST
from eval_pipeline.defs.partitions import UNCHANGING
from eval_pipeline.defs.resources import EvalsResource
from eval_pipeline.defs.unfinished import unfinished_run
from eval_pipeline.errors import EvalsError
from eval_pipeline.runner.modal_secrets import Written, sync_to_modal
from eval_pipeline.runner.notify import tell_stale_secrets
from eval_pipeline.settings import Settings
from eval_pipeline.store.records import Records
from eval_pipeline.vault.delivery import Secrets, SecretStatus, SyncReport

MAX_UNSEEN_S = 2 * 3600.0

_COLUMNS = {
    "name": "string", "phase": "string", "apps": "string", "version": "string", "source": "string",
    "age_s": "float", "unseen_s": "float", "value_age_s": "float", "max_age_days": "float", "held": "bool",
}  # fmt: skip
_SCHEMA = dg.TableSchema(columns=[dg.TableColumn(name, kind) for name, kind in _COLUMNS.items()])


@dg.asset(
    group_name="environment",
    kinds={"python", "postgres"},
    owners=OWNERS,
    metadata={"dagster/column_schema": _SCHEMA},
    check_specs=[
        dg.AssetCheckSpec(
            "secret_age",
            asset="sandbox_secrets",
            description=f"Each declared secret was found in a source within the last {MAX_UNSEEN_S / 3600:.0f} hours.",
        ),
        dg.AssetCheckSpec(
            "secret_rotation",
            asset="sandbox_secrets",
            description="No secret's value is older than `secrets: {max_age_days: ...}` in worlds_src/app.yaml says.",
        ),
    ],
)
def sandbox_secrets(context: dg.AssetExecutionContext, evals: EvalsResource) -> Iterator[Any]:
    """The secrets that apps declare, read from their sources into versions that new cells get. Values are kept outside of Dagster.

    Fails when one is missing; cells then go on with its last version.
    """
    with evals.records() as records:
        vault = Secrets(evals.settings(), records)
        report = vault.sync()
        written, refused = _to_modal(evals.settings(), records, vault)
        tell_stale_secrets(evals.settings(), records, _stale(report))
    metadata = _metadata(report)
    if written:
        metadata["modal"] = dg.MetadataValue.json([one.__dict__ for one in written])
    yield _rotation_check(report)
    yield _age_check(report)  # also of a sync that fails: then ages tell how long the last versions have been in use
    if report.problem is not None or report.missing:
        said = (
            f"{report.problem}"
            if report.problem
            else f"no source holds {', '.join(report.missing)}; looked in: {report.looked_in}"
        )
        raise dg.Failure(f"{said}; cells go on with the last versions", metadata=metadata, allow_retries=False)
    if refused is not None:
        raise dg.Failure(
            f"{refused}; sandboxes on Modal are sent their secrets one by one", metadata=metadata, allow_retries=False
        )
    yield dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(UNCHANGING))


def _to_modal(settings: Settings, records: Records, vault: Secrets) -> tuple[list[Written], EvalsError | None]:
    try:
        return asyncio.run(sync_to_modal(settings, records, vault)), None
    except EvalsError as error:
        return [], error


def _age_check(report: SyncReport) -> dg.AssetCheckResult:
    required = [status for status in report.statuses if status.declared.required]
    unseen = {_label(status): None if status.synced is None else round(status.synced.unseen_s, 1) for status in required}
    stale = sorted(_label(status) for status in _stale(report))
    return dg.AssetCheckResult(
        check_name="secret_age",
        passed=not stale,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={"unseen_s": dg.MetadataValue.json(unseen), "stale": dg.MetadataValue.json(stale), "threshold_s": MAX_UNSEEN_S},
    )


def _rotation_check(report: SyncReport) -> dg.AssetCheckResult:
    bound = [status for status in report.statuses if status.max_age_days is not None]
    ages = {
        _label(one): {
            "age_days": None if one.synced is None else round(one.synced.value_age_s / 86400, 2),
            "max": one.max_age_days,
        }
        for one in bound
    }
    due = sorted(_label(one) for one in bound if one.too_old)
    return dg.AssetCheckResult(
        check_name="secret_rotation",
        passed=not due,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={"ages": dg.MetadataValue.json(ages), "due": dg.MetadataValue.json(due)},
    )


def _stale(report: SyncReport) -> list[SecretStatus]:
    required = [status for status in report.statuses if status.declared.required]
    return [status for status in required if status.synced is None or status.synced.unseen_s > MAX_UNSEEN_S]


def _metadata(report: SyncReport) -> dict[str, Any]:
    rows = [dg.TableRecord(_row(status)) for status in report.statuses]
    return {
        "dagster/row_count": len(rows),
        "secrets": dg.MetadataValue.table(rows, _SCHEMA),
        "missing": dg.MetadataValue.json(report.missing),
        "show": dg.MetadataValue.md("`evals secrets list`"),
    }


def _row(status: SecretStatus) -> dict[str, Any]:
    synced, declared = status.synced, status.declared
    return {
        "name": declared.name,
        "phase": declared.phase,
        "apps": ", ".join(declared.apps),
        "version": synced.version if synced else None,
        "source": synced.source if synced else None,
        "age_s": round(synced.age_s, 1) if synced else None,
        "unseen_s": round(synced.unseen_s, 1) if synced else None,
        "value_age_s": round(synced.value_age_s, 1) if synced else None,
        "max_age_days": status.max_age_days,
        "held": status.held,
    }


def _label(status: SecretStatus) -> str:
    return f"{status.declared.name} ({status.declared.phase})"


secrets_job = dg.define_asset_job(
    "sync_secrets", selection=[sandbox_secrets], tags=FIRST, description="Read the declared secrets from their sources."
)


@dg.schedule(job=secrets_job, cron_schedule="7 * * * *", default_status=dg.DefaultScheduleStatus.RUNNING)
def sync_secrets_hourly(context: dg.ScheduleEvaluationContext) -> Any:
    """Hourly; left out while the run before has not ended."""
    run = unfinished_run(context.instance, secrets_job.name)
    return dg.RunRequest() if run is None else dg.SkipReason(f"run {run} has not ended")
