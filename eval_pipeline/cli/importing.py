from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from eval_pipeline.cli.importing_results import harbor, inspect, listed, remove, show
from eval_pipeline.cli.output import emit, json_option, note, table, with_settings
from eval_pipeline.settings import Settings

if TYPE_CHECKING:
    from eval_pipeline.specs.importers.tree import ImportedCase


@click.group()
def command() -> None:
    """Published benchmarks as worlds and cases; results of other systems as tables."""


for one in (inspect, harbor, listed, show, remove):
    command.add_command(one)


@command.command("biglaw-bench")
@click.argument("csv_path", metavar="CSV", type=click.Path(path_type=Path))
@click.argument("documents", type=click.Path(path_type=Path))
@click.option("--into", type=click.Path(path_type=Path), help="The worlds_src to write to; this project's when omitted.")
@json_option
@with_settings
def biglaw_bench(settings: Settings, csv_path: Path, documents: Path, into: Path | None, as_json: bool) -> None:
    """BigLaw Bench core samples: CSV and the folder of its documents.

    A world per matter, a case per row. All or nothing: what can't be read is an error with its line.
    """
    from eval_pipeline.specs.importers.biglaw import import_biglaw_bench

    _tell(import_biglaw_bench(csv_path, documents, into or settings.worlds_dir), into or settings.worlds_dir, as_json)


@command.command("harvey-lab")
@click.argument("tasks", type=click.Path(path_type=Path))
@click.option("--into", type=click.Path(path_type=Path), help="The worlds_src to write to; this project's when omitted.")
@json_option
@with_settings
def harvey_lab(settings: Settings, tasks: Path, into: Path | None, as_json: bool) -> None:
    """Harvey LAB: a folder of tasks, as deep as they lie.

    Each is a task.json with its documents/ beside it. A world and a case per task, to be scored by `policy: all_pass`. All or nothing: what can't be read is an error with its line.
    """
    from eval_pipeline.specs.importers.harvey_lab import import_harvey_lab

    _tell(import_harvey_lab(tasks, into or settings.worlds_dir), into or settings.worlds_dir, as_json)


def _tell(cases: Sequence[ImportedCase], target: Path, as_json: bool) -> None:
    def people() -> None:
        rows = [[case.case, case.source, len(case.criteria)] for case in cases]
        table(["case", "source", "criteria"], rows, right=["criteria"])
        note(f"written to {target}; look at one: evals case show {cases[0].case}")

    emit({"cases": [asdict(case) for case in cases], "into": str(target)}, as_json, people)
