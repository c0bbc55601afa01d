from __future__ import annotations

from typing import Any

import click

from eval_pipeline.cli.case_new import from_chat, new
from eval_pipeline.cli.case_try import try_case
from eval_pipeline.cli.output import count, emit, json_option, note, note_unreadable, table, unreadable, with_settings
from eval_pipeline.domain.case import Case
from eval_pipeline.settings import Settings


@click.group()
def command() -> None:
    """Cases: a prompt and its rubric, about one world. Named <world>.<case>."""


for verb in (new, from_chat, try_case):
    command.add_command(verb)


@command.command("list")
@click.option("--world", help="Only this world's cases.")
@click.option("--tag", help="Only cases with this tag.")
@json_option
@with_settings
def list_cases(settings: Settings, world: str | None, tag: str | None, as_json: bool) -> int:
    """All cases, with how they are judged. Those that can't be read are named on stderr; with --world they fail the command."""
    from eval_pipeline.specs.library import Library

    library = Library(settings.worlds_dir)
    cases, wrong = library.read_cases(world) if world else library.read_all_cases()
    rows = [_row(case) for case in cases if tag is None or tag in case.spec.tags]
    columns = ["case", "n_criteria", "n_checks", "n_judged", "tags"]
    shown = [[row[c] if c != "tags" else ", ".join(row[c]) for c in columns] for row in rows]
    failure = unreadable(wrong) if world else None
    emit(rows, as_json, lambda: table(columns, shown, right=columns[1:4]), failure)
    if not world:
        note_unreadable(wrong)
    return 0 if failure is None else 2


@command.command("show")
@click.argument("name")
@json_option
@with_settings
def show(settings: Settings, name: str, as_json: bool) -> None:
    """One case: prompt, limits, rubric."""
    from eval_pipeline.specs.library import Library

    case = Library(settings.worlds_dir).case(name)

    def people() -> None:
        click.echo(f"{case.name}\n\n{case.spec.prompt.strip()}\n")
        limits = case.spec.limits
        tokens, turns = limits.tokens or "-", limits.turns or "-"
        click.echo(f"limits: {limits.wall_s:g} s, cost {limits.cost_usd or '-'} USD, tokens {tokens}, turns {turns}")
        criteria = case.spec.rubric.criteria
        rows = [[c.id, c.points, "judge" if c.judge else f"check: {next(iter(c.check or {}))}", c.text] for c in criteria]
        table(
            ["criterion", "points", "decided by", "text"], rows, f"\nrubric (passes at {case.spec.rubric.pass_at:g})", ["points"]
        )

    emit({"case": case.name, "world": case.world, **case.spec.model_dump(mode="json")}, as_json, people)


@command.command("check")
@click.argument("names", nargs=-1)
@json_option
@with_settings
def check(settings: Settings, names: tuple[str, ...], as_json: bool) -> int:
    """Read cases; every mistake is an error with its file and line."""
    from eval_pipeline.specs.library import Library

    library = Library(settings.worlds_dir)
    cases, wrong = ([library.case(name) for name in names], []) if names else library.read_all_cases()
    rows, failure = [_row(case) for case in cases], unreadable(wrong)
    emit(rows, as_json, lambda: note(f"{count(len(cases), 'case is', 'cases are')} fine"), failure)
    return 0 if failure is None else 2


def _row(case: Case) -> dict[str, Any]:
    criteria = case.spec.rubric.criteria
    return {
        "case": case.name,
        "world": case.world,
        "n_criteria": len(criteria),
        "n_checks": sum(criterion.check is not None for criterion in criteria),
        "n_judged": sum(criterion.judge for criterion in criteria),
        "points": sum(criterion.points * criterion.effective_cap for criterion in criteria if criterion.points > 0),
        "tags": list(case.spec.tags),
    }
