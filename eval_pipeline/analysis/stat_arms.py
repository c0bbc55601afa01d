"""From cells to arms: the mean over cases, its bounds and interval, and what makes arms comparable."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from eval_pipeline.analysis.stat_intervals import Interval, case_clusters, korn_graubard, se_fixed_cases, wilson_t_cr2
from eval_pipeline.analysis.stat_scores import STATUS_RULES, Rule, cell_value

Cell = tuple[str, int, float | None]
"""case, trial, value; None is missing"""

Row = tuple[str, str, int, str, float | None]
"""arm, case, trial, status, score"""

MIN_COMMON = 0.90
MIN_VALID = 0.98
MAX_INFRA_GAP = 0.02
STRICT_CASES = 60
_SLACK = 1e-9


@dataclass(frozen=True, kw_only=True)
class ArmMean:
    """An arm's mean over cases. Counts are of planned and of non-missing cells, and of cases with at least one of those.

    bound_*: the mean if every missing planned cell had the worst or best score. ci_*: "95% CI, new cases".
    strict_*: Korn and Graubard's interval, only near an end of the range with fewer than 60 cases, else None.
    se_fixed_cases: "SE, same cases". flags: no_data, one_cluster, zero_variance, few_clusters.
    """

    n_cases_planned: int
    n_cases: int
    n_cells_planned: int
    n_cells: int
    n_clusters: int
    bound_lower: float | None
    bound_upper: float | None
    mean: float | None = None
    se: float | None = None
    df: float | None = None
    n_eff: float | None = None
    ci_lower: float | None = None
    ci_upper: float | None = None
    t_lower: float | None = None
    t_upper: float | None = None
    strict_lower: float | None = None
    strict_upper: float | None = None
    se_fixed_cases: float | None = None
    icc: float | None = None
    flags: tuple[str, ...] = ()


def arm_mean(
    cells: Iterable[Cell],
    world: Mapping[str, str] | None = None,
    score_range: tuple[float, float] = (0.0, 1.0),
    alpha: float = 0.05,
) -> ArmMean:
    """The unweighted mean of case means (never the pooled mean of cells), with the interval of `wilson_t_cr2`.

    world: the cluster of each case; a case it does not name is its own. Miller (2024), "Adding error bars to evals", with CR2
    in place of CR0. Raises ValueError for a cell that comes twice or a score outside the range.
    """
    cases = _by_case(cells)
    means = {case: math.fsum(known) / len(known) for case, values in cases.items() if (known := _known(values))}
    lower, upper = (_mean([_filled_mean(values, fill) for values in cases.values()]) for fill in score_range)
    planned = sum(len(values) for values in cases.values())
    valid = sum(len(_known(values)) for values in cases.values())
    counts = {"n_cases_planned": len(cases), "n_cases": len(means), "n_cells_planned": planned, "n_cells": valid}
    if not means:
        return ArmMean(**counts, n_clusters=0, bound_lower=lower, bound_upper=upper, flags=("no_data",))
    interval = wilson_t_cr2(list(means.values()), case_clusters(means, world), score_range, alpha)
    fixed = se_fixed_cases(list(cases.values()))
    strict_lower, strict_upper = _strict(interval, len(means), score_range, alpha)
    return ArmMean(
        **counts,
        **{field.name: getattr(interval, field.name) for field in fields(Interval)},
        bound_lower=lower,
        bound_upper=upper,
        strict_lower=strict_lower,
        strict_upper=strict_upper,
        se_fixed_cases=fixed.se,
        icc=fixed.icc,
    )


def _strict(interval: Interval, n: int, score_range: tuple[float, float], alpha: float) -> tuple[float | None, float | None]:
    low, high = score_range
    if interval.n_eff is None or interval.df is None or n >= STRICT_CASES:
        return None, None
    if 0.05 <= (interval.mean - low) / (high - low) <= 0.95:
        return None, None
    return korn_graubard(interval.mean, interval.n_eff, interval.df, score_range, alpha)


def _by_case(cells: Iterable[Cell]) -> dict[str, list[float | None]]:
    cases: dict[str, list[float | None]] = {}
    seen: set[tuple[str, int]] = set()
    for case, trial, value in cells:
        if (case, trial) in seen:
            raise ValueError(f"trial {trial} of case {case!r} comes twice: a cell counts once")
        seen.add((case, trial))
        cases.setdefault(case, []).append(value)
    return cases


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _filled_mean(values: Sequence[float | None], fill: float) -> float:
    return math.fsum(fill if value is None else value for value in values) / len(values)


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


@dataclass(frozen=True, kw_only=True)
class AdjustedMeans:
    """Means per arm. available: over the arm's own cases. common: over the cases valid in all arms. ls_means: adjusted for the
    cases an arm lacks; None for an arm without data, for all when the arms share too few cases to be linked.
    rankable: common keeps at least 90% of the cases; without it no ranks are given."""

    available: Mapping[str, float | None]
    common: Mapping[str, float | None]
    n_common: int
    n_cases: int
    rankable: bool
    ls_means: Mapping[str, float | None]


def adjusted_means(case_means: Mapping[str, Mapping[str, float | None]]) -> AdjustedMeans:
    """Compare arms whose case sets differ. case_means: arm -> case -> mean or None.

    ls_means: least squares y ~ arm + case on the case means, averaged over all cases (Searle, Speed and Milliken 1980,
    "Population marginal means in the linear model").
    """
    known = {arm: {case: m for case, m in means.items() if m is not None} for arm, means in case_means.items()}
    planned = list(dict.fromkeys(case for means in case_means.values() for case in means))
    common = [case for case in planned if all(case in means for means in known.values())]
    return AdjustedMeans(
        available={arm: _mean(list(means.values())) for arm, means in known.items()},
        common={arm: _mean([means[case] for case in common]) for arm, means in known.items()},
        n_common=len(common),
        n_cases=len(planned),
        rankable=bool(planned) and len(common) >= MIN_COMMON * len(planned) - _SLACK,
        ls_means={arm: None for arm in known} | _ls_means({arm: means for arm, means in known.items() if means}),
    )


def _ls_means(known: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The case effects are eliminated from the normal equations, which leaves one equation an arm."""
    arms = list(known)
    cases = list(dict.fromkeys(case for means in known.values() for case in means))
    if not arms or not _linked(known):
        return {}
    y = np.array([[known[arm].get(case, 0.0) for case in cases] for arm in arms])
    seen = np.array([[case in known[arm] for case in cases] for arm in arms], dtype=np.float64)
    per_case = seen.sum(axis=0)
    information = np.asarray(np.diag(seen.sum(axis=1)) - (seen / per_case) @ seen.T, dtype=np.float64)
    inverse = np.asarray(np.linalg.pinv(information), dtype=np.float64)
    effects = np.asarray(inverse @ (y.sum(axis=1) - seen @ (y.sum(axis=0) / per_case)), dtype=np.float64)
    case_effects = np.asarray((y.sum(axis=0) - effects @ seen) / per_case, dtype=np.float64)
    return {arm: float(effect + case_effects.mean()) for arm, effect in zip(arms, effects.tolist(), strict=True)}


