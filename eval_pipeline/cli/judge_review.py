"""People label what a judge decided: drawing a sample, reading the work in the terminal or as CSV, taking labels back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eval_pipeline.cli.output import counted, emit, harmless, json_option, note, with_settings
from eval_pipeline.settings import Settings

if TYPE_CHECKING:
    from eval_pipeline.analysis.questions import JudgedQuestion
    from eval_pipeline.scoring.label_file import Sheet
    from eval_pipeline.store.ledger import ExperimentRow
    from eval_pipeline.store.records import Records
    from eval_pipeline.store.reviews import Label, ReviewItem

    Asked = tuple[ReviewItem, JudgedQuestion]


@click.command("review")
@click.argument("name", required=False)
@click.option(
    "--sample", type=click.IntRange(min=1), metavar="N", help="Ask about N cells, drawn at random, evenly from the arms."
)
@click.option(
    "--doubtful", is_flag=True, help="Ask about what is in doubt: split votes, no verdict, against checks, trials that differ."
)
@click.option("--rater", metavar="NAME", help="Who labels: the work is shown in the terminal.")
@click.option("--into", type=click.Path(dir_okay=False, path_type=Path), help="A CSV to fill in, in place of the terminal.")
@click.option("--item", metavar="ITEM", help="Only this one, whole, also when it is labelled.")
@json_option
@with_settings
def review(
    settings: Settings,
    name: str | None,
    sample: int | None,
    doubtful: bool,
    rater: str | None,
    into: Path | None,
    item: str | None,
    as_json: bool,
) -> None:
    """Have people label what the judge of an experiment decided. Neither arm nor verdict is shown.

    First draw (--sample, --doubtful), then label (--rater NAME). Without options it says what is asked and labelled. Only what was drawn at random says how good the judge is.
    """
    from eval_pipeline.errors import SpecError
    from eval_pipeline.store.records import read_records
    from eval_pipeline.store.reviews import check_rater

    if into is not None and rater is None:
        raise SpecError("--into without --rater", hint="say who fills it in: --rater NAME")
    if into is not None and into.exists():
        raise SpecError(f"{into} is there already", hint="it may hold somebody's labels: take another name")
    with read_records(settings) as records:
        if name is None and item is None:
            raise SpecError("which experiment?", hint="`evals experiment list` lists them")
        experiment = records.ledger.experiment(name or records.reviews.named(item or "").cell_key.partition("/")[0])
        n_new = _draw(records, experiment, sample, doubtful)
        asked = _asked(records, experiment, item)
        wanted = asked if item is not None else [one for one in asked if _wants(one, rater)]
        if rater is not None or item is not None:
            who = None if rater is None else check_rater(rater)
            n_said = _work(settings, records, experiment, wanted, who, into, as_json)
            asked = _asked(records, experiment, item)
        else:
            n_said = 0
    data = {
        "experiment": experiment.id,
        "n_drawn": n_new,
        "n_said": n_said,
        "into": None if into is None else str(into),
    } | _state(asked)
    emit(data, as_json, lambda: _people(data, rater))


def _draw(records: Records, experiment: ExperimentRow, sample: int | None, doubtful: bool) -> int:
    from eval_pipeline.analysis.load_tables import load_tables
    from eval_pipeline.analysis.review_queue import doubtful_queue, random_queue
    from eval_pipeline.errors import SpecError

    if sample is None and not doubtful:
        return 0
    found = load_tables(records, experiment)
    if not found.questions:
        raise SpecError(
            f"{experiment.id} has no result that a judge decides", hint="a criterion with `judge: true`, and cells that ended"
        )
    if n_open := sum(not cell.valid for cell in found.judged):
        note(f"{counted(n_open, 'cell has', 'cells have')} no result: what is drawn now says nothing of them")
    seed, n_new = experiment.run.seed, 0
    if sample is not None:
        n_new += records.reviews.draw(
            experiment.id, "random", random_queue(found.questions, seed, sample), seed=seed, n_cells=sample
        )
    if doubtful:
        items = doubtful_queue(found.questions, found.judged, seed)
        n_new += records.reviews.draw(experiment.id, "doubt", items, seed=seed, n_cells=None)
    return n_new


def _asked(records: Records, experiment: ExperimentRow, only: str | None = None) -> list[Asked]:
    """What is asked about results that still count, in the order people see."""
    from eval_pipeline.analysis.load_tables import load_tables
    from eval_pipeline.errors import NotFound

    items = records.reviews.items(experiment.id)
    if only is not None:
        named = records.reviews.named(only)
        items = [one for one in items if one.question_digest == named.question_digest]
    if not items:
        raise NotFound(f"nobody was asked about {experiment.id}", hint=f"evals judge review {experiment.name} --sample 100")
    cells = sorted({one.cell_key for one in items})
    questions = {one.digest: one for one in load_tables(records, experiment, cells).questions}
    once: dict[str, ReviewItem] = {}
    for one in items:  # what several cells share is read once
        once.setdefault(one.question_digest, one)
    return [(one, questions[digest]) for digest, one in once.items() if digest in questions]


def _wants(asked: Asked, rater: str | None) -> bool:
    """Whether it needs a label, of this rater when one is named."""
    item, question = asked
    raters = {label.rater for label in question.labels}
    return rater not in raters and len(raters) < item.raters


def _state(asked: Sequence[Asked]) -> dict[str, Any]:
    return {
        "n_items": len(asked),
        "n_labelled": sum(bool(one.labels) for _, one in asked),
        "n_waiting": sum(_wants(one, None) for one in asked),
        "items": [
            {"item": item.name, "raters_wanted": item.raters, "raters": [label.rater for label in one.labels]}
            for item, one in asked
        ],
    }


def _people(data: Mapping[str, Any], rater: str | None) -> None:
    if data["n_drawn"]:
        click.echo(f"{counted(data['n_drawn'], 'question', 'questions')} more for people")
    if data["into"] is not None:
        click.echo(f"written: {data['into']}; filled in: evals judge label {data['into']} --rater {rater}")
    click.echo(
        f"{data['experiment']}: {counted(data['n_items'], 'question', 'questions')}, {data['n_labelled']} labelled, {data['n_waiting']} waiting for labels"
    )


# ---- reading and labelling


def _work(
    settings: Settings,
    records: Records,
    experiment: ExperimentRow,
    wanted: Sequence[Asked],
    rater: str | None,
    into: Path | None,
    as_json: bool,
) -> int:
    """Returns how many labels were given here."""
    from eval_pipeline.errors import SpecError
    from eval_pipeline.runner.services import open_services
    from eval_pipeline.scoring.label_file import csv_of

    if as_json and into is None:
        raise SpecError("--json in the terminal's dialogue", hint="--into FILE writes what is to be labelled")
    with open_services(settings, records) as services:
        if into is None:
            return asyncio.run(_in_terminal(services, experiment, wanted, rater))
        found = asyncio.run(_all(services, experiment, wanted))
        into.write_text(csv_of(found), encoding="utf-8-sig", newline="")
        return 0


async def _all(services: Any, experiment: ExperimentRow, wanted: Sequence[Asked]) -> list[Sheet]:
    from eval_pipeline.runner.reviewing import sheets

    return [sheet async for sheet in sheets(services, experiment, wanted)]


async def _in_terminal(services: Any, experiment: ExperimentRow, wanted: Sequence[Asked], rater: str | None) -> int:
    """Every label is kept as soon as it is given."""
    from eval_pipeline.runner.reviewing import sheets

    n_said, shown_work = 0, None
    async for sheet in sheets(services, experiment, wanted):
        _show(sheet, whole=sheet.work != shown_work)
        shown_work = sheet.work
        if rater is None:
            continue
        label = _ask(sheet, {item.name: item.question_digest for item, _ in wanted}[sheet.name], rater)
        if label == "quit":
            break
        if label is not None:
            n_said += services.records.reviews.say([label])
    return n_said


def _show(sheet: Sheet, *, whole: bool) -> None:
    if whole:
        click.secho(f"\n{'=' * 78}\nTask", bold=True)
        click.echo(harmless(sheet.task))
        if sheet.reference:
            click.secho("\nReference", bold=True)
            click.echo(harmless(sheet.reference))
        click.secho("\nWork", bold=True)
        click.echo(harmless(sheet.work))
    click.secho(f"\nCriterion ({sheet.name})", bold=True)
    click.echo(harmless(sheet.criterion))


def _ask(sheet: Sheet, question: str, rater: str) -> Label | str | None:
    """None: skipped. `quit`: enough for today."""
    from eval_pipeline.scoring.label_file import verdict_of
    from eval_pipeline.store.reviews import Label

    while True:
        try:
            said = click.prompt(f"{sheet.answer_with}; s skips, q ends", err=True).strip()
        except click.Abort:
            return "quit"
        if said in ("s", "q"):
            return None if said == "s" else "quit"
        try:
            verdict = verdict_of(said, per_occurrence=sheet.per_occurrence)
        except ValueError as why:
            note(str(why))
            continue
        return Label(question_digest=question, rater=rater, verdict=verdict)


@click.command("label")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--rater", metavar="NAME", required=True, help="Who filled it in.")
@json_option
@with_settings
def label(settings: Settings, file: Path, rater: str, as_json: bool) -> None:
    """Take in the labels of a CSV that `judge review --into` wrote. Rows without a label stay open; all or none are taken."""
    from eval_pipeline.store.records import read_records
    from eval_pipeline.store.reviews import check_rater

    with read_records(settings) as records:
        said = labels_of(records, file, check_rater(rater))
        n_new = records.reviews.say(said)
    data = {"n_labels": len(said), "n_new": n_new}
    emit(data, as_json, lambda: click.echo(f"{counted(len(said), 'label', 'labels')}, {n_new} of them new"))
    if n_new and not as_json:
        note("they count from now on; `evals score EXPERIMENT` also writes the tables of the UI again")


def labels_of(records: Records, file: Path, rater: str) -> list[Label]:
    """Raises SpecError that names every row that is wrong."""
    from eval_pipeline.domain.ids import CellKey
    from eval_pipeline.errors import NotFound, SpecError
    from eval_pipeline.scoring.label_file import read_labels, verdict_of
    from eval_pipeline.store.reviews import Label

    wrong: list[str] = []
    found: dict[str, Label] = {}
    experiments: dict[str, ExperimentRow] = {}
    for row in read_labels(file):
        try:
            item = records.reviews.named(row.name)
            key = CellKey.parse(item.cell_key)
            if key.experiment not in experiments:
                experiments[key.experiment] = records.ledger.experiment(key.experiment)
            rubric = experiments[key.experiment].score.cases[key.case_name].rubric
            counts = any(one.id == item.criterion and one.per_occurrence for one in rubric.criteria)
            verdict = verdict_of(row.label, per_occurrence=counts)
            if item.question_digest in found:
                raise ValueError(f"{row.name} stands in the file twice")
            found[item.question_digest] = Label(question_digest=item.question_digest, rater=rater, verdict=verdict, note=row.note)
        except (NotFound, ValueError) as why:
            wrong.append(f"{file}:{row.line}: {why}")
    if wrong:
        raise SpecError("\n".join(wrong), hint="nothing was taken in: correct these rows and do it again")
    return list(found.values())
