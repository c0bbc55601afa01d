from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from eval_pipeline.cli.output import Failure, emit, harmless, json_option, note, starts_sandboxes, table, with_settings
from eval_pipeline.settings import Settings

if TYPE_CHECKING:
    from eval_pipeline.runner.app_check import Step


@click.group()
def command() -> None:
    """The application under evaluation, as its manifest describes it."""


@command.command("check")
@click.option("--ref", metavar="REF|WORKTREE", help="The app at this revision; its branch when it is not given.")
@click.option("--case", "case_name", metavar="WORLD.CASE", help="The case to try it on; the first there is when it is not given.")
@click.option("--config", metavar="JSON", default="{}", help="The arm's config that the agent is given.")
@json_option
@with_settings
@starts_sandboxes
def check(settings: Settings, ref: str | None, case_name: str | None, config: str, as_json: bool) -> int:
    """Run each command of the manifest on one case, and try what it promises. Stops at the first that fails."""
    from eval_pipeline.cli.launch import require_isolation

    wanted = _config(config)
    require_isolation(settings)
    steps = asyncio.run(_check(settings, ref, case_name, wanted))
    failed = next((step for step in steps if not step.ok), None)
    hint = "correct it and try again: --ref WORKTREE takes what is not committed"
    failure = None if failed is None else Failure("app", f"{failed.name} failed", hint)
    data = {"ok": failed is None, "steps": [asdict(step) for step in steps]}
    emit(data, as_json, lambda: None if failed else click.echo("the app keeps what its manifest promises"), failure)
    return 0 if failed is None else 1


@command.command("dependencies")
@click.option("--ref", metavar="REF|WORKTREE", help="The app at this revision; its branch when it is not given.")
@click.option("--check", "strict", is_flag=True, help="End with code 1 unless every package is known to be old enough.")
@json_option
@with_settings
def dependencies(settings: Settings, ref: str | None, strict: bool, as_json: bool) -> int:
    """The packages in the app's lock files, and how old each of them is.

    The youngest come first. Publish times are from the lock file where it has them (uv.lock), else from an index that is set and can be reached.
    """
    from eval_pipeline.runner.app_dependencies import app_dependencies
    from eval_pipeline.specs.library import Library

    found = app_dependencies(settings, Library(settings.worlds_dir), ref)
    rows = [
        {
            "package": one.package.name,
            "version": one.package.version,
            "ecosystem": one.package.ecosystem,
            "age": str(one.age),
            "age_days": None if one.age_days is None else round(one.age_days, 1),
            "lock": one.package.lock,
            "why": one.package.why,
        }
        for one in found.packages
    ]
    counts = {name: sum(row["age"] == name for row in rows) for name in ("ok", "young", "unknown")}
    for why in found.unread.values():
        note(f"warning: {harmless(why)}")
    said = ", ".join(f"{count} {name}" for name, count in counts.items())
    note(f"{len(rows)} packages in {len(found.locks)} lock files, at least {found.min_age_days:g} days old: {said}")
    data = {"ref": found.ref, "commit": found.commit, "min_age_days": found.min_age_days, "lock_files": found.locks}
    data |= {"unread": found.unread, "fine": found.fine, "counts": counts, "packages": rows}
    hint = "what is unknown is not fine: uv.lock has publish times, and EVALS_PYPI_JSON_URL names an index that tells them"
    failure = (
        Failure("dependencies", f"not every package is known to be old enough: {said}", hint)
        if strict and not found.fine
        else None
    )
    columns = ["package", "version", "age", "age_days", "lock", "why"]
    emit(data, as_json, lambda: table(columns, [[row[name] for name in columns] for row in rows], right=["age_days"]), failure)
    return 1 if failure else 0


async def _check(settings: Settings, ref: str | None, case_name: str | None, config: dict[str, Any]) -> list[Step]:
    from eval_pipeline.errors import NotFound
    from eval_pipeline.runner.app_check import AppCheck
    from eval_pipeline.runner.services import open_services
    from eval_pipeline.runner.workbench import subject
    from eval_pipeline.specs.library import Library
    from eval_pipeline.store.records import open_records

    library = Library(settings.worlds_dir)
    cases = [library.case(case_name)] if case_name else library.read_all_cases()[0]
    if not cases:
        raise NotFound("there is no case to try the app on", hint="`evals world new NAME` writes a world with one")
    steps: list[Step] = []
    with open_records(settings) as records, open_services(settings, records) as services:
        at = subject(services, library, cases[0].world, ref)
        note(f"{at.arm.manifest.name} at {at.arm.ref}, on {cases[0].name}")
        async for step in AppCheck(services, at, cases[0], config).run():
            steps.append(step)
            note(f"{'ok' if step.ok else 'FAILED'}  {step.name}  {step.seconds:.2f} s")
            note("\n".join(f"    {line}" for line in harmless(step.said).splitlines()[-20:]))
    return steps


def _config(text: str) -> dict[str, Any]:
    from eval_pipeline.errors import SpecError

    try:
        found = json.loads(text)
    except ValueError as error:
        raise SpecError(f"--config is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise SpecError("--config must be a JSON object")
    return found  # pyright: ignore[reportUnknownVariableType]
