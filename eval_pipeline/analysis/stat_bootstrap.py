"""Bootstraps over clusters, for statistics without a formula; never the default interval of a mean."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eval_pipeline.analysis.stat_distributions import normal_cdf, normal_quantile

RESAMPLES = 10_000
_BATCH_VALUES = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Bootstrap:
    """None with fewer than two clusters."""

    se: float | None
    pct_lower: float | None
    pct_upper: float | None


def resampled_cases(clusters: Sequence[Hashable], resamples: int = RESAMPLES, seed: int = 0) -> Iterator[NDArray[np.intp]]:
    """Indices of the cases of each resample: whole clusters drawn with replacement. One draw serves all arms jointly."""
    members: dict[Hashable, list[int]] = {}
    for index, cluster in enumerate(clusters):
        members.setdefault(cluster, []).append(index)
    groups = [np.array(indices, dtype=np.intp) for indices in members.values()]
    rng = np.random.default_rng(seed)
    for _ in range(resamples):
        drawn: list[int] = rng.integers(len(groups), size=len(groups)).tolist()
        yield np.concatenate([groups[index] for index in drawn])


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
    values = np.asarray(case_means, dtype=np.float64)
    means = np.array([values[drawn].mean() for drawn in resampled_cases(labels, resamples, seed)])
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
