"""Standard errors and intervals of a mean over cases that come in clusters.

A mean's interval speaks of new cases ("95% CI, new cases"); `se_fixed_cases` speaks of new trials of the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eval_pipeline.analysis.stat_distributions import beta_quantile, normal_quantile, t_quantile

EPS = 1e-12
FEW_CLUSTERS_DF = 4.0

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ClusterError:
    """se and df are None with fewer than two clusters: nothing varies that could be measured."""

    se: float | None
    df: float | None
    n_clusters: int


@dataclass(frozen=True, kw_only=True)
class Interval:
    """ci_*: Wilson's interval with t; t_*: the plain one. None with fewer than two clusters."""

    mean: float
    se: float | None
    df: float | None
    n_clusters: int
    n_eff: float | None
    ci_lower: float | None
    ci_upper: float | None
    t_lower: float | None
    t_upper: float | None
    flags: tuple[str, ...]


def cr2(values: Sequence[float] | Floats, clusters: Sequence[Hashable]) -> ClusterError:
    """The bias-reduced cluster-robust error of a mean, with its degrees of freedom.

    Bell and McCaffrey (2002), "Bias reduction in standard errors for linear regression with multi-stage samples"; the design
    is an intercept, so CR2's adjustment is 1/sqrt(1 - s_g/n), and the df assume independent equal variances.
    One case a cluster gives sd/sqrt(n) and n - 1; balanced clusters give G - 1.
    """
    y = np.asarray(values, dtype=np.float64)
    residuals, sizes = cluster_sums(y - y.mean() if len(y) else y, clusters)
    if len(sizes) < 2:
        return ClusterError(se=None, df=None, n_clusters=len(sizes))
    n = float(len(y))
    weights = 1.0 / ((1.0 - sizes / n) * n**2)
    se = math.sqrt(float(np.sum(weights * residuals**2)))
    # sum over g, h of w_g w_h O_gh^2, where O_gh = s_g [g=h] - s_g s_h / n, without the G x G matrix
    off = float(np.sum(weights * sizes**2)) ** 2 / n**2
    diagonal = float(np.sum(weights**2 * ((sizes - sizes**2 / n) ** 2 - (sizes**2 / n) ** 2)))
    return ClusterError(se=se, df=1.0 / (n**2 * (off + diagonal)), n_clusters=len(sizes))


def case_clusters(cases: Iterable[str], world: Mapping[str, str] | None) -> list[Hashable]:
    """What is independent: the worlds, and each case that `world` does not name."""
    return [("world", world[case]) if world and case in world else ("case", case) for case in cases]


def cluster_index(clusters: Sequence[Hashable]) -> tuple[NDArray[np.intp], int]:
    """A number for each label, in order of first appearance, and how many there are."""
    order = {cluster: index for index, cluster in enumerate(dict.fromkeys(clusters))}
    return np.array([order[cluster] for cluster in clusters], dtype=np.intp), len(order)


def cluster_sums(values: Floats, clusters: Sequence[Hashable]) -> tuple[Floats, Floats]:
    """Sum and size of every cluster, in order of first appearance."""
    index, groups = cluster_index(clusters)
    sums = np.bincount(index, weights=values, minlength=groups).astype(np.float64)
    return sums, np.bincount(index, minlength=groups).astype(np.float64)


def wilson_t(u: float, n_eff: float, t: float) -> tuple[float, float]:
    """Wilson's (1927) score interval of a mean `u` in [0, 1] with t in place of z and an effective sample size."""
    spread = t**2 / n_eff
    centre = (u + spread / 2.0) / (1.0 + spread)
    half = t / (1.0 + spread) * math.sqrt(max(u * (1.0 - u), 0.0) / n_eff + spread / (4.0 * n_eff))
    return max(centre - half, 0.0), min(centre + half, 1.0)


