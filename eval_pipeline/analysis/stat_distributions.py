"""Quantiles of the distributions the statistics need, typed."""

from __future__ import annotations

from scipy import special  # type: ignore[import-untyped]


def normal_cdf(x: float) -> float:
    return float(special.ndtr(x))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


def normal_quantile(q: float) -> float:
    return float(special.ndtri(q))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


def t_quantile(q: float, df: float) -> float:
    """Student's t; `df` may be fractional."""
    return float(special.stdtrit(df, q))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


def beta_quantile(q: float, a: float, b: float) -> float:
    """The Beta quantile; a = 0 is the point mass at 0, b = 0 the one at 1."""
    if a <= 0.0:
        return 0.0
    if b <= 0.0:
        return 1.0
    return float(special.betaincinv(a, b, q))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
