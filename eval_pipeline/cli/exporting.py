from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from eval_pipeline.cli.output import emit, harmless, json_option, note, with_settings
from eval_pipeline.errors import SpecError
from eval_pipeline.settings import Settings

FORMATS = ["parquet", "csv", "json"]


@click.command()
@click.argument("name")
@click.option("--format", "form", type=click.Choice(FORMATS), help="Without it: what the file's name ends in, else csv.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="A file; without it: stdout.")
@json_option
@with_settings
def command(settings: Settings, name: str, form: str | None, output: Path | None, as_json: bool) -> None:
    """The scored table of an experiment: a row a cell, with all that identifies it, its score, cost and latency.

    NAME is an experiment's id, its name for the newest of that name, or an import's name. docs/analysis.md lists the columns.
    """
    from eval_pipeline.analysis.frame import encoded, scored_frame
    from eval_pipeline.analysis.sources import cells_of, source_of
    from eval_pipeline.store.ledger import ExperimentRow
    from eval_pipeline.store.records import read_records

    ending = output.suffix.removeprefix(".") if output is not None else None
    if form is None and ending and ending not in FORMATS:
        raise SpecError(f"{output} does not end in {', '.join(FORMATS)}", hint="say what to write: --format csv")
    chosen = form or ending or "csv"
    if output is None and chosen == "parquet" and (as_json or sys.stdout.isatty()):
        raise SpecError("parquet is no text", hint="name a file: --output FILE")
    with read_records(settings) as records:
        source = source_of(settings, records, name)
        frame = scored_frame(cells_of(records, source))
    if output is None and as_json:
        emit(json.loads(encoded(frame, "json")), True, lambda: None)
        return
    data = encoded(frame, chosen)  # pyright: ignore[reportArgumentType]  # click has checked it
    if output is None:
        sys.stdout.buffer.write(data)
        return
    try:
        output.write_bytes(data)
    except OSError as error:
        raise SpecError(f"{output} can't be written: {error.strerror}", hint="name another file") from None
    whose = source.id if isinstance(source, ExperimentRow) else source.name
    told = {"experiment": whose, "rows": len(frame), "format": chosen, "file": str(output), "size_bytes": len(data)}
    emit(told, as_json, lambda: note(harmless(f"{whose}: {len(frame)} rows in {output} ({chosen})")))
