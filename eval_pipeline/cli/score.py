from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from eval_pipeline.cli.output import (
    Failure,
    counted,
    dry_run_option,
    emit,
    examples,
    json_option,
    note,
    shown,
    table,
    with_settings,
)
from eval_pipeline.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eval_pipeline.analysis.rescored import ArmChange
    from eval_pipeline.analysis.tables import ScoredCell
    from eval_pipeline.domain.experiment import JudgeSpec
    from eval_pipeline.domain.lock import ScoreLock
    from eval_pipeline.runner.judges import JudgeReport
    from eval_pipeline.store.ledger import ExperimentRow
    from eval_pipeline.store.records import Records


@click.command(
    epilog=examples(
        "evals score demo --dry-run",
        "evals score demo --rubric latest",
        "evals score demo --judge anthropic:claude-sonnet-4-5 --votes 3",
    )
)
@click.argument("name")
@click.option("--judge", "model", metavar="PROVIDER:MODEL", help="Another judge, from now on.")
@click.option("--base-url", help="Where that judge is, when not at its provider's.")
@click.option("--votes", type=click.IntRange(min=1), help="So many calls a criterion.")
@click.option("--rubric", type=click.Choice(["latest"]), help="The cases' rubrics and references as they are now.")
@dry_run_option
@json_option
@with_settings
def command(
    settings: Settings,
    name: str,
    model: str | None,
    base_url: str | None,
    votes: int | None,
    rubric: str | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Judge the stored results of an experiment again. No agent is run, and no verdict that is there is asked for again.

    Without options it asks again what was asked in vain. The new scores replace the old ones in tables. What another scoring changes is shown, paired;
    and how many had no score, before and now. A policy or prices that changed are taken up by `evals experiment run`.
    """
    from eval_pipeline.analysis.load import load_table
    from eval_pipeline.analysis.rescored import arm_changes
    from eval_pipeline.cli.launch import launch
    from eval_pipeline.runner.rescoring import rescoring
    from eval_pipeline.specs.library import Library
    from eval_pipeline.store.records import read_records

    with read_records(settings) as records:
        before = records.ledger.experiment(name)
        judge = _judge(before, model, base_url, votes)
        changed = rescoring(
            before, Library(settings.worlds_dir), judge, latest_rubric=rubric is not None, new_prices=judge != before.score.judge
        )
        for line in changed.notes:
            note(f"note: {line}")
        if dry_run:
            _dry_run(records, before, changed.score, as_json)
            return 0
        old = before.score
        if changed.score.digest != before.score.digest:
            records.scorings.set(before.id, changed.score)
        elif len(history := records.scorings.history(before.id)) > 1:
            old = history[-2].score
        experiment = records.ledger.experiment(before.id)
        n_missing_before = _without_score(load_table(records, before))
        report = _ask(settings, records, experiment)
        launch(settings, experiment, only_score=True).process.wait()  # the tables that the UI shows
        now = load_table(records, experiment)
        comparable = old.policy == experiment.score.policy and old.digest != experiment.score.digest
        changes = arm_changes(experiment, load_table(records, replace(experiment, score=old)), now) if comparable else []
    n_missing = _without_score(now)
    data = {
        "experiment": experiment.id,
        "score_lock": experiment.score.digest,
        "compared_with": old.digest if changes else None,
        "n_calls": report.n_calls,
        "n_failed": report.n_failed,
        "stopped": report.stopped,
        "n_without_score_before": n_missing_before,
        "n_without_score": n_missing,
        "arms": [asdict(one) for one in changes],
    }
    emit(data, as_json, lambda: _people(data, changes), failure := _failure(report, n_missing))
    return 0 if failure is None else 3 if failure.code == "budget_exceeded" else 1


def _without_score(table: Sequence[ScoredCell]) -> int:
    return sum(cell.valid and cell.score is None for cell in table)


def _dry_run(records: Records, before: ExperimentRow, score: ScoreLock, as_json: bool) -> None:
    from eval_pipeline.runner.finish import unjudged
    from eval_pipeline.runner.judges import open_cells
    from eval_pipeline.scoring.judge_votes import judge_version

    row = replace(before, score=score)
    cells = open_cells(records, row, again=True)
    n_calls = sum(cell.n_calls for cell in cells)
    mean = None if score.judge is None else records.judge_calls.mean_cost_usd(judge_version(score.judge))
    data = {
        "experiment": row.id,
        "score_lock": score.digest,
        "changes_scoring": score.digest != before.score.digest,
        "judge": None if score.judge is None else score.judge.model,
        "cells_to_check": sorted(unjudged(records, row)),
        "cells_to_judge": [cell.key for cell in cells],
        "n_calls": n_calls,
        "cost_usd": 0.0 if not n_calls else None if mean is None else float(mean[0] * n_calls),
        "dry_run": True,
    }

    def people() -> None:
        usd = "at an unknown cost: it has made no call yet" if data["cost_usd"] is None else f"{data['cost_usd']:.4f} USD"
        calls = f"at most {counted(n_calls, 'call', 'calls')} of {data['judge'] or 'no judge'}, {usd}"
        checks = counted(len(data["cells_to_check"]), "cell", "cells")
        click.echo(f"{row.id}: {calls}; the checks of {checks} would run. Dry run: nothing was changed")

    emit(data, as_json, people)


def _judge(experiment: ExperimentRow, model: str | None, base_url: str | None, votes: int | None) -> JudgeSpec | None:
    from eval_pipeline.domain.experiment import JudgeSpec
    from eval_pipeline.errors import SpecError

    judge = experiment.score.judge if model is None else JudgeSpec(model=model)
    if judge is None and (base_url is not None or votes is not None):
        raise SpecError(f"{experiment.id} has no judge", hint="name one: --judge PROVIDER:MODEL")
    given: dict[str, Any] = {"base_url": base_url, "votes": votes}
    return None if judge is None else judge.model_copy(update={key: value for key, value in given.items() if value is not None})


def _ask(settings: Settings, records: Records, experiment: ExperimentRow) -> JudgeReport:
    from eval_pipeline.runner.finish import judge_missing
    from eval_pipeline.runner.services import open_services

    with open_services(settings, records) as services:
        return asyncio.run(judge_missing(services, experiment, again=True))


def _failure(report: JudgeReport, n_missing: int) -> Failure | None:
    if report.out_of_budget:
        return Failure(
            "budget_exceeded", str(report.stopped), "raise budget.cost_usd in the file, run it again, then this command"
        )
    if report.stopped is not None or n_missing:
        why = report.stopped or f"{n_missing} valid cells have no score"
        return Failure("not_judged", why, "`evals cell show KEY` says why; the same command asks again")
    return None


def _people(data: dict[str, Any], changes: list[ArmChange]) -> None:
    click.echo(f"{data['experiment']}: {data['n_calls']} calls of its judge, {data['n_failed']} criteria without a verdict")
    if data["n_without_score_before"]:
        click.echo(f"valid cells without a score: {data['n_without_score_before']} before, {data['n_without_score']} now")
    if not changes:
        return
    rows = [
        [one.arm, one.old, one.new, one.change.diff, _interval(one), f"{one.n_differ}/{one.n_cells}", ", ".join(one.change.flags)]
        for one in changes
    ]
    columns = ["arm", "old", "new", "new - old", "95% CI", "cells that differ", "flags"]
    table(columns, rows, "the same results under the old and the new scoring, paired by case", right=columns[1:6])


def _interval(one: ArmChange) -> str:
    low, high = one.change.ci_lower, one.change.ci_upper
    return "-" if low is None else f"{shown(low)} to {shown(high)}"
