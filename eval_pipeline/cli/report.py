from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from eval_pipeline.cli.output import emit, json_option, note, with_settings
from eval_pipeline.settings import Settings

_SAY_EVERY = 100


@click.command()
@click.argument("name")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder to write; reports/EXPERIMENT of the state directory when not given.",
)
@click.option(
    "--publish", metavar="S3_URL", help="Upload it, too: s3://bucket/prefix. Who may read it there is the bucket's matter."
)
@json_option
@with_settings
def command(settings: Settings, name: str, output: Path | None, publish: str | None, as_json: bool) -> None:
    """The whole result as pages for a browser: index.html with tables and plots, and a page a cell. They need no network.

    NAME is an experiment's id, or its name for the newest of that name. A report that is there already is replaced.
    """
    from eval_pipeline.analysis.report import report_folder, write_report
    from eval_pipeline.store.artifacts import open_store, publish_pages
    from eval_pipeline.store.records import read_records

    def say(done: int, of: int) -> None:
        if done % _SAY_EVERY == 0 and done < of:
            note(f"{done} of {of} cells written")

    with read_records(settings) as records:
        experiment = records.ledger.experiment(name)
        folder = output or report_folder(settings, experiment.id)
        report = write_report(records, open_store(settings), experiment, folder.absolute(), say)
    published = None if publish is None else publish_pages(report.index.parent, publish)
    data = {**asdict(report), "index": str(report.index), "published": published}
    places = "\n".join(filter(None, [str(report.index), published]))
    emit(data, as_json, lambda: click.echo(f"{report.experiment} ({report.status}): {report.n_cells} cells\n{places}"))
