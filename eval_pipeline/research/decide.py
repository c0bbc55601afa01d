"""Whether a candidate is better than the incumbent, on the same cases: the test for dev and for the holdout. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from eval_pipeline.analysis.stats import loop_value, non_inferiority, paired_difference, paired_log_ratio
from eval_pipeline.research.goal import BOUNDED, Constraint, Metric

Trials = Mapping[str, Sequence[float | None]]
"""Case -> the column's value in each planned trial; None: it could not be had."""
Columns = Mapping[str, Trials]
Span = tuple[float, float]
Role = Literal["candidate", "baseline"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """b, the candidate, against a. effect: mean difference b - a (kind difference) or ratio of means b / a (kind ratio).

    better: in the metric's direction, p below alpha, and the constraint held. why: in a few words. n_missing: cells of either arm
    without a value. constraint: None: the metric has none. p None: no test could be made, which accepts nothing.
    """

    better: bool
    why: str
    kind: Literal["difference", "ratio"]
    effect: float | None
    ci_lower: float | None
    ci_upper: float | None
    p: float | None
    alpha: float
    mean_a: float | None
    mean_b: float | None
    n_cases: int
    n_missing: int
    flags: tuple[str, ...] = ()
    constraint_held: bool | None = None
    constraint_value: float | None = None


def decide(
    metric: Metric, a: Columns, b: Columns, world: Mapping[str, str] | None, alpha: float, span: Mapping[str, Span]
) -> Verdict:
    """a: the incumbent, b: the candidate. world: of each case; None: the cases are clusters of their own. span: of bounded columns.

    A missing cell counts as the worst for the candidate and the best for the incumbent; where there is no worst value it accepts nothing.
    """
    compared = _difference if metric.column in BOUNDED else _ratio
    found = compared(metric, a[metric.column], b[metric.column], world, alpha, span)
    if metric.constraint is None:
        return found
    held, value = _constraint(metric.constraint, a, b, world, alpha, span)
    return _with_constraint(found, metric.constraint, held, value)


def _difference(
    metric: Metric, a: Trials, b: Trials, world: Mapping[str, str] | None, alpha: float, span: Mapping[str, Span]
) -> Verdict:
    limits = span[metric.column]
    means_a = filled(a, "baseline", limits, upward=metric.upward)
    means_b = filled(b, "candidate", limits, upward=metric.upward)
    found = paired_difference(means_a, means_b, world, alpha, limits)
    right = found.diff is not None and (found.diff > 0) == metric.upward and found.diff != 0
    better = right and found.p is not None and found.p < alpha
    return Verdict(
        better=better,
        why=_why(better, right, found.p, alpha, found.flags),
        kind="difference",
        effect=found.diff,
        ci_lower=found.ci_lower,
        ci_upper=found.ci_upper,
        p=found.p,
        alpha=alpha,
        mean_a=_mean(means_a),
        mean_b=_mean(means_b),
        n_cases=found.n_shared,
        n_missing=_n_missing(a) + _n_missing(b),
        flags=found.flags,
    )


def _ratio(
    metric: Metric, a: Trials, b: Trials, world: Mapping[str, str] | None, alpha: float, _span: Mapping[str, Span]
) -> Verdict:
    found = paired_log_ratio(known(a), known(b), world, alpha)
    right = found.ratio is not None and (found.ratio > 1 if metric.upward else found.ratio < 1)
    missing = _n_missing(a) + _n_missing(b)
    better = right and found.p is not None and found.p < alpha and not missing
    why = f"{missing} cells have no known {metric.column}" if missing else _why(better, right, found.p, alpha, found.flags)
    return Verdict(
        better=better,
        why=why,
        kind="ratio",
        effect=found.ratio,
        ci_lower=found.ci_lower,
        ci_upper=found.ci_upper,
        p=found.p,
        alpha=alpha,
        mean_a=found.mean_a,
        mean_b=found.mean_b,
        n_cases=found.n_shared,
        n_missing=missing,
        flags=found.flags,
    )


def _why(better: bool, right: bool, p: float | None, alpha: float, flags: tuple[str, ...]) -> str:
    if better:
        return "better"
    if p is None:
        return f"can't be told ({', '.join(flags) or 'no test'})"
    return f"p is {p:.3g}, not below {alpha:.3g}" if right else "not better"


def _constraint(
    rule: Constraint, a: Columns, b: Columns, world: Mapping[str, str] | None, alpha: float, span: Mapping[str, Span]
) -> tuple[bool, float | None]:
    """Whether it holds, and the lower bound of the difference (margin) or the candidate's mean."""
    if rule.margin is not None:
        limits = span[rule.column]
        arms = filled(a[rule.column], "baseline", limits), filled(b[rule.column], "candidate", limits)
        found = non_inferiority(*arms, rule.margin, world, alpha, limits)
        return found.non_inferior is True, found.lower
    mean = _mean(known(b[rule.column]))
    if mean is None or _n_missing(b[rule.column]):
        return False, mean
    above, below = rule.at_least is None or mean >= rule.at_least, rule.at_most is None or mean <= rule.at_most
    return above and below, mean


def _with_constraint(found: Verdict, rule: Constraint, held: bool, value: float | None) -> Verdict:
    asked = next(f"{name} {given:g}" for name in ("margin", "at_most", "at_least") if (given := getattr(rule, name)) is not None)
    why = found.why if held or not found.better else f"better, but {rule.column} ({asked}) is not held"
    return replace(found, better=found.better and held, why=why, constraint_held=held, constraint_value=value)


def filled(trials: Trials, role: Role, span: Span, *, upward: bool = True) -> dict[str, float | None]:
    """Means over all planned trials. upward: larger is better."""
    fill = (
        (lambda value: loop_value(value, role, span))
        if upward
        else (lambda value: -loop_value(_minus(value), role, _turned(span)))
    )
    return {case: fmean(fill(value) for value in values) for case, values in trials.items()}


def _minus(value: float | None) -> float | None:
    return None if value is None else -value


def _turned(span: Span) -> Span:
    return -span[1], -span[0]


def known(trials: Trials) -> dict[str, float | None]:
    """Means over the trials that have a value; None: none has."""
    found = {case: [value for value in values if value is not None] for case, values in trials.items()}
    return {case: fmean(values) if values else None for case, values in found.items()}


def _mean(by_case: Mapping[str, float | None]) -> float | None:
    values = [value for value in by_case.values() if value is not None]
    return fmean(values) if values else None


def _n_missing(trials: Trials) -> int:
    return sum(value is None for values in trials.values() for value in values)


def gain(metric: Metric, a: Columns, b: Columns, world: Mapping[str, str], span: Mapping[str, Span]) -> Verdict:
    """What is published: b against a on the cases where both have a value; nothing is filled in. The interval is 95%, new cases."""
    means = known(a[metric.column]), known(b[metric.column])
    both = [case for case, value in means[0].items() if value is not None and means[1].get(case) is not None]
    left, right = ({case: [side[case]] for case in both} for side in means)
    found = (_difference if metric.column in BOUNDED else _ratio)(metric, left, right, world, 0.05, span)
    return replace(found, n_missing=_n_missing(a[metric.column]) + _n_missing(b[metric.column]))