def wilson_t_cr2(
    values: Sequence[float],
    clusters: Sequence[Hashable],
    score_range: tuple[float, float] = (0.0, 1.0),
    alpha: float = 0.05,
) -> Interval:
    """The default interval of a mean of case means: CR2's error and df, Wilson's shape, on scores scaled to [0, 1].

    Deviation: n_eff is the sample size at which a binomial would have the measured error; without variance (or at an end of
    the range) it is the number of clusters. Raises ValueError for no values or one outside the range.
    """
    low, high = score_range
    _check_values(values, low, high, alpha)
    mean = math.fsum(values) / len(values)
    error = cr2(values, clusters)
    if error.se is None or error.df is None:
        return _one_cluster(mean, error.n_clusters)
    u, su = min(max((mean - low) / (high - low), 0.0), 1.0), error.se / (high - low)
    t = t_quantile(1.0 - alpha / 2.0, error.df)
    n_eff = float(error.n_clusters) if su <= EPS or u * (1.0 - u) <= EPS else u * (1.0 - u) / su**2
    ci_lower, ci_upper = (low + bound * (high - low) for bound in wilson_t(u, n_eff, t))
    flags = (("zero_variance",) if su <= EPS else ()) + few_clusters(error.df)
    return Interval(
        mean=mean,
        se=error.se,
        df=error.df,
        n_clusters=error.n_clusters,
        n_eff=n_eff,
        ci_lower=ci_lower,
        ci_upper=ci_upper,
        t_lower=mean - t * error.se,
        t_upper=mean + t * error.se,
        flags=flags,
    )


def few_clusters(df: float) -> tuple[str, ...]:
    return ("few_clusters",) if df < FEW_CLUSTERS_DF - 1e-9 else ()


def _one_cluster(mean: float, n_clusters: int) -> Interval:
    return Interval(
        mean=mean,
        se=None,
        df=None,
        n_clusters=n_clusters,
        n_eff=None,
        ci_lower=None,
        ci_upper=None,
        t_lower=None,
        t_upper=None,
        flags=("one_cluster",),
    )


def _check_values(values: Sequence[float], low: float, high: float, alpha: float) -> None:
    if not values:
        raise ValueError("an interval needs at least one value")
    if not low < high:
        raise ValueError(f"the score range must rise, found {low}..{high}")
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"alpha must lie between 0 and 1, found {alpha}")
    slack = 1e-9 * (high - low)
    outside = next((value for value in values if not low - slack <= value <= high + slack), None)
    if outside is not None:
        raise ValueError(f"a score of {outside} lies outside the range {low}..{high}: is it of another policy?")


def korn_graubard(
    mean: float, n_eff: float, df: float, score_range: tuple[float, float] = (0.0, 1.0), alpha: float = 0.05
) -> tuple[float, float]:
    """The strict interval for means above .95 or below .05 with fewer than 60 cases.

    Korn and Graubard (1998), "Confidence intervals for proportions with small expected number of positive counts":
    Clopper-Pearson on n_eff (z/t)^2 observations.
    """
    low, high = score_range
    u, q = min(max((mean - low) / (high - low), 0.0), 1.0), 1.0 - alpha / 2.0
    n = n_eff * (normal_quantile(q) / t_quantile(q, df)) ** 2
    bounds = beta_quantile(1.0 - q, n * u, n * (1.0 - u) + 1.0), beta_quantile(q, n * u + 1.0, n * (1.0 - u))
    return low + bounds[0] * (high - low), low + bounds[1] * (high - low)


@dataclass(frozen=True, kw_only=True)
class ProportionIntervals:
    wilson: tuple[float, float]
    clopper_pearson: tuple[float, float]
    jeffreys: tuple[float, float]


