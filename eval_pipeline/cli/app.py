from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from eval_pipeline.cli.output import Failure, emit, harmless, json_option, note, starts_sandboxes, with_settings
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
