"""The questions that a judge is asked about an experiment's results, with what it and what people said to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from eval_pipeline.analysis.human import human_row
from eval_pipeline.analysis.judged import judged_row
from eval_pipeline.domain.cell import Outcome
from eval_pipeline.domain.ids import CellKey
from eval_pipeline.domain.rubric import Criterion
from eval_pipeline.domain.verdict import VerdictRow
from eval_pipeline.scoring.judge_questions import judge_questions, label_digest
from eval_pipeline.scoring.judge_votes import judge_version
from eval_pipeline.scoring.verdicts import compared_state
from eval_pipeline.store.cell_views import CellView
from eval_pipeline.store.ledger import ExperimentRow
from eval_pipeline.store.records import Records
from eval_pipeline.store.reviews import Label


@dataclass(frozen=True, kw_only=True)
class JudgedQuestion:
    """digest: what labels stand under. asked: what the judge's votes do, which also covers the words that it is asked in.

    votes: of the experiment's judge as it is now, in order. judged: they as one verdict; None: it was not asked yet.
    labels: of each rater the last.
    """

    digest: str
    asked: str
    cell: CellKey
    criterion: Criterion
    bundle: str
    state_before: str | None
    votes: tuple[VerdictRow, ...]
    judged: VerdictRow | None
    labels: tuple[Label, ...]

    @property
    def by_hand(self) -> VerdictRow | None:
        """None: people have not decided it."""
        if not self.labels:
            return None
        return human_row(self.labels, self.judged, self.criterion.id, per_occurrence=self.criterion.per_occurrence)


def load_questions(
    records: Records,
    experiment: ExperimentRow,
    cells: Sequence[CellView],
    labels: Mapping[str, Sequence[Label]] | None = None,
) -> list[JudgedQuestion]:
    """In the order of the cells and their rubrics. Only of cells whose score a judge can change. labels: in place of the ledger's."""
    asked = [one for cell in cells for one in _asked(experiment, cell)]
    said = _of_judge(records, experiment, {one.asked: one.criterion.per_occurrence for one in asked})
    if labels is None:
        labels = records.reviews.labels({one.digest for one in asked}) if asked else {}
    nothing: tuple[tuple[VerdictRow, ...], VerdictRow | None] = ((), None)
    found: list[JudgedQuestion] = []
    for one in asked:
        votes, judged = said.get(one.asked, nothing)
        found.append(replace(one, votes=votes, judged=judged, labels=tuple(labels.get(one.digest, ()))))
    return found


def _asked(experiment: ExperimentRow, cell: CellView) -> list[JudgedQuestion]:
    counted = cell.counted
    if counted is None or counted.bundle is None or cell.outcome not in (Outcome.OK, Outcome.REFUSAL):
        return []
    key = CellKey.parse(cell.key)
    case, scored = experiment.run.case(key.case_name), experiment.score.cases[key.case_name]
    before = compared_state(counted.evidence)
    criteria = {one.id: one for one in scored.rubric.criteria}
    return [
        JudgedQuestion(
            digest=label_digest(case, scored, criteria[one.criterion], counted.bundle, before),
            asked=one.question_digest,
            cell=key,
            criterion=criteria[one.criterion],
            bundle=counted.bundle,
            state_before=before,
            votes=(),
            judged=None,
            labels=(),
        )
        for one in judge_questions(case, scored, counted.bundle, before)
    ]


def _of_judge(
    records: Records, experiment: ExperimentRow, asked: dict[str, bool]
) -> dict[str, tuple[tuple[VerdictRow, ...], VerdictRow]]:
    """By question. Only what the experiment's judge said, as it is now: votes of another one stay apart."""
    judge = experiment.score.judge
    if judge is None or not asked:
        return {}
    linked = records.judge_calls.requests(asked)
    votes = records.verdicts.votes((request for request, _ in linked.values()), judge_version(judge))
    return {
        question: (tuple(votes[request]), judged_row(votes[request], unseen, per_occurrence=asked[question]))
        for question, (request, unseen) in linked.items()
        if request in votes
    }
