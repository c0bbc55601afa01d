"""The scored table and the leaderboard of an experiment, read from the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from eval_pipeline.analysis.judged import judged_row
from eval_pipeline.analysis.leaderboard import JudgeLine, Leaderboard, leaderboard
from eval_pipeline.analysis.standing import alarms
from eval_pipeline.analysis.tables import ScoredCell, asked_of, scored_table
from eval_pipeline.domain.ids import CellKey
from eval_pipeline.scoring.judge_votes import judge_version
from eval_pipeline.store.ledger import ExperimentRow
from eval_pipeline.store.records import Records
from eval_pipeline.store.verdicts import VerdictRow
from eval_pipeline.store.views import CellView


def load_table(records: Records, experiment: ExperimentRow, keys: Sequence[str] | None = None) -> list[ScoredCell]:
    """keys: only those cells; None means all."""
    cells = records.views.cells(experiment.id, keys)
    bundles = [cell.counted.bundle for cell in cells if cell.counted is not None and cell.counted.bundle is not None]
    verdicts = records.verdicts.of_bundles(bundles) | _of_judge(records, experiment, cells)
    return scored_table(experiment, cells, verdicts)


def _of_judge(records: Records, experiment: ExperimentRow, cells: Sequence[CellView]) -> dict[str, VerdictRow]:
    """By question. Only what the experiment's judge said, as it is now: votes of another one stay apart."""
    judge = experiment.score.judge
    if judge is None:
        return {}
    asked: dict[str, bool] = {}
    for cell in cells:
        if cell.counted is not None:
            key = CellKey.parse(cell.key)
            counts = {one.id: one.per_occurrence for one in experiment.score.cases[key.case_name].rubric.criteria}
            asked |= {digest: counts[name] for name, digest in asked_of(experiment, key, cell.counted).items()}
    linked = records.judge_calls.requests(asked)
    votes = records.verdicts.votes((request for request, _ in linked.values()), judge_version(judge))
    return {
        question: judged_row(votes[request], unseen, per_occurrence=asked[question])
        for question, (request, unseen) in linked.items()
        if request in votes
    }


def load_leaderboard(records: Records, experiment: ExperimentRow) -> Leaderboard:
    board = leaderboard(experiment, load_table(records, experiment), records.views.leaked())
    return replace(board, judge=_judge_line(records, experiment), alarms=alarms(records.database, experiment.id))


def _judge_line(records: Records, experiment: ExperimentRow) -> JudgeLine | None:
    judge = experiment.score.judge
    if judge is None or not any(one.judge for case in experiment.score.cases.values() for one in case.rubric.criteria):
        return None
    version = judge_version(judge)
    spent = records.judge_calls.spend(experiment.id, version).values()
    return JudgeLine(
        model=judge.model,
        version=version,
        n_calls=sum(one.n_calls for one in spent),
        n_failed_calls=sum(one.n_failed for one in spent),
        cost_usd=float(sum(one.cost_usd for one in spent)),
        n_unpriced=sum(one.n_unpriced for one in spent),
        latency_s=sum(one.latency_s for one in spent),
    )
