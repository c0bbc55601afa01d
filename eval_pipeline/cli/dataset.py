from __future__ import annotations

from typing import Any

import click

from eval_pipeline.cli.output import emit, json_option, note_unreadable, table, unreadable, with_settings
from eval_pipeline.settings import Settings


@click.group()
def command() -> None:
    """Datasets: selections of cases from any worlds."""


@command.command("list")
@json_option
@with_settings
def list_datasets(settings: Settings, as_json: bool) -> None:
    """All datasets, with the number of their cases."""
    from eval_pipeline.specs.library import Library

    library = Library(settings.worlds_dir)
    rows: list[dict[str, Any]] = []
    for name in library.dataset_names():
        cases, wrong = library.read_dataset(name)
        rows.append({"dataset": name, "n_cases": len(cases), "description": library.dataset(name).description})
        note_unreadable(wrong, f"the dataset {name} may select it: ")
    shown = [[row["dataset"], row["n_cases"], row["description"]] for row in rows]
    emit(rows, as_json, lambda: table(["dataset", "cases", "description"], shown, right=["cases"]))


@command.command("show")
@click.argument("name")
@json_option
@with_settings
def show(settings: Settings, name: str, as_json: bool) -> int:
    """The cases a dataset selects. It fails when one that it may select can't be read."""
    from eval_pipeline.specs.library import Library

    library = Library(settings.worlds_dir)
    selected, wrong = library.read_dataset(name)
    cases, failure = [case.name for case in selected], unreadable(wrong)
    data = {"dataset": name, "description": library.dataset(name).description, "cases": cases}
    emit(data, as_json, lambda: click.echo("\n".join(cases)), failure)
    return 0 if failure is None else 2
