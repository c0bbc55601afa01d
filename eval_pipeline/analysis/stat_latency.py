"""Quantiles of latencies, where a timeout says only "longer than this"."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from eval_pipeline.analysis.stat_distributions import t_quantile
from eval_pipeline.analysis.stat_intervals import Floats, wilson_t, wilson_t_cr2

P95_MIN_CELLS = 100
P99_MIN_CELLS = 500
_SLACK = 1e-9


@dataclass(frozen=True, kw_only=True)
class Quantiles:
    """In the order asked for; None without values."""

    inverted_cdf: tuple[float | None, ...]
    mean: float | None


def quantiles(values: Sequence[float], q: Sequence[float], weights: Sequence[float] | None = None) -> Quantiles:
    """The inverted CDF, x_(ceil(N q)) (Hyndman and Fan 1996, type 1), and the mean; both weighted when weights are given."""
    curve = censored_latency(values, [True] * len(values), weights)
    if curve is None:
        return Quantiles(inverted_cdf=(None,) * len(q), mean=None)
    mean = np.average(
        np.asarray(values, dtype=np.float64), weights=None if weights is None else np.asarray(weights, dtype=np.float64)
    )
    return Quantiles(inverted_cdf=tuple(curve.quantile(level) for level in q), mean=float(mean))


@dataclass(frozen=True, kw_only=True)
class SurvivalCurve:
    """survival[i]: share longer than times[i], events only. tau: the longest time seen, completed or not."""

    times: Floats
    survival: Floats
    tau: float
    censored_rate: float

    def quantile(self, q: float) -> float:
        """The smallest t with S(t) <= 1 - q; infinite when that lies above what was observed."""
        if not 0.0 <= q <= 1.0:
            raise ValueError(f"a quantile's level lies within 0..1, found {q}")
        reached = np.flatnonzero(self.survival <= 1.0 - q + _SLACK)
        return float(self.times[reached[0]]) if len(reached) else math.inf

    @property
    def rmst(self) -> float:
        """The restricted mean: of min(t, tau)."""
        edges = np.concatenate([[0.0], self.times, [self.tau]])
        return float(np.sum(np.diff(edges) * np.concatenate([[1.0], self.survival])))


def censored_latency(
    time: Sequence[float], completed: Sequence[bool], weights: Sequence[float] | None = None
) -> SurvivalCurve | None:
    """The product-limit estimate (Kaplan and Meier 1958); completed False is right-censored at its time; None without values.

    Events come before censorings at the same time. Without censoring, or with one limit for all, it is the inverted CDF with
    the censored at infinity. Deviation: weights, so that every case counts alike whatever its trials.
    """
    if not time:
        return None
    t, done = np.asarray(time, dtype=np.float64), np.asarray(completed, dtype=bool)
    w = np.ones(len(t)) if weights is None else np.asarray(weights, dtype=np.float64)
    if len(done) != len(t) or len(w) != len(t):
        raise ValueError(f"{len(t)} times need as many completions and weights, found {len(done)} and {len(w)}")
    if not (np.isfinite(t).all() and (t >= 0).all() and np.isfinite(w).all() and (w > 0).all()):
        raise ValueError("times must be finite and not negative, weights finite and positive")
    moments, index = np.unique(t, return_inverse=True)
    events = np.bincount(index, weights=w * done, minlength=len(moments))
    leaving = np.bincount(index, weights=w, minlength=len(moments))
    at_risk = np.cumsum(leaving[::-1])[::-1]
    survival = np.cumprod(1.0 - events / at_risk).astype(np.float64)
    happened = events > 0
    return SurvivalCurve(
        times=moments[happened],
        survival=survival[happened],
        tau=float(t.max()),
        censored_rate=float(np.sum(w * ~done) / np.sum(w)),
    )


@dataclass(frozen=True, kw_only=True)
class QuantileInterval:
    """estimate: infinite when it lies above the limit. p_*: the levels between which the true quantile's lies.

    ci_*: -inf or inf where a limit lies outside what was observed ("above max"). None with fewer than two clusters.
    """

    estimate: float | None
    n_eff: float | None
    p_lower: float | None
    p_upper: float | None
    ci_lower: float | None
    ci_upper: float | None


def quantile_ci(
    matrix: Sequence[Sequence[float | None]],
    q: float,
    alpha: float = 0.05,
    clusters: Sequence[Hashable] | None = None,
) -> QuantileInterval:
    """The interval of a quantile over new cases: Woodruff (1952), "Confidence intervals for medians and other position measures".

    A row is a case, with the values of its trials: None is missing, inf censored at the limit all share. clusters: a label a row.
    Deviation: Wilson's interval with t at level q, with the n_eff of the share of trials at or below the estimate (CR2). Trials
    weigh 1/(n r_c), so that every case counts alike.
    """
    labels = range(len(matrix)) if clusters is None else clusters
    rows = [([v for v in row if v is not None], label) for row, label in zip(matrix, labels, strict=True)]
    rows = [(values, label) for values, label in rows if values]
    if not rows:
        return QuantileInterval(estimate=None, n_eff=None, p_lower=None, p_upper=None, ci_lower=None, ci_upper=None)
    values = np.array([v for row, _ in rows for v in row], dtype=np.float64)
    order = np.argsort(values, kind="stable")
    x, reached = values[order], np.cumsum(np.array([1.0 / len(row) for row, _ in rows for _ in row])[order]) / len(rows)
    estimate = float(x[min(int(np.searchsorted(reached, q - _SLACK)), len(x) - 1)])
    below = wilson_t_cr2(
        [sum(v <= estimate for v in row) / len(row) for row, _ in rows], [label for _, label in rows], alpha=alpha
    )
    if below.n_eff is None or below.df is None:
        return QuantileInterval(estimate=estimate, n_eff=None, p_lower=None, p_upper=None, ci_lower=None, ci_upper=None)
    p_lower, p_upper = wilson_t(q, below.n_eff, t_quantile(1.0 - alpha / 2.0, below.df))
    low = int(np.searchsorted(reached, p_lower + _SLACK, side="right")) - 1
    high = int(np.searchsorted(reached, p_upper - _SLACK)) + 1
    return QuantileInterval(
        estimate=estimate,
        n_eff=below.n_eff,
        p_lower=p_lower,
        p_upper=p_upper,
        ci_lower=float(x[low]) if low >= 0 else -math.inf,
        ci_upper=float(x[high]) if high < len(x) else math.inf,
    )


@dataclass(frozen=True, kw_only=True)
class LatencyCell:
    """completed False: the cell ran into its limit, and latency_s is that limit."""

    case: str
    latency_s: float
    completed: bool


@dataclass(frozen=True, kw_only=True)
class LatencyQuantile:
    """above: the quantile lies above value_s, the longest limit seen (shown ">900")."""

    value_s: float
    above: bool


@dataclass(frozen=True, kw_only=True)
class LatencySummary:
    """p50 is None without cells, p95 with fewer than 100, p99 with fewer than 500. rmst_s: the mean of min(latency, tau_s)."""

    n: int
    p50: LatencyQuantile | None
    p95: LatencyQuantile | None
    rmst_s: float | None
    tau_s: float | None
    timeout_rate: float | None
    p99: LatencyQuantile | None = None


def latency_summary(cells: Iterable[LatencyCell]) -> LatencySummary:
    """Quantiles over all agent outcomes, every case counting alike (weights 1/(n r_c)), timeouts censored at their limits."""
    known = list(cells)
    trials = Counter(cell.case for cell in known)
    weights = [1.0 / (len(trials) * trials[cell.case]) for cell in known]
    curve = censored_latency([cell.latency_s for cell in known], [cell.completed for cell in known], weights)
    if curve is None:
        return LatencySummary(n=0, p50=None, p95=None, rmst_s=None, tau_s=None, timeout_rate=None)
    return LatencySummary(
        n=len(known),
        p50=_shown(curve, 0.5),
        p95=_shown(curve, 0.95) if len(known) >= P95_MIN_CELLS else None,
        rmst_s=curve.rmst,
        tau_s=curve.tau,
        timeout_rate=curve.censored_rate,
        p99=_shown(curve, 0.99) if len(known) >= P99_MIN_CELLS else None,
    )


def _shown(curve: SurvivalCurve, q: float) -> LatencyQuantile:
    value = curve.quantile(q)
    return LatencyQuantile(value_s=curve.tau, above=True) if math.isinf(value) else LatencyQuantile(value_s=value, above=False)
