"""How far a judge may be trusted, as people's labels have it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from eval_pipeline.cli.judge_review import labels_of
from eval_pipeline.cli.output import emit, json_option, shown, table, with_settings
from eval_pipeline.settings import Settings

if TYPE_CHECKING:
    from eval_pipeline.analysis.calibration import Calibration, Interval
    from eval_pipeline.analysis.corrected import CorrectedArm
    from eval_pipeline.analysis.load_calibration import JudgeCalibration
    from eval_pipeline.store.records import Records


@click.command("calibrate")
@click.argument("target", required=False, metavar="[EXPERIMENT|LABELS.csv]")
@json_option
@with_settings
def calibrate(settings: Settings, target: str | None, as_json: bool) -> None:
    """How far a judge may be trusted, as people's labels have it.

    Its agreement with people, also by arm, its biases, and the arms' scores corrected. Of an experiment; or by the labels of a file alone, which is not taken in; without either, every judge over all experiments. Only criteria that were drawn at random count.
    """
    from eval_pipeline.analysis.load_calibration import load_judges
    from eval_pipeline.store.records import read_records

    with read_records(settings) as records:
        if target is None:
            judges = load_judges(records)
            emit([asdict(one) for one in judges], as_json, lambda: _show_judges(judges))
            return
        found = _of_one(settings, records, target)
    emit(asdict(found), as_json, lambda: _show(found))


def _of_one(settings: Settings, records: Records, target: str) -> JudgeCalibration:
    from eval_pipeline.analysis.load_calibration import load_calibration
    from eval_pipeline.errors import SpecError
    from eval_pipeline.store.artifacts import open_store

    name, labels = target, None
    if target.endswith(".csv"):
        said = labels_of(records, Path(target), "file")
        names = {records.reviews.named(one.question_digest).cell_key.partition("/")[0] for one in said}
        if len(names) != 1:
            raise SpecError(f"the labels are of {len(names)} experiments", where=target, hint="calibrate by one at a time")
        name, labels = names.pop(), {one.question_digest: [one] for one in said}
    experiment = records.ledger.experiment(name)
    found = load_calibration(records, experiment, open_store(settings), labels)
    if found is None:
        raise SpecError(f"{experiment.id} has no result that a judge decides", hint="a criterion with `judge: true`, and a judge")
    return found


def _show_judges(judges: Sequence[JudgeCalibration]) -> None:
    if not judges:
        click.echo("nobody was asked to label anything: evals judge review EXPERIMENT --sample 100")
        return
    rows = [
        [
            one.judge,
            one.version,
            one.calibration.badge,
            one.calibration.n_labelled,
            *_rates(one.calibration),
            len(one.experiments),
        ]
        for one in judges
    ]
    columns = ["judge", "version", "badge", "labelled", "kappa", "TPR", "TNR", "agreement", "experiments"]
    table(columns, rows, right=columns[3:])


def _rates(found: Calibration) -> list[float | None]:
    return [found.whole.kappa, found.whole.tpr, found.whole.tnr, found.whole.raw_agreement]


def _show(one: JudgeCalibration) -> None:
    found, whole = one.calibration, one.calibration.whole
    click.secho(f"{one.judge} ({one.version}): {found.badge}", bold=True)
    for reason in found.reasons:
        click.echo(f"  {reason}")
    click.echo(
        f"drawn at random: {found.n_drawn} criteria; labelled {found.n_labelled} of {found.n_cells} cells, by several people {found.n_double}"
        f" (disputed {found.n_disputed}); without the judge's verdict {found.n_no_verdict}"
    )
    rates = [
        ["kappa", whole.kappa, _interval(whole.kappa_ci)],
        ["TPR", whole.tpr, _interval(whole.tpr_ci)],
        ["TNR", whole.tnr, _interval(whole.tnr_ci)],
        ["agreement", whole.raw_agreement, _interval(whole.raw_agreement_ci)],
        ["people's alpha", found.raters.nominal, _interval(found.raters.nominal_ci)],
        ["between its votes", found.repeat_agreement, "-"],
    ]
    table(["judge against people", "value", "95% CI"], rates, right=["value", "95% CI"])
    rows = [[arm.arm, arm.family, arm.n_cells, arm.n, arm.kappa, arm.tpr, arm.tnr, arm.p_tpr, arm.p_tnr] for arm in found.arms]
    columns = ["arm", "family", "cells", "criteria", "kappa", "TPR", "TNR", "p TPR", "p TNR"]
    table(columns, rows, "\nby arm; p (Holm): that the arm's rate is that of the others", right=columns[2:])
    _show_biases(found)
    _show_means(one.means)


def _show_biases(found: Calibration) -> None:
    biases = found.biases
    gaps = ", ".join(f"{family} {gap:+.3f}" for family, gap in biases.families.items())
    click.echo(f"\nself-preference: the judge is of {biases.judge_family}; judge - people by family: {gaps or '-'}")
    click.echo(
        f"verbosity: rank correlation of length with its verdicts {shown(biases.verbosity)}, with judge - people {shown(biases.verbosity_gap)}"
    )
    click.echo("position: it sees one work at a time, so there is none")
    for name, share in found.abstaining.items():
        click.echo(f"it could not tell in {share:.0%} of {name}: the criterion's text needs work")


def _show_means(means: Sequence[CorrectedArm]) -> None:
    rows = [
        [
            arm.arm,
            f"{arm.n_labelled}/{arm.n_judged}",
            arm.raw,
            arm.corrected,
            _interval(None if arm.ci_low is None or arm.ci_high is None else (arm.ci_low, arm.ci_high)),
            arm.pass_raw,
            arm.pass_corrected,
            _interval(None if arm.pass_ci_low is None or arm.pass_ci_high is None else (arm.pass_ci_low, arm.pass_ci_high)),
            ", ".join(arm.flags),
        ]
        for arm in means
    ]
    columns = ["arm", "labelled", "score", "corrected", "95% CI", "pass", "pass corrected", "its 95% CI", "flags"]
    table(columns, rows, "\nraw, and corrected by the cells that people labelled", right=columns[1:8])


def _interval(ends: Interval) -> str:
    return "-" if ends is None else f"{shown(ends[0])} to {shown(ends[1])}"
