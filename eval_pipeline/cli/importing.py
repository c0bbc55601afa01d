from __future__ import annotations

from pathlib import Path

import click

from eval_pipeline.cli.output import emit, json_option, note, table, with_settings
from eval_pipeline.settings import Settings


@click.group()
def command() -> None:
    """Import published benchmarks as worlds and cases."""


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

    target = into or settings.worlds_dir
    cases = import_biglaw_bench(csv_path, documents, target)
    rows = [
        {
            "case": case.case,
            "world": case.world,
            "source": case.source,
            "criteria": [{"text": c.text, "points": c.points, "per_occurrence": c.per_occurrence} for c in case.criteria],
        }
        for case in cases
    ]

    def people() -> None:
        table(
            ["case", "source", "criteria"], [[case.case, case.source, len(case.criteria)] for case in cases], right=["criteria"]
        )
        note(f"written to {target}; look at one: evals case show {cases[0].case}" if cases else "the CSV holds no rows")

    emit({"cases": rows, "into": str(target)}, as_json, people)
