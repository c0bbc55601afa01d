"""From verdicts to a cell's score, and from a status to the number that enters a mean."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from eval_pipeline.domain.experiment import Policy
from eval_pipeline.domain.rubric import DEFAULT_CAP, Criterion, Rubric

Rule = Literal["score", "zero", "zero_if_unscored", "missing"]

STATUS_RULES: Mapping[str, Rule] = {
    "ok": "score",
    "agent_error": "zero",
    "agent_timeout": "zero",
    "budget_exceeded": "zero",
    "refusal": "zero_if_unscored",
    "infra_failure": "missing",
    "judge_failure": "missing",
    "cancelled": "missing",
}

PASS_TOLERANCE = 1e-9


@dataclass(frozen=True, kw_only=True)
class CriterionVerdict:
    """A criterion's weight with what was decided about it.

    verdict: 1, 0 or 0.5 (a tie) of an ordinary criterion, a count of a per-occurrence one; None could not be had.
    cap: of a per-occurrence criterion only; None is 5.
    """

    weight: float
    verdict: float | None
    per_occurrence: bool = False
    cap: int | None = None
    critical: bool = False

    def __post_init__(self) -> None:
        if not math.isfinite(self.weight):
            raise ValueError(f"a criterion's weight must be a finite number, found {self.weight}")
        if self.cap is not None and self.cap < 1:
            raise ValueError(f"a criterion's cap must be 1 or more, found {self.cap}")

    @classmethod
    def of(cls, criterion: Criterion, verdict: float | None) -> CriterionVerdict:
        return cls(
            weight=criterion.points,
            verdict=verdict,
            per_occurrence=criterion.per_occurrence,
            cap=criterion.cap,
            critical=criterion.critical,
        )

    @property
    def effective_cap(self) -> int:
        return (self.cap or DEFAULT_CAP) if self.per_occurrence else 1

    @property
    def count(self) -> float | None:
        """The verdict within 0..cap. A negative or non-finite one is a failed judge call: None."""
        return capped_count(self.verdict, self.effective_cap)

    @property
    def satisfied(self) -> bool | None:
        """Positive weight: met to its cap; negative: not at all; a tie is neither. None without a verdict."""
        if self.count is None:
            return None
        return self.count == (self.effective_cap if self.weight > 0 else 0)


@dataclass(frozen=True, kw_only=True)
class CellScore:
    """All None when no criterion has a positive weight. raw, score and minmax are None when a verdict is missing;
    lower and upper then bound the score over everything the missing verdicts could have been."""

    raw: float | None
    score: float | None
    minmax: float | None
    lower: float | None
    upper: float | None


def capped_count(value: object, cap: int) -> float | None:
    """A count within 0..cap: what exceeds the cap counts as the cap; what is negative or no number is None."""
    if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        return None
    return float(min(value, cap))


def median_count(votes: Iterable[object], cap: int = DEFAULT_CAP) -> float | None:
    """The median of a per-occurrence criterion's valid votes, each capped first; x.5 at an even tie stays. None: none is valid."""
    counts = [count for vote in votes if not isinstance(vote, bool) and (count := capped_count(vote, cap)) is not None]
    return float(median(counts)) if counts else None


def score_cell(criteria: Sequence[CriterionVerdict], policy: Policy = "clip_cell") -> CellScore:
    """Score one cell by its rubric.

    raw = sum(w k) / W with W the sum of the positive w cap; clip_cell clips it to [0, 1] (HealthBench clips after averaging
    instead, see `healthbench_aggregate`); minmax maps what the rubric can give onto [0, 1] (PRBench's normalised points);
    all_pass is 1 iff every positive criterion is met and no negative one is (Harvey LAB).
    Deviation: counts per occurrence, capped; a criterion with a cap equals `cap` ordinary ones of its weight.
    """
    if not _positive_total(criteria) > 0:
        return CellScore(raw=None, score=None, minmax=None, lower=None, upper=None)
    lower, upper = (_value(criteria, _filled(criteria, best=best), policy) for best in (False, True))
    counts = [criterion.count for criterion in criteria]
    known = [count for count in counts if count is not None]
    if len(known) < len(counts):
        return CellScore(raw=None, score=None, minmax=None, lower=lower, upper=upper)
    return CellScore(
        raw=_value(criteria, known, "raw"),
        score=_value(criteria, known, policy),
        minmax=_value(criteria, known, "minmax"),
        lower=lower,
        upper=upper,
    )


