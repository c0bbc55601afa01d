"""Bootstraps over clusters, for statistics without a formula; never the default interval of a mean."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from eval_pipeline.analysis.stat_distributions import normal_cdf, normal_quantile
from eval_pipeline.analysis.stat_intervals import Floats, cluster_index

RESAMPLES = 10_000
# 50 MB a batch. Small ones would be slow on a busy machine: the threads of each product wait for one another.
_BATCH_VALUES = 2_000_000


@dataclass(frozen=True, kw_only=True)
class Bootstrap:
    """None with fewer than two clusters."""

    se: float | None
    pct_lower: float | None
    pct_upper: float | None


def bootstrap_sums(sums: Floats, resamples: int = RESAMPLES, seed: int = 0) -> Floats:
    """Column sums of each resample of the rows, drawn with replacement: what any statistic of sums over clusters needs.

    Rows are whole clusters, so that one draw serves all arms jointly.
    """
    groups, rng = len(sums), np.random.default_rng(seed)
    found, step = np.empty((resamples, sums.shape[1])), max(1, _BATCH_VALUES // groups)
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        drawn = rng.integers(groups, size=(size, groups)) + groups * np.arange(size)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=size * groups).reshape(size, groups)
        found[start : start + size] = counts.astype(np.float64) @ sums
    return found


def bootstrap_means(values: Floats, clusters: Sequence[Hashable], resamples: int = RESAMPLES, seed: int = 0) -> Floats:
    """Column means of each resample: values is case x column with NaN for missing; NaN where a resample has none, inf where one is."""
    index, groups = cluster_index(clusters)
    known, infinite = ~np.isnan(values), np.isposinf(values)
    columns = np.concatenate([np.where(known & ~infinite, values, 0.0), known, infinite], axis=1)
    sums = np.zeros((groups, columns.shape[1]))
    np.add.at(sums, index, columns)
    total, count, infinities = np.split(bootstrap_sums(sums, resamples, seed), 3, axis=1)
    means = np.where(count > 0, total / np.maximum(count, 1.0), np.nan)
    return np.where(infinities > 0, np.inf, means)


def percentiles(values: Floats, alpha: float = 0.05) -> tuple[float, float] | None:
    """The percentile interval of resampled values (Efron 1979); those without a value (NaN) are left out. None when none has one."""
    known = values[~np.isnan(values)]
    if not len(known):
        return None
    lower, upper = np.quantile(known, [alpha / 2.0, 1.0 - alpha / 2.0])
    return float(lower), float(upper)


def cluster_bootstrap(
    case_means: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    alpha: float = 0.05,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Bootstrap:
    """The percentile bootstrap of a mean (Efron 1979), resampling clusters; each case its own cluster when None."""
    labels: Sequence[Hashable] = range(len(case_means)) if clusters is None else clusters
    if len(set(labels)) < 2:
        return Bootstrap(se=None, pct_lower=None, pct_upper=None)
    means = bootstrap_means(np.asarray(case_means, dtype=np.float64)[:, None], labels, resamples, seed)[:, 0]
    lower, upper = np.quantile(means, [alpha / 2.0, 1.0 - alpha / 2.0])
    return Bootstrap(se=float(means.std(ddof=1)), pct_lower=float(lower), pct_upper=float(upper))


def bca_mean_ci(
    case_means: Sequence[float], alpha: float = 0.05, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float] | None:
    """The bias-corrected and accelerated bootstrap interval of a mean (Efron 1987), independent cases. Use it for n >= 30 only.

    None when the cases do not vary.
    """
    values = np.asarray(case_means, dtype=np.float64)
    if len(values) < 2 or float(np.ptp(values)) <= 1e-12:
        return None
    rng, means = np.random.default_rng(seed), np.empty(resamples)
    step = max(1, _BATCH_VALUES // len(values))
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        means[start : start + size] = values[rng.integers(len(values), size=(size, len(values)))].mean(axis=1)
    mean = float(values.mean())
    below = (float(np.mean(means < mean)) + float(np.mean(means <= mean))) / 2.0
    bias = normal_quantile(below)
    deviations = values - mean
    acceleration = float(np.sum(deviations**3)) / (6.0 * float(np.sum(deviations**2)) ** 1.5)
    levels = [_bca_level(normal_quantile(q), bias, acceleration) for q in (alpha / 2.0, 1.0 - alpha / 2.0)]
    lower, upper = np.quantile(means, levels)
    return float(lower), float(upper)


def _bca_level(z: float, bias: float, acceleration: float) -> float:
    if math.isinf(bias):
        return 0.0 if bias < 0 else 1.0
    return normal_cdf(bias + (bias + z) / (1.0 - acceleration * (bias + z)))