def proportion_ci(k: int, n: int, alpha: float = 0.05) -> ProportionIntervals | None:
    """Intervals of a bare proportion without trials: Wilson (1927), Clopper and Pearson (1934), Jeffreys (Brown, Cai and
    DasGupta 2001). None for n = 0. Raises ValueError when k is not within 0..n."""
    if not 0 <= k <= n:
        raise ValueError(f"k must lie within 0..n, found {k} of {n}")
    if n == 0:
        return None
    q = 1.0 - alpha / 2.0
    return ProportionIntervals(
        wilson=wilson_t(k / n, n, normal_quantile(q)),
        clopper_pearson=(beta_quantile(1.0 - q, k, n - k + 1), beta_quantile(q, k + 1, n - k)),
        jeffreys=(beta_quantile(1.0 - q, k + 0.5, n - k + 0.5), beta_quantile(q, k + 0.5, n - k + 0.5)),
    )


@dataclass(frozen=True, kw_only=True)
class ClusteredCells:
    """se_* and df_bm are None where too few cells or clusters define them."""

    mean: float
    se_naive: float | None
    se_cr0_miller: float | None
    se_cr1: float | None
    se_cr2: float | None
    df_bm: float | None


def se_clustered_cells(clusters: Sequence[Sequence[float]]) -> ClusteredCells:
    """The cell-weighted mean's errors side by side: naive; CR0 (Miller 2024, "Adding error bars to evals", appendix A);
    CR1 = CR0 sqrt(G/(G-1)); CR2 with its df. An arm's mean is not cell-weighted: this is for comparison with other tools.
    Raises ValueError without a value."""
    members = [(value, index) for index, cluster in enumerate(clusters) for value in cluster]
    if not members:
        raise ValueError("se_clustered_cells needs at least one value")
    y = np.array([value for value, _ in members], dtype=np.float64)
    labels = [index for _, index in members]
    sums, sizes = cluster_sums(y - y.mean(), labels)
    error = cr2([float(value) for value in y], labels)
    groups = len(sizes)
    cr0 = math.sqrt(float(np.sum(sums**2))) / len(y) if groups > 1 else None
    return ClusteredCells(
        mean=float(y.mean()),
        se_naive=float(y.std(ddof=1)) / math.sqrt(len(y)) if len(y) > 1 else None,
        se_cr0_miller=cr0,
        se_cr1=cr0 * math.sqrt(groups / (groups - 1)) if cr0 is not None else None,
        se_cr2=error.se,
        df_bm=error.df,
    )


@dataclass(frozen=True, kw_only=True)
class FixedCases:
    se: float | None
    icc: float | None


def se_fixed_cases(matrix: Sequence[Sequence[float | None]]) -> FixedCases:
    """Trial noise alone ("SE, same cases"): sqrt(sum s_c^2 / r_c) / n, and ICC(1) (Shrout and Fleiss 1979). A row is a case.

    Missing trials and cases without any are left out. se is None when a case has a single trial.
    Deviation: with unequal trials ICC(1) uses r0 = (N - sum r_c^2 / N) / (n - 1), which is r when they are equal.
    """
    rows = [np.array([v for v in row if v is not None], dtype=np.float64) for row in matrix]
    rows = [row for row in rows if len(row)]
    if not rows or any(len(row) < 2 for row in rows):
        return FixedCases(se=None, icc=_icc(rows))
    noise = math.fsum(float(row.var(ddof=1)) / len(row) for row in rows)
    return FixedCases(se=math.sqrt(noise) / len(rows), icc=_icc(rows))


def _icc(rows: Sequence[Floats]) -> float | None:
    cases, cells = len(rows), sum(len(row) for row in rows)
    if cases < 2 or cells <= cases:
        return None
    grand = math.fsum(float(row.sum()) for row in rows) / cells
    between = math.fsum(len(row) * (float(row.mean()) - grand) ** 2 for row in rows) / (cases - 1)
    within = math.fsum(float(((row - row.mean()) ** 2).sum()) for row in rows) / (cells - cases)
    trials = (cells - sum(len(row) ** 2 for row in rows) / cells) / (cases - 1)
    total = between + (trials - 1.0) * within
    return (between - within) / total if total > EPS else None