def score_groups(
    criteria: Sequence[CriterionVerdict], groups: Sequence[str | None], policy: Policy = "clip_cell"
) -> dict[str, CellScore]:
    """`score_cell` of each group's criteria alone, by name; criteria of no group are left out. groups: one a criterion.

    A group without a positive weight has no score: all None.
    """
    members: dict[str, list[CriterionVerdict]] = {}
    for criterion, group in zip(criteria, groups, strict=True):
        if group is not None:
            members.setdefault(group, []).append(criterion)
    return {group: score_cell(found, policy) for group, found in members.items()}


def _positive_total(criteria: Sequence[CriterionVerdict]) -> float:
    return math.fsum(c.weight * c.effective_cap for c in criteria if c.weight > 0)


def _filled(criteria: Sequence[CriterionVerdict], *, best: bool) -> list[float]:
    """The counts, the missing ones as good (or as bad) for the score as they could be."""
    return [
        c.count if c.count is not None else float(c.effective_cap if (c.weight > 0) == best else 0)
        for c in criteria
    ]  # fmt: skip


def _value(criteria: Sequence[CriterionVerdict], counts: Sequence[float], policy: Policy) -> float:
    positive = _positive_total(criteria)
    negative = math.fsum(c.weight * c.effective_cap for c in criteria if c.weight < 0)
    points = math.fsum(c.weight * count for c, count in zip(criteria, counts, strict=True))
    match policy:
        case "raw":
            return points / positive
        case "clip_cell":
            return min(max(points / positive, 0.0), 1.0)
        case "minmax":
            return (points - negative) / (positive - negative)
        case "all_pass":
            perfect = (
                count == (c.effective_cap if c.weight > 0 else 0) for c, count in zip(criteria, counts, strict=True) if c.weight
            )
            return float(all(perfect))


def score_range(policy: Policy, rubrics: Iterable[Rubric]) -> tuple[float, float]:
    """Lowest and highest score a case of the table can get. Raises ValueError for raw without a rubric."""
    if policy != "raw":
        return 0.0, 1.0
    lows = [_lowest_raw(rubric) for rubric in rubrics]
    if not lows:
        raise ValueError("the range of raw scores needs the rubrics of the cases, found none")
    return min(lows), 1.0


def _lowest_raw(rubric: Rubric) -> float:
    worth = [criterion.points * criterion.effective_cap for criterion in rubric.criteria]
    return math.fsum(w for w in worth if w < 0) / math.fsum(w for w in worth if w > 0)


def critical_ok(criteria: Iterable[CriterionVerdict]) -> list[bool | None]:
    return [criterion.satisfied for criterion in criteria if criterion.critical]


def pass_cell(score: float | None, threshold: float, critical_ok: Sequence[bool | None] = ()) -> bool | None:
    """score >= threshold (up to 1e-9 of rounding) and every critical criterion satisfied. None when any of them is None."""
    if score is None or any(ok is None for ok in critical_ok):
        return None
    return score >= threshold - PASS_TOLERANCE and all(critical_ok)


def cell_value(status: str, score: float | None, rules: Mapping[str, Rule] = STATUS_RULES) -> float | None:
    """What a cell of this status counts as in a mean; None is missing. Raises ValueError for an unknown status.

    An agent's failure is a result: 0. An answer that was verified and scored in spite of an exception has status ok.
    """
    if status not in rules:
        raise ValueError(f"unknown status {status!r}: one of {', '.join(sorted(rules))}")
    match rules[status]:
        case "score":
            return score
        case "zero":
            return 0.0
        case "zero_if_unscored":
            return 0.0 if score is None else score
        case "missing":
            return None


@dataclass(frozen=True, kw_only=True)
class HealthBenchAggregate:
    mean_unclipped: float | None
    score: float | None
    mean_of_clipped: float | None


def healthbench_aggregate(case_scores: Iterable[float | None]) -> HealthBenchAggregate:
    """HealthBench's mean (simple-evals): raw scores are averaged, then clipped. None is left out; nothing left gives None.

    mean_of_clipped is the other convention, for comparison; the two never mix in a table.
    """
    scores = [score for score in case_scores if score is not None]
    if not scores:
        return HealthBenchAggregate(mean_unclipped=None, score=None, mean_of_clipped=None)
    mean = math.fsum(scores) / len(scores)
    clipped = math.fsum(min(max(score, 0.0), 1.0) for score in scores) / len(scores)
    return HealthBenchAggregate(mean_unclipped=mean, score=min(max(mean, 0.0), 1.0), mean_of_clipped=clipped)
