"""`evals import inspect`, `harbor`, `list`, `show` and `remove`: results of other systems as tables that the same verbs read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eval_pipeline.cli.output import counted, dry_run_option, emit, harmless, json_option, note, table, with_settings
from eval_pipeline.settings import Settings

if TYPE_CHECKING:
    from eval_pipeline.analysis.imported.assemble import Named, Options
    from eval_pipeline.analysis.imported.shelf import Shelf
    from eval_pipeline.analysis.imported.table import ImportedTable, System

Command = Callable[..., Any]


def _options(command: Command) -> Command:
    for option in (
        click.option("--replace", is_flag=True, help="Put it in the place of another import of that name."),
        click.option(
            "--errors-count", is_flag=True, help="A cell that ended in an error without a score counts, as the worst score."
        ),
        click.option(
            "--pass-at", type=float, help="From this score on a cell passes; the best one, where scores are all or nothing."
        ),
        click.option("--range", "span", type=float, nargs=2, metavar="LOW HIGH", help="What scores can be. 0 1 when omitted."),
        click.option("--scorer", metavar="NAME[.KEY]", help="Which score counts; needed where there are several."),
        click.option("--arm", "arms", multiple=True, metavar="NAME=PATH", help="Another one to read, as the arm of that name."),
        click.option("--as", "name", metavar="NAME", help="The import's name."),
    ):
        command = option(command)
    return command


@click.command("inspect")
@click.argument("files", nargs=-1, metavar="FILE...", type=click.Path(path_type=Path))
@_options
@json_option
@with_settings
def inspect(settings: Settings, files: tuple[Path, ...], name: str | None, arms: tuple[str, ...], **rest: Any) -> None:
    """Logs of Inspect (.eval, .json): an arm each model.

    A case each sample, a trial each epoch. Whole or as far as they were written. The same files again change nothing.
    """
    from eval_pipeline.analysis.imported.inspect_log import read_inspect

    read = [(given, read_inspect(path)) for given, path in _paths(files, arms)]
    tasks = "-".join(sorted({one.task or "" for _, one in read}))
    _keep(settings, "inspect", name or f"inspect-{tasks}", read, **rest)


@click.command("harbor")
@click.argument("folders", nargs=-1, metavar="DIR...", type=click.Path(path_type=Path))
@_options
@json_option
@with_settings
def harbor(settings: Settings, folders: tuple[Path, ...], name: str | None, arms: tuple[str, ...], **rest: Any) -> None:
    """Job folders of Harbor: an arm each agent and model.

    A case each task, its trials in the order in which they began. Finished or not. The same folders again change nothing.
    """
    from eval_pipeline.analysis.imported.harbor_job import read_harbor
    from eval_pipeline.errors import SpecError

    read: list[Named] = []
    for given, path in _paths(folders, arms):
        found = read_harbor(path)
        if given is not None and len(found) > 1:
            said = f"{path} holds {len(found)} agents and models, they can't all be {given}"
            raise SpecError(said, hint="name the folder without --arm: each gets a name of its own")
        read += [(given, one) for one in found]
    jobs = "-".join(sorted({one.source.file for _, one in read}))
    _keep(settings, "harbor", name or f"harbor-{jobs}", read, **rest)


def _paths(paths: Sequence[Path], arms: Sequence[str]) -> list[tuple[str | None, Path]]:
    from eval_pipeline.domain.ids import check_slug
    from eval_pipeline.errors import SpecError

    named: list[tuple[str | None, Path]] = []
    for one in arms:
        name, _, path = one.partition("=")
        try:
            named.append((check_slug(name), Path(path)))
        except ValueError as error:
            raise SpecError(f"--arm {one}: {error}", hint="write --arm NAME=PATH") from None
    given = {path for _, path in named}
    found = [*((None, path) for path in dict.fromkeys(paths) if path not in given), *named]
    if not found:
        raise SpecError("nothing to read was named", hint="evals import inspect FILE..., or evals import harbor DIR...")
    return found


def _keep(
    settings: Settings,
    system: System,
    name: str,
    read: Sequence[Named],
    *,
    scorer: str | None,
    span: tuple[float, float] | None,
    pass_at: float | None,
    errors_count: bool,
    replace: bool,
    as_json: bool,
) -> None:
    from eval_pipeline.analysis.imported.assemble import Options, assemble
    from eval_pipeline.analysis.imported.shelf import Shelf
    from eval_pipeline.errors import SpecError
    from eval_pipeline.specs.importers.slugs import slug

    if span is not None and not -math.inf < span[0] < span[1] < math.inf:
        raise SpecError(f"--range {span[0]:g} {span[1]:g} is no range", hint="two numbers, the lower end first")
    if pass_at is not None and not math.isfinite(pass_at):
        raise SpecError(f"--pass-at {pass_at:g} is no score", hint="a number between the ends of the range")
    options: Options = Options(score=scorer, span=span, pass_at=pass_at, errors_count=errors_count)
    table_read = assemble(slug(name), system, read, options)
    kept = Shelf(settings.state_dir).put(table_read, replace=replace)
    emit({**_about(table_read), "kept": kept}, as_json, lambda: _tell(table_read, kept))


def _tell(found: ImportedTable, kept: str) -> None:
    _arms(found)
    for line in found.notes:
        note(harmless(f"note: {line}"))
    first = found.arms[0].name
    second = found.arms[1].name if found.arms[1:] else None
    also = f"; evals compare {found.name} {first} {second}" if second else ""
    note(f"{found.name}: {kept}; evals leaderboard {found.name}{also}; evals export {found.name}")


def _arms(found: ImportedTable) -> None:
    columns = ["arm", "cases", "cells", "scored", "errors", "files"]
    rows = [
        [arm["arm"], arm["n_cases"], arm["n_cells"], arm["n_scored"], arm["n_errors"], ", ".join(arm["files"])]
        for arm in _about(found)["arms"]
    ]
    title = f"{found.name}, imported from {found.system}: score {found.score}, {found.low:g} to {found.high:g}"
    click.echo(harmless(title))
    table(columns, rows, right=columns[1:5])


def _about(found: ImportedTable) -> dict[str, Any]:
    return {
        "import": found.name,
        "system": found.system,
        "digest": found.digest,
        "score": found.score,
        "low": found.low,
        "high": found.high,
        "pass_at": found.pass_at,
        "trials": found.trials,
        "notes": found.notes,
        "n_absent": found.n_absent,
        "arms": [
            {
                "arm": arm.name,
                "config": arm.config,
                "n_cases": len({row.case for row in arm.rows}),
                "n_cells": len(arm.rows),
                "n_scored": sum(row.score is not None for row in arm.rows),
                "n_errors": sum(row.outcome == "infra_failure" for row in arm.rows),
                "n_absent": None if arm.n_absent is None else arm.n_absent + sum(row.outcome == "cancelled" for row in arm.rows),
                "files": [source.file for source in arm.sources],
                "sha256": [source.sha256 for source in arm.sources],
            }
            for arm in found.arms
        ],
    }


@click.command("list")
@json_option
@with_settings
def listed(settings: Settings, as_json: bool) -> None:
    """What was imported: tables of other systems' results."""
    from eval_pipeline.analysis.imported.shelf import Shelf

    shelf = Shelf(settings.state_dir)
    found = [_listed(shelf, name) for name in shelf.names()]
    columns = ["import", "system", "score", "arms", "cells", "digest"]
    rows = [
        [one["import"], "damaged", *[None] * 4]
        if "problem" in one
        else [
            one["import"],
            one["system"],
            one["score"],
            len(one["arms"]),
            sum(arm["n_cells"] for arm in one["arms"]),
            one["digest"][:12],
        ]
        for one in found
    ]
    emit(found, as_json, lambda: table(columns, rows, right=["arms", "cells"]))
    for problem in [one["problem"] for one in found if "problem" in one]:
        note(harmless(f"damaged: {problem}"))


