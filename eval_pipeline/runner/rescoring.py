"""Another lock for the scores of results that are there. No agent runs for it."""

from __future__ import annotations

from dataclasses import dataclass

from eval_pipeline.domain.experiment import JudgeSpec
from eval_pipeline.domain.lock import ScoredCase, ScoreLock
from eval_pipeline.errors import NotFound, SpecError
from eval_pipeline.scoring.judge_client import check_judge
from eval_pipeline.specs.library import Library
from eval_pipeline.store.ledger import ExperimentRow


@dataclass(frozen=True, kw_only=True)
class Rescoring:
    """notes: what whoever reads the new scores should know."""

    score: ScoreLock
    notes: list[str]


def rescoring(
    experiment: ExperimentRow, library: Library, judge: JudgeSpec | None, *, latest_rubric: bool, new_prices: bool
) -> Rescoring:
    """latest_rubric: the cases' rubrics and references as they are now. Raises SpecError."""
    if judge is not None:
        check_judge(judge)
    cases, notes = _latest(experiment, library) if latest_rubric else (experiment.score.cases, [])
    prices = library.prices().as_data() if new_prices else experiment.score.prices
    changed = experiment.score.model_copy(update={"judge": judge, "cases": cases, "prices": prices})
    return Rescoring(score=ScoreLock.model_validate(changed.model_dump(), strict=False), notes=notes)


def _latest(experiment: ExperimentRow, library: Library) -> tuple[dict[str, ScoredCase], list[str]]:
    notes: list[str] = []
    cases: dict[str, ScoredCase] = {}
    for locked in experiment.run.cases:
        try:
            spec = library.case(locked.name).spec
        except NotFound as error:
            raise SpecError(
                f"{experiment.id} has results of the case {locked.name}, which is no more: {error}",
                hint="leave --rubric out: the rubric of the results is stored",
            ) from None
        cases[locked.name] = ScoredCase(rubric=spec.rubric, reference=spec.reference, tags=tuple(spec.tags))
        if spec.prompt != locked.prompt:
            notes.append(f"{locked.name}: its prompt has changed since; the results answer the old one")
    return cases, notes