def _linked(known: Mapping[str, Mapping[str, float]]) -> bool:
    """Whether shared cases link all arms: only then are their differences estimable."""
    rest = {arm: set(means) for arm, means in known.items()}
    reached = rest.pop(next(iter(rest)))
    while joining := [arm for arm, cases in rest.items() if cases & reached]:
        for arm in joining:
            reached |= rest.pop(arm)
    return not rest


@dataclass(frozen=True, kw_only=True)
class ArmSummary:
    """infra_rate: share of the planned cells that ended in an infrastructure failure."""

    mean: ArmMean
    status_counts: Mapping[str, int]
    infra_rate: float


def experiment_summary(
    rows: Iterable[Row],
    world: Mapping[str, str] | None = None,
    score_range: tuple[float, float] = (0.0, 1.0),
    alpha: float = 0.05,
    rules: Mapping[str, Rule] = STATUS_RULES,
) -> dict[str, ArmSummary]:
    """One summary an arm from a row for every planned cell, see `cell_value` and `arm_mean`."""
    by_arm: dict[str, list[Row]] = {}
    for row in rows:
        by_arm.setdefault(row[0], []).append(row)
    return {arm: _summary(planned, world, score_range, alpha, rules) for arm, planned in by_arm.items()}


def _summary(
    rows: Sequence[Row],
    world: Mapping[str, str] | None,
    score_range: tuple[float, float],
    alpha: float,
    rules: Mapping[str, Rule],
) -> ArmSummary:
    cells = [(case, trial, cell_value(status, score, rules)) for _, case, trial, status, score in rows]
    counts = Counter(status for _, _, _, status, _ in rows)
    return ArmSummary(
        mean=arm_mean(cells, world, score_range, alpha),
        status_counts=dict(counts),
        infra_rate=counts["infra_failure"] / len(rows),
    )


def provisional_reasons(arms: Mapping[str, ArmSummary]) -> list[str]:
    """Why a table is only provisional and shown with its bounds; empty means final.

    Final: at least 98% of the cells valid, every case valid in every arm, infra rates at most 2 points apart.
    """
    planned = sum(arm.mean.n_cells_planned for arm in arms.values())
    if not planned:
        return ["no cells are planned"]
    reasons: list[str] = []
    share = sum(arm.mean.n_cells for arm in arms.values()) / planned
    if share < MIN_VALID - _SLACK:
        reasons.append(f"{share:.1%} of {planned} cells have a score, {MIN_VALID:.0%} are needed")
    for name, arm in arms.items():
        if lacking := arm.mean.n_cases_planned - arm.mean.n_cases:
            reasons.append(f"{name}: {lacking} of {arm.mean.n_cases_planned} cases have no scored cell")
    rates = [arm.infra_rate for arm in arms.values()]
    if max(rates) - min(rates) > MAX_INFRA_GAP + _SLACK:
        reasons.append(f"infrastructure failures differ between arms: {min(rates):.1%} to {max(rates):.1%}, 2 points are allowed")
    return reasons