def _listed(shelf: Shelf, name: str) -> dict[str, Any]:
    """Of one that can't be read, why: the others are listed all the same."""
    from eval_pipeline.errors import SpecError

    try:
        return _about(shelf.named(name))
    except SpecError as problem:
        return {"import": name, "problem": f"{problem}; {problem.hint}" if problem.hint else str(problem)}


@click.command("show")
@click.argument("name")
@json_option
@with_settings
def show(settings: Settings, name: str, as_json: bool) -> None:
    """One import: its arms and files; with --json every cell as read."""
    from eval_pipeline.analysis.imported.shelf import Shelf

    found = Shelf(settings.state_dir).named(name)

    def people() -> None:
        _arms(found)
        for line in found.notes:
            click.echo(harmless(f"note: {line}"))

    rows = {arm.name: arm.model_dump(mode="json")["rows"] for arm in found.arms}
    emit({**_about(found), "rows": rows}, as_json, people)


@click.command("remove")
@click.argument("name")
@dry_run_option
@json_option
@with_settings
def remove(settings: Settings, name: str, dry_run: bool, as_json: bool) -> None:
    """Forget an import. The files it was read from stay as they are."""
    from eval_pipeline.analysis.imported.shelf import Shelf

    Shelf(settings.state_dir).remove(name, dry_run=dry_run)
    said = f"{counted(1, 'import', 'imports')} {'would be ' if dry_run else ''}removed: {name}"
    emit({"import": name, "removed": not dry_run, "dry_run": dry_run}, as_json, lambda: note(said))
