"""Looking at results more than once: planned looks, unplanned looks, and queries of a holdout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eval_pipeline.analysis.stat_distributions import normal_quantile
from eval_pipeline.analysis.stat_intervals import Floats

MIN_LOOK = 10
_NODES = 96


@dataclass(frozen=True, kw_only=True)
class Boundaries:
    """|z| to be exceeded at each of the equally spaced looks."""

    pocock_z: tuple[float, ...]
    obf_z: tuple[float, ...]


def group_sequential_boundaries(looks: int, alpha: float = 0.05) -> Boundaries:
    """Two-sided boundaries of Pocock (1977) and O'Brien and Fleming (1979) with overall error alpha.

    Solved from the joint density of the looks by repeated quadrature (Armitage, McPherson and Rowe 1969), as Jennison and
    Turnbull (2000) tabulate them.
    """
    if looks < 1 or not 0.0 < alpha < 1.0:
        raise ValueError(f"at least one look and an alpha between 0 and 1, found {looks} and {alpha}")
    k = np.arange(1, looks + 1, dtype=np.float64)
    return Boundaries(pocock_z=_scaled(np.ones(looks), alpha), obf_z=_scaled(np.sqrt(looks / k), alpha))


def _scaled(shape: Floats, alpha: float) -> tuple[float, ...]:
    from scipy.optimize import brentq  # type: ignore[import-untyped]  # slow to load, needed by planned looks only

    low, high = normal_quantile(1.0 - alpha / 2.0) - 1e-9, normal_quantile(1.0 - alpha / (2.0 * len(shape))) + 1e-9
    constant = float(brentq(lambda c: _crossing(c * shape) - alpha, low, high, xtol=1e-10))  # pyright: ignore[reportArgumentType]
    return tuple(float(z) for z in constant * shape)


def _crossing(z: Floats) -> float:
    """Chance that a driftless walk of unit steps leaves |S_k| < z_k sqrt(k) at any look."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    bounds = z * np.sqrt(np.arange(1, len(z) + 1))
    at, mass = np.zeros(1), np.ones(1)
    for bound in bounds:
        here = nodes * bound
        density = np.exp(-((here[:, None] - at[None, :]) ** 2) / 2.0) / math.sqrt(2.0 * math.pi)
        at, mass = here, (density @ mass) * weights * bound
    return 1.0 - float(mass.sum())


@dataclass(frozen=True, kw_only=True)
class ConfidenceSequence:
    """lower and upper hold at every look at once; None below 10 cases."""

    rho: float
    lower: float | None
    upper: float | None


def asymptotic_cs(differences: Sequence[float], n_opt: int, alpha: float = 0.05) -> ConfidenceSequence:
    """An interval of the mean difference that may be looked at after every case: Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas
    (2024), "Time-uniform central limit theory and asymptotic confidence sequences". n_opt: the number of cases it is narrowest at.
    """
    if n_opt < 1 or not 0.0 < alpha < 1.0:
        raise ValueError(f"n_opt must be 1 or more and alpha lie between 0 and 1, found {n_opt} and {alpha}")
    spent = -2.0 * math.log(alpha)
    rho = math.sqrt((spent + math.log(spent + 1.0)) / n_opt)
    d, k = np.asarray(differences, dtype=np.float64), len(differences)
    if k < MIN_LOOK:
        return ConfidenceSequence(rho=rho, lower=None, upper=None)
    inner = k * rho**2 + 1.0
    reach = float(d.std(ddof=1)) * math.sqrt(inner / (k * rho) ** 2 * math.log(inner / alpha**2))
    return ConfidenceSequence(rho=rho, lower=float(d.mean()) - reach, upper=float(d.mean()) + reach)


HOLDOUT_QUERIES = 20
"""After so many queries a holdout is retired."""


def confirm_alpha(alpha: float, query: int) -> float:
    """The level of the query-th question to a holdout, counted from 1: alpha 6 / (pi^2 j^2), which adds up to alpha over all of them.

    Alpha spending as for online tests (Foster and Stine 2008, "Alpha-investing", with a summable series in place of wealth).
    """
    if query < 1:
        raise ValueError(f"queries count from 1, found {query}")
    return alpha * 6.0 / (math.pi**2 * query**2)
