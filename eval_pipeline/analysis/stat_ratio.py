"""Ratios of costs and latencies: of two arms on shared cases, and of cost to solved cases. Never a mean of ratios."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from eval_pipeline.analysis.stat_distributions import t_quantile, t_two_sided
from eval_pipeline.analysis.stat_intervals import EPS, Floats, case_clusters, cluster_sums, cr2, few_clusters
from eval_pipeline.analysis.stat_pairs import CaseMeans, Pairs, shared_pairs

Bound = Literal["lower", "upper", "restricted"]


@dataclass(frozen=True, kw_only=True)
class LogRatio:
    """ratio: mean of b / mean of a over the shared cases; below 1 b is cheaper (or faster).

    bound: with timeouts the ratio is a "lower" or "upper" bound of the true one, or with timeouts in both arms the ratio of
    "restricted" means and no bound. flags: no_shared_cases, unequal_limits, zero_denominator, zero_cost, one_cluster,
    one_cluster_carries_all, zero_variance, few_clusters, censored.
    """

    n_shared: int
    mean_a: float | None = None
    mean_b: float | None = None
    ratio: float | None = None
    se_log: float | None = None
    df: float | None = None
    p: float | None = None
    ci_lower: float | None = None
    ci_upper: float | None = None
    bound: Bound | None = None
    flags: tuple[str, ...] = ()


def paired_log_ratio(
    a: CaseMeans,
    b: CaseMeans,
    world: Mapping[str, str] | None = None,
    alpha: float = 0.05,
    timeouts: Mapping[str, int] | None = None,
    limits: tuple[Mapping[str, float], Mapping[str, float]] | None = None,
) -> LogRatio:
    """The ratio of means of b to a, its log's error by the jackknife over clusters (Quenouille 1956; Tukey 1958).

    a, b: case means over cells with a known value, 0 or more; a timed-out cell's latency is its limit. timeouts: how many cells of
    "a" and "b" were cut off at their limit (latency only). limits: the time limits by case; cases whose limits differ between
    the arms leave no ratio. Deviation: t on Bell-McCaffrey df; approximate for heavy tails below 30 cases (91-93% for 95%).
    """
    pairs = shared_pairs(a, b, world)
    if not len(pairs.a):
        return LogRatio(n_shared=0, flags=("no_shared_cases",))
    if min(float(pairs.a.min()), float(pairs.b.min())) < 0.0:
        raise ValueError("costs and latencies must not be negative")
    if limits is not None and _unequal(a, b, limits):
        return LogRatio(n_shared=len(pairs.a), flags=("unequal_limits",))
    bound, flags = _censoring(timeouts or {})
    mean_a, mean_b = float(pairs.a.mean()), float(pairs.b.mean())
    ratio = mean_b / mean_a if mean_a > 0.0 else None
    se_log, df, reasons = _jackknife(pairs, ratio)
    known = {"n_shared": len(pairs.a), "mean_a": mean_a, "mean_b": mean_b, "ratio": ratio, "se_log": se_log, "df": df}
    bound = bound if ratio is not None else None
    if not ratio or not se_log or df is None:
        return LogRatio(**known, bound=bound, flags=(*reasons, *flags))
    reach = t_quantile(1.0 - alpha / 2.0, df) * se_log
    return LogRatio(
        **known,
        p=t_two_sided(math.log(ratio) / se_log, df),
        ci_lower=ratio * math.exp(-reach),
        ci_upper=ratio * math.exp(reach),
        bound=bound,
        flags=(*reasons, *flags),
    )


def _unequal(a: CaseMeans, b: CaseMeans, limits: tuple[Mapping[str, float], Mapping[str, float]]) -> bool:
    shared = [case for case, value in a.items() if value is not None and b.get(case) is not None]
    return any(limits[0].get(case) != limits[1].get(case) for case in shared)


def _censoring(timeouts: Mapping[str, int]) -> tuple[Bound | None, tuple[str, ...]]:
    match timeouts.get("a", 0) > 0, timeouts.get("b", 0) > 0:
        case False, False:
            return None, ()
        case True, True:
            return "restricted", ("censored",)
        case late_a, _:
            return "upper" if late_a else "lower", ("censored",)


def _jackknife(pairs: Pairs, ratio: float | None) -> tuple[float | None, float | None, tuple[str, ...]]:
    """se_log, df and what stands against an interval."""
    if ratio is None:
        return None, None, ("zero_denominator",)
    if ratio == 0.0:
        return None, None, ("zero_cost",)
    df = cr2(pairs.a, pairs.clusters).df
    if df is None:
        return None, None, ("one_cluster",)
    above, below = (_leaving_one_out(cluster_sums(values, pairs.clusters)[0]) for values in (pairs.b, pairs.a))
    if min(float(above.min()), float(below.min())) <= 0.0:
        return None, None, ("one_cluster_carries_all",)
    logs = np.log(above / below)
    se_log = math.sqrt((len(logs) - 1) * float(logs.var()))
    if se_log <= EPS:
        return 0.0, df, ("zero_variance", *few_clusters(df))
    return se_log, df, few_clusters(df)


def _leaving_one_out(sums: Floats) -> Floats:
    """Added up from both ends, not subtracted from the total: what is left of zeros is 0 exactly."""
    before = np.concatenate([[0.0], np.cumsum(sums)[:-1]])
    after = np.concatenate([np.cumsum(sums[::-1])[::-1][1:], [0.0]])
    return before + after


CostCell = tuple[str, int, float | None, float | None]
"""case, trial, cost, passed (1 or 0); None: passed could not be had, or the cost has no price"""


@dataclass(frozen=True, kw_only=True)
class CostPerSolved:
    """overhead_cost_infra: cost of the cells without a result, outside the rest; None when one of them has no price.

    n_unpriced: cells with a result whose cost is unknown, left out. flags: no_data, none_solved, zero_cost, one_case.
    """

    n_cases: int
    n_unpriced: int
    overhead_cost_infra: float | None
    mean_cost: float | None = None
    pass_rate: float | None = None
    cost_per_solved: float | None = None
    se_log: float | None = None
    ci_lower: float | None = None
    ci_upper: float | None = None
    flags: tuple[str, ...] = ()


def cost_per_solved(cells: Iterable[CostCell], alpha: float = 0.05, world: Mapping[str, str] | None = None) -> CostPerSolved:
    """Mean cost over mean pass rate, cases weighing alike, with a log interval by linearisation (Cochran 1977, "Sampling
    techniques", chapter 6; delta method on the log).

    Infinite when nothing was solved. Deviation: with worlds the error is CR2's on its own df; without, sd / sqrt(n) and n - 1.
    """
    rows = list(cells)
    overhead = [cost for _, _, cost, passed in rows if passed is None]
    unpriced = sum(cost is None for _, _, cost, passed in rows if passed is not None)
    by_case: dict[str, list[tuple[float, float]]] = {}
    for case, _, cost, passed in rows:
        if cost is not None and passed is not None:
            by_case.setdefault(case, []).append((cost, float(passed)))
    counts = {"n_cases": len(by_case), "n_unpriced": unpriced, "overhead_cost_infra": _total(overhead)}
    if not by_case:
        return CostPerSolved(**counts, flags=("no_data",))
    means = np.array([np.mean(values, axis=0) for values in by_case.values()], dtype=np.float64)
    mean_cost, pass_rate = (float(mean) for mean in means.mean(axis=0))
    known = {**counts, "mean_cost": mean_cost, "pass_rate": pass_rate}
    if pass_rate <= EPS and mean_cost <= EPS:
        return CostPerSolved(**known, flags=("none_solved", "zero_cost"))
    if pass_rate <= EPS:
        return CostPerSolved(**known, cost_per_solved=math.inf, ci_upper=math.inf, flags=("none_solved",))
    ratio = mean_cost / pass_rate
    if mean_cost <= EPS:
        return CostPerSolved(**known, cost_per_solved=0.0, flags=("zero_cost",))
    error = cr2(means[:, 0] - ratio * means[:, 1], case_clusters(by_case, world))
    if error.se is None or error.df is None:
        return CostPerSolved(**known, cost_per_solved=ratio, flags=("one_case" if len(means) == 1 else "one_cluster",))
    se_log = error.se / mean_cost
    reach = t_quantile(1.0 - alpha / 2.0, error.df) * se_log
    return CostPerSolved(
        **known,
        cost_per_solved=ratio,
        se_log=se_log,
        ci_lower=ratio * math.exp(-reach),
        ci_upper=ratio * math.exp(reach),
    )


def _total(costs: list[float | None]) -> float | None:
    known = [cost for cost in costs if cost is not None]
    return math.fsum(known) if len(known) == len(costs) else None
