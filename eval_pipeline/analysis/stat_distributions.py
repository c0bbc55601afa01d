"""Quantiles and tails of the distributions the statistics need, typed.

Of scipy only `special` is imported: `scipy.stats` takes longer to load than a leaderboard to compute.
"""

from __future__ import annotations

from scipy import special  # type: ignore[import-untyped]


def normal_cdf(x: float) -> float:
    return float(special.ndtr(x))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


def normal_quantile(q: float) -> float:
    return float(special.ndtri(q))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


def t_quantile(q: float, df: float) -> float:
    """Student's t; `df` may be fractional."""
    return float(special.stdtrit(df, q))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


def t_above(x: float, df: float) -> float:
    """P(T > x)."""
    return float(special.stdtr(df, -x))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


def t_two_sided(x: float, df: float) -> float:
    """P(|T| > |x|)."""
    return 2.0 * t_above(abs(x), df)


def noncentral_t_cdf(x: float, df: float, shift: float) -> float:
    return float(special.nctdtr(df, shift, x))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


def binomial_cdf(k: int, n: int, p: float = 0.5) -> float:
    """P(X <= k)."""
    return float(special.bdtr(k, n, p))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


def beta_quantile(q: float, a: float, b: float) -> float:
    """The Beta quantile; a = 0 is the point mass at 0, b = 0 the one at 1."""
    if a <= 0.0:
        return 0.0
    if b <= 0.0:
        return 1.0
    return float(special.betaincinv(a, b, q))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
