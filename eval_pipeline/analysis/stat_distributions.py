"""Quantiles and tails of the distributions the statistics need, typed.

Of scipy only `special` is imported, and that late: `scipy.stats` takes longer to load than a leaderboard to compute, and many who
import this compute nothing.
"""

from __future__ import annotations

from functools import cache
from typing import Any


def normal_cdf(x: float) -> float:
    return float(_special().ndtr(x))


def normal_quantile(q: float) -> float:
    return float(_special().ndtri(q))


def t_quantile(q: float, df: float) -> float:
    """Student's t; `df` may be fractional."""
    return float(_special().stdtrit(df, q))


def t_above(x: float, df: float) -> float:
    """P(T > x)."""
    return float(_special().stdtr(df, -x))


def t_two_sided(x: float, df: float) -> float:
    """P(|T| > |x|)."""
    return 2.0 * t_above(abs(x), df)


def noncentral_t_cdf(x: float, df: float, shift: float) -> float:
    return float(_special().nctdtr(df, shift, x))


def binomial_cdf(k: int, n: int, p: float = 0.5) -> float:
    """P(X <= k)."""
    return float(_special().bdtr(k, n, p))


def beta_quantile(q: float, a: float, b: float) -> float:
    """The Beta quantile; a = 0 is the point mass at 0, b = 0 the one at 1."""
    if a <= 0.0:
        return 0.0
    if b <= 0.0:
        return 1.0
    return float(_special().betaincinv(a, b, q))


@cache
def _special() -> Any:
    from scipy import special  # type: ignore[import-untyped]

    return special
