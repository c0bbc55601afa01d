"""The scores of an experiment by world, by tag or by group of criteria: where an arm is good, and where it is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from eval_pipeline.analysis import measures
from eval_pipeline.analysis.arm_rows import Worlds
from eval_pipeline.analysis.board import Comparison
from eval_pipeline.analysis.ranking import comparison
from eval_pipeline.analysis.stats import arm_mean, contrasts, holm, score_range
from eval_pipeline.analysis.tables import ScoredCell
from eval_pipeline.store.ledger import ExperimentRow

By = Literal["world", "tag", "group"]


@dataclass(frozen=True, kw_only=True)
class SliceRow:
    """One arm in one slice. pass_rate: of whole cells, so None by group. n_scored: cells with a score here."""

    arm: str
    score: float | None
    ci_low: float | None
    ci_high: float | None
    pass_rate: float | None
    n_cells: int
    n_scored: int
    flags: list[str]


@dataclass(frozen=True, kw_only=True)
class Slice:
    """comparisons: Holm's p is adjusted over all slices together."""

    name: str
    n_cases: int
    arms: list[SliceRow]
    comparisons: list[Comparison]

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class _Part:
    name: str
    cases: frozenset[str]
    measure: measures.Measure
    span: tuple[float, float]
    worlds: Worlds


def slices(experiment: ExperimentRow, cells: Sequence[ScoredCell], by: By) -> list[Slice]:
    """In the order of the cases. By world the cases are drawn one by one: the interval is for new cases of that world."""
    arms = [arm.name for arm in experiment.run.arms]
    found = [_slice(part, cells, arms, experiment.baseline) for part in _parts(experiment, by)]
    adjusted = holm([one.p for part in found for one in part.comparisons])
    pairs = iter(zip(adjusted.p_adj, adjusted.reject, strict=True))
    return [replace(part, comparisons=[_adjusted(one, *next(pairs)) for one in part.comparisons]) for part in found]


def _adjusted(one: Comparison, p_holm: float | None, significant: bool | None) -> Comparison:
    return replace(one, p_holm=p_holm, significant=significant)


def _parts(experiment: ExperimentRow, by: By) -> list[_Part]:
    worlds, span = measures.worlds_of(experiment), measures.span_of(experiment)
    if by == "group":
        return [_group(experiment, name, cases, worlds) for name, cases in _groups(experiment).items()]
    named: dict[str, list[str]] = {}
    for case in experiment.run.cases:
        for name in [case.world] if by == "world" else experiment.score.cases[case.name].tags:
            named.setdefault(name, []).append(case.name)
    drawn = None if by == "world" else worlds
    return [
        _Part(name=name, cases=frozenset(cases), measure=measures.score, span=span, worlds=drawn) for name, cases in named.items()
    ]


def _groups(experiment: ExperimentRow) -> dict[str, list[str]]:
    """Group -> the cases in which it can give points: one that only takes them away has no score."""
    found: dict[str, list[str]] = {}
    for case in experiment.run.cases:
        criteria = experiment.score.cases[case.name].rubric.criteria
        for name in dict.fromkeys(one.group for one in criteria if one.group is not None and one.points > 0):
            found.setdefault(name, []).append(case.name)
    return found


def _group(experiment: ExperimentRow, name: str, cases: Sequence[str], worlds: Mapping[str, str]) -> _Part:
    rubrics = [experiment.score.cases[case].rubric for case in cases]
    alone = [
        rubric.model_copy(update={"criteria": tuple(one for one in rubric.criteria if one.group == name)}) for rubric in rubrics
    ]
    return _Part(
        name=name,
        cases=frozenset(cases),
        measure=lambda cell: cell.groups.get(name),
        span=score_range(experiment.score.policy, alone),
        worlds=worlds,
    )


def _slice(part: _Part, cells: Sequence[ScoredCell], arms: Sequence[str], baseline: str | None) -> Slice:
    of_arm = measures.by_arm(cell for cell in cells if cell.key.case_name in part.cases)
    means = {arm: measures.case_means(of_arm[arm], part.measure) for arm in arms}
    family = contrasts(means, baseline, part.worlds, score_range=part.span) if len(arms) > 1 else []
    return Slice(
        name=part.name,
        n_cases=len(part.cases),
        arms=[_row(arm, of_arm[arm], part) for arm in arms],
        comparisons=[comparison(one) for one in family],
    )


def _row(arm: str, cells: Sequence[ScoredCell], part: _Part) -> SliceRow:
    mean = arm_mean([(cell.key.case_name, cell.key.trial, part.measure(cell)) for cell in cells], part.worlds, part.span)
    whole = part.measure is measures.score
    return SliceRow(
        arm=arm,
        score=mean.mean,
        ci_low=mean.ci_lower,
        ci_high=mean.ci_upper,
        pass_rate=measures.mean_over_cases(cells, measures.passed) if whole else None,
        n_cells=len(cells),
        n_scored=mean.n_cells,
        flags=list(mean.flags),
    )
