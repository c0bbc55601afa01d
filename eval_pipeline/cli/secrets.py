from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from eval_pipeline.cli.output import Failure, emit, json_option, note, table, with_settings
from eval_pipeline.errors import EvalsError
from eval_pipeline.settings import Settings

if TYPE_CHECKING:
    from eval_pipeline.vault.delivery import SecretStatus


@click.group()
def command() -> None:
    """The secrets that apps declare in their manifests. Names, versions and ages; never a value."""


@command.command("list")
@json_option
@with_settings
def list_secrets(settings: Settings, as_json: bool) -> None:
    """Each declared secret with the version that new cells get. Reads no source: `sync` does."""
    from eval_pipeline.store.records import read_records
    from eval_pipeline.vault.delivery import Secrets

    with read_records(settings) as records:
        rows = _rows(Secrets(settings, records).statuses())
    emit(rows, as_json, lambda: _show(rows))


@command.command("policy")
@json_option
@with_settings
def policy(settings: Settings, as_json: bool) -> None:
    """The IAM policy (JSON) for just the declared secrets. It lets read them from AWS Secrets Manager; AWS is not asked."""
    import json

    from eval_pipeline.errors import SpecError
    from eval_pipeline.store.records import read_records
    from eval_pipeline.vault.declared import declared_now
    from eval_pipeline.vault.delivery import Secrets
    from eval_pipeline.vault.sources_aws import policy as iam_policy

    if not settings.secrets_aws:
        hint = "set EVALS_SECRETS_AWS_PREFIX or EVALS_SECRETS_AWS_NAMES: docs/secrets.md"
        raise SpecError("AWS Secrets Manager is no source here", hint=hint)
    with read_records(settings) as records:
        names = {one.name for one in declared_now(Secrets(settings, records).library, records)}
    document = iam_policy(settings.secrets_aws, names)
    emit(document, as_json, lambda: click.echo(json.dumps(document, indent=2)))


@command.command("sync")
@json_option
@with_settings
def sync(settings: Settings, as_json: bool) -> int:
    """Read the sources now, so that a rotated value reaches the next cell. A running cell keeps what it has."""
    from eval_pipeline.runner.modal_secrets import sync_to_modal
    from eval_pipeline.store.records import open_records
    from eval_pipeline.vault.delivery import Secrets

    with open_records(settings) as records:
        vault = Secrets(settings, records)
        report = vault.sync()
        try:
            written, refused = asyncio.run(sync_to_modal(settings, records, vault)), None
        except EvalsError as error:
            written, refused = [], Failure(error.code, str(error), error.hint)
    rows = _rows(report.statuses)
    failure = refused
    if report.problem is not None:
        failure = Failure(report.problem.code, str(report.problem), report.problem.hint)
    elif report.missing:
        said = f"no source holds {', '.join(report.missing)}; looked in: {report.looked_in}"
        failure = Failure("secrets_missing", said, f"write it into {settings.secrets_file} (mode 0600), or export it")

    def people() -> None:
        _show(rows)
        for one in written:
            click.echo(f"on Modal: {one.name} {one.done}")

    on_modal = [one.__dict__ for one in written]
    emit({"secrets": rows, "missing": report.missing, "modal": on_modal}, as_json, people, failure)
    return 2 if failure else 0


def _rows(statuses: Sequence[SecretStatus]) -> list[dict[str, Any]]:
    """One a name; of two phases the one that was seen longer ago tells."""
    rows: dict[str, dict[str, Any]] = {}
    for status in statuses:
        synced, declared = status.synced, status.declared
        row = rows.setdefault(declared.name, {"name": declared.name, "phases": [], "apps": [], "held": True})
        row["phases"] = [*row["phases"], declared.phase]
        row["apps"] = sorted({*row["apps"], *declared.apps})
        row["held"] = row["held"] and status.held
        row["redacted"] = status.held and not status.too_short
        unseen_s = synced.unseen_s if synced else None
        if "unseen_s" not in row or (row["unseen_s"] is not None and (unseen_s is None or unseen_s > row["unseen_s"])):
            row |= {"version": synced.version if synced else None, "source": synced.source if synced else None}
            row |= {"synced_at": synced.synced_at if synced else None, "age_s": synced.age_s if synced else None}
            row |= {"changed_at": synced.changed_at if synced else None, "value_age_s": synced.value_age_s if synced else None}
            row |= {"max_age_days": status.max_age_days, "rotation_due": status.too_old}
            row |= {"last_seen": synced.last_seen if synced else None, "unseen_s": unseen_s}
    return [rows[name] for name in sorted(rows)]


def _show(rows: list[dict[str, Any]]) -> None:
    if not rows:
        note("no app declares a secret (`secrets: {build: [...], agent: [...]}` in its evals.app.yaml)")
        return
    columns = ["secret", "phases", "apps", "version", "source", "synced", "last seen", "value since", "held"]
    cells = [
        [
            row["name"],
            ", ".join(row["phases"]),
            ", ".join(row["apps"]),
            row["version"][:12] if row["version"] else None,
            row["source"],
            _ago(row["age_s"]),
            _ago(row["unseen_s"]),
            _ago(row["value_age_s"]),
            "yes" if row["held"] else "no",
        ]
        for row in rows
    ]
    table(columns, cells)
    for row in rows:
        if row["rotation_due"]:
            note(f"{row['name']} is older than the {row['max_age_days']:g} days that app.yaml allows: rotate it")
    if short := [row["name"] for row in rows if row["held"] and not row["redacted"]]:
        note(f"too short to be looked for in what agents write, and so kept out of nothing: {', '.join(short)}")


def _ago(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit} ago"
    return f"{seconds:.0f} s ago"
