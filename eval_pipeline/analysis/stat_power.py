"""Before money is spent: what an experiment can detect, how many cases it needs, trials against cases."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eval_pipeline.analysis.stat_distributions import noncentral_t_cdf, normal_quantile, t_quantile

Trials = Mapping[str, Sequence[float | None]]
"""case -> scores of its trials; None is missing"""


@dataclass(frozen=True, kw_only=True)
class Variances:
    """omega2: variance of true case differences; sigma2_*: mean variance of the trials of a case; k_*: trials a case (harmonic mean).

    None where too few cases or trials tell: with one trial a case omega2 can't be told from the trials' noise.
    var_diff: variance of the case differences as they are, noise included.
    """

    n_cases: int
    omega2: float | None
    sigma2_a: float | None
    sigma2_b: float | None
    k_a: float | None
    k_b: float | None
    var_diff: float | None


def pilot_variances(a: Trials, b: Trials) -> Variances:
    """Variance components of a pilot's shared cases: omega2 = max(0, var(d) - sigma2_a / k_a - sigma2_b / k_b).

    Miller (2024), "Adding error bars to evals", section 5. Deviation: the estimate is not allowed below 0.
    """
    rows = [(_known(a[case]), _known(b[case])) for case in a if case in b]
    rows = [row for row in rows if row[0] and row[1]]
    if not rows:
        return Variances(n_cases=0, omega2=None, sigma2_a=None, sigma2_b=None, k_a=None, k_b=None, var_diff=None)
    sigma2 = [_within([row[arm] for row in rows]) for arm in (0, 1)]
    k = [len(rows) / sum(1.0 / len(row[arm]) for row in rows) for arm in (0, 1)]
    d = [float(np.mean(right) - np.mean(left)) for left, right in rows]
    var_diff = float(np.var(d, ddof=1)) if len(d) > 1 else None
    omega2 = None
    if var_diff is not None and sigma2[0] is not None and sigma2[1] is not None:
        omega2 = max(0.0, var_diff - sigma2[0] / k[0] - sigma2[1] / k[1])
    return Variances(
        n_cases=len(rows), omega2=omega2, sigma2_a=sigma2[0], sigma2_b=sigma2[1], k_a=k[0], k_b=k[1], var_diff=var_diff
    )


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _within(rows: Sequence[Sequence[float]]) -> float | None:
    found = [float(np.var(row, ddof=1)) for row in rows if len(row) > 1]
    return math.fsum(found) / len(found) if found else None


def _variance(omega2: float, sigma2_a: float, sigma2_b: float, k_a: float, k_b: float) -> float:
    if min(omega2, sigma2_a, sigma2_b) < 0.0 or min(k_a, k_b) < 1:
        raise ValueError("variances must not be negative, and a case needs a trial in each arm")
    return omega2 + sigma2_a / k_a + sigma2_b / k_b


def _reach(alpha: float, power: float) -> float:
    if not (0.0 < alpha < 1.0 and alpha / 2.0 < power < 1.0):
        raise ValueError(f"alpha must lie within 0..1 and power within alpha/2..1, found {alpha} and {power}")
    return normal_quantile(1.0 - alpha / 2.0) + normal_quantile(power)


@dataclass(frozen=True, kw_only=True)
class DetectableEffect:
    """In score points, as a two-sided test of the paired difference sees it. mde_t is None with one case."""

    mde_normal: float
    mde_t: float | None


def mde(
    omega2: float,
    sigma2_a: float,
    sigma2_b: float,
    k_a: float,
    k_b: float,
    n_cases: int,
    alpha: float = 0.05,
    power: float = 0.8,
) -> DetectableEffect:
    """The minimum detectable difference: (z_q + z_power) sqrt(v / n) with v = omega2 + sigma2_a/k_a + sigma2_b/k_b (Miller 2024,
    section 5), and with the noncentral t on n - 1 degrees of freedom (Cohen 1988)."""
    if n_cases < 1:
        raise ValueError(f"an effect needs at least one case, found {n_cases}")
    unit = math.sqrt(_variance(omega2, sigma2_a, sigma2_b, k_a, k_b) / n_cases)
    shift = None if n_cases < 2 else _noncentrality(n_cases - 1, alpha, power)
    return DetectableEffect(mde_normal=_reach(alpha, power) * unit, mde_t=None if shift is None else shift * unit)


def _noncentrality(df: int, alpha: float, power: float) -> float:
    """The shift at which a two-sided t test rejects with probability `power`."""
    from scipy.optimize import brentq  # type: ignore[import-untyped]  # slow to load, needed by planning only

    t = t_quantile(1.0 - alpha / 2.0, df)

    def missing(shift: float) -> float:
        # Far out the lower tail is below 1e-8, and the library gives no number for some of it
        below = noncentral_t_cdf(-t, df, shift) if shift < 5.0 else 0.0
        return 1.0 - noncentral_t_cdf(t, df, shift) + below - power

    high = 1.0
    while missing(high) < 0.0:
        high *= 2.0
    return float(brentq(missing, 0.0, high, xtol=1e-10))  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, kw_only=True)
class RequiredCases:
    n_exact: float
    n: int


def required_cases(
    omega2: float,
    sigma2_a: float,
    sigma2_b: float,
    k_a: float,
    k_b: float,
    delta: float,
    alpha: float = 0.05,
    power: float = 0.8,
) -> RequiredCases:
    """Cases that detect a difference of delta: (z_q + z_power)^2 v / delta^2 (Miller 2024, section 5)."""
    if delta == 0.0:
        raise ValueError("no number of cases detects a difference of 0")
    exact = _reach(alpha, power) ** 2 * _variance(omega2, sigma2_a, sigma2_b, k_a, k_b) / delta**2
    return RequiredCases(n_exact=exact, n=math.ceil(exact - 1e-9))


@dataclass(frozen=True, kw_only=True)
class OptimalTrials:
    """r_continuous: None when neither cases nor trials vary; infinite when only trials do."""

    r_continuous: float | None
    r_best: int


def optimal_trials(
    cost_per_case: float, cost_per_trial: float, sigma2: float, omega2: float, max_trials: int = 50, min_trials: int = 1
) -> OptimalTrials:
    """Trials a case for the least variance at a given spend: the r that minimises (omega2 + sigma2/r) (C_case + C_trial r).

    Two-stage sampling (Cochran 1977, "Sampling techniques", section 10.6). cost_per_case: of authoring one; without it one trial
    is best. min_trials: k when pass^k is wanted. Of equally good r the smallest.
    """
    if min(cost_per_case, sigma2, omega2) < 0.0 or cost_per_trial <= 0.0 or not 1 <= min_trials <= max_trials:
        raise ValueError("costs and variances must not be negative, a trial costs something, and 1 <= min_trials <= max_trials")
    noise = cost_per_case / cost_per_trial * sigma2
    continuous = math.sqrt(noise / omega2) if omega2 > 0.0 else math.inf if noise > 0.0 else None
    r = np.arange(min_trials, max_trials + 1)
    product = (omega2 + sigma2 / r) * (cost_per_case + cost_per_trial * r)
    best = int(np.flatnonzero(product <= product.min() * (1.0 + 1e-12))[0])
    return OptimalTrials(r_continuous=0.0 if sigma2 == 0.0 and omega2 > 0.0 else continuous, r_best=int(r[best]))
