from __future__ import annotations

import click

from eval_pipeline.cli.output import emit, json_option, table, with_settings
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
    rows = [
        {"dataset": name, "n_cases": len(library.dataset_cases(name)), "description": library.dataset(name).description}
        for name in library.dataset_names()
    ]
    shown = [[row["dataset"], row["n_cases"], row["description"]] for row in rows]
    emit(rows, as_json, lambda: table(["dataset", "cases", "description"], shown, right=["cases"]))


@command.command("show")
@click.argument("name")
@json_option
@with_settings
def show(settings: Settings, name: str, as_json: bool) -> None:
    """The cases a dataset selects."""
    from eval_pipeline.specs.library import Library

    library = Library(settings.worlds_dir)
    cases = [case.name for case in library.dataset_cases(name)]
    data = {"dataset": name, "description": library.dataset(name).description, "cases": cases}
    emit(data, as_json, lambda: click.echo("\n".join(cases)))
