"""Two arms on the cases they share: the difference of their scores, with effect sizes."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eval_pipeline.analysis.stat_distributions import t_quantile, t_two_sided
from eval_pipeline.analysis.stat_intervals import EPS, Floats, case_clusters, cluster_sums, cr2, wilson_t

CaseMeans = Mapping[str, float | None]
"""case -> mean over its valid trials; None has none"""

MIN_DISCORDANT = 6
EXACT_FLIPS = 16
FLIP_DRAWS = 100_000
_FLIP_BATCH = 10_000
_TABLE = 8


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """The shared cases, in the order of the first arm. clusters: a label a case."""

    a: Floats
    b: Floats
    clusters: list[Hashable]


def shared_pairs(a: CaseMeans, b: CaseMeans, world: Mapping[str, str] | None = None) -> Pairs:
    both = {case: (left, right) for case, left in a.items() if left is not None and (right := b.get(case)) is not None}
    table = np.array(list(both.values()), dtype=np.float64).reshape(-1, 2)
    if not np.isfinite(table).all():
        raise ValueError("case means must be finite numbers or None")
    return Pairs(a=table[:, 0], b=table[:, 1], clusters=case_clusters(both, world))


@dataclass(frozen=True, kw_only=True)
class PairedDifference:
    """diff: mean of b - a over the shared cases, positive when b is better; all None without a shared case.

    ci_*: "95% CI, new cases". n_discordant: cases that differ. d_z = diff / sd of the differences, d_av = diff / pooled sd of the
    arms, prob_superiority = (wins + ties / 2) / n by case; None where nothing varies.
    flags: no_shared_cases, one_cluster, insufficient_discordance, zero_variance.
    """

    n_shared: int
    diff: float | None = None
    se: float | None = None
    df: float | None = None
    p: float | None = None
    ci_lower: float | None = None
    ci_upper: float | None = None
    signflip_p: float | None = None
    wins: int | None = None
    losses: int | None = None
    ties: int | None = None
    n_discordant: int | None = None
    prob_superiority: float | None = None
    d_z: float | None = None
    d_av: float | None = None
    corr: float | None = None
    flags: tuple[str, ...] = ()


def paired_difference(
    a: CaseMeans,
    b: CaseMeans,
    world: Mapping[str, str] | None = None,
    alpha: float = 0.05,
    score_range: tuple[float, float] = (0.0, 1.0),
    seed: int = 0,
) -> PairedDifference:
    """b - a on the shared cases: paired t with CR2's error and Bell-McCaffrey df (Miller 2024, "Adding error bars to evals", with
    CR2 in place of CR0). world: see `arm_mean`. seed: of the sign flips, where they are drawn.

    Deviation: with fewer than 6 differing cases or no variance t means little; p is then at least the sign-flip test's (Fisher
    1935), and the interval is joined with Wilson's of (1 + diff) / 2 on G observations.
    """
    pairs = shared_pairs(a, b, world)
    n, width = len(pairs.a), score_range[1] - score_range[0]
    if not n:
        return PairedDifference(n_shared=0, flags=("no_shared_cases",))
    if not (width > 0 and 0.0 < alpha < 1.0):
        raise ValueError(f"the score range must rise and alpha lie between 0 and 1, found {score_range} and {alpha}")
    d = (pairs.b - pairs.a) / width
    effects, discordant = _effects(pairs), int(np.sum(np.abs(d) > EPS))
    diff, error = float(d.mean()), cr2(d, pairs.clusters)
    if error.se is None or error.df is None:
        return PairedDifference(n_shared=n, diff=diff * width, n_discordant=discordant, flags=("one_cluster",), **effects)
    flips = sign_flip_p(cluster_sums(d, pairs.clusters)[0], seed)
    constant, few = error.se <= EPS, discordant < MIN_DISCORDANT
    p = flips if constant else t_two_sided(diff / error.se, error.df)
    t = t_quantile(1.0 - alpha / 2.0, error.df)
    lower, upper = diff - t * error.se, diff + t * error.se
    if few or constant:
        wilson = [2.0 * bound - 1.0 for bound in wilson_t(min(max((1.0 + diff) / 2.0, 0.0), 1.0), error.n_clusters, t)]
        p, lower, upper = max(p, flips), min(lower, wilson[0]), max(upper, wilson[1])
    return PairedDifference(
        n_shared=n,
        diff=diff * width,
        se=error.se * width,
        df=error.df,
        p=p,
        ci_lower=lower * width,
        ci_upper=upper * width,
        signflip_p=flips,
        n_discordant=discordant,
        flags=pair_flags(few=few, constant=constant),
        **effects,
    )


def pair_flags(*, few: bool, constant: bool) -> tuple[str, ...]:
    return (("insufficient_discordance",) if few else ()) + (("zero_variance",) if constant else ())


def _effects(pairs: Pairs) -> dict[str, Any]:
    d = pairs.b - pairs.a
    wins, losses, n = int(np.sum(d > EPS)), int(np.sum(d < -EPS)), len(d)
    counts = {"wins": wins, "losses": losses, "ties": n - wins - losses}
    superiority = (wins + 0.5 * (n - wins - losses)) / n
    if n < 2:
        return {**counts, "prob_superiority": superiority}
    spread, of_arms = float(d.std(ddof=1)), math.sqrt(float(pairs.a.var(ddof=1) + pairs.b.var(ddof=1)) / 2.0)
    varies = min(float(pairs.a.std()), float(pairs.b.std())) > EPS
    return {
        **counts,
        "prob_superiority": superiority,
        "d_z": float(d.mean()) / spread if spread > EPS else None,
        "d_av": float(d.mean()) / of_arms if of_arms > EPS else None,
        "corr": float(np.corrcoef(pairs.a, pairs.b)[0, 1]) if varies else None,
    }


def sign_flip_p(sums: Sequence[float] | Floats, seed: int = 0) -> float:
    """Share of the sign vectors under which the cluster sums add up to at least as much as they did (Fisher 1935).

    Exact for up to 16 clusters that are not 0, else from 100000 drawn vectors as (hits + 1) / (draws + 1) (Phipson and Smyth 2010).
    """
    u = np.asarray(sums, dtype=np.float64)
    u = u[np.abs(u) > EPS]
    reached = abs(float(u.sum())) - EPS
    if len(u) <= EXACT_FLIPS:
        return float(np.mean(np.abs(_signed_sums(u)) >= reached))
    # A table of the signed sums of 8 clusters turns 8 drawn signs into one byte and one look-up.
    rng, hits = np.random.default_rng(seed), 0
    tables = [_signed_sums(u[start : start + _TABLE]) for start in range(0, len(u), _TABLE)]
    for _ in range(0, FLIP_DRAWS, _FLIP_BATCH):
        totals = np.zeros(_FLIP_BATCH)
        for table in tables:
            totals += table[rng.integers(len(table), size=_FLIP_BATCH, dtype=np.uint8)]
        hits += int(np.sum(np.abs(totals) >= reached))
    return (hits + 1) / (FLIP_DRAWS + 1)


def _signed_sums(u: Floats) -> Floats:
    """The sum under each of the 2^k sign vectors."""
    sums = np.zeros(1)
    for value in u:
        sums = np.concatenate([sums + value, sums - value])
    return sums


def prob_superiority_trials(a: Sequence[Sequence[float | None]], b: Sequence[Sequence[float | None]]) -> float | None:
    """Mean over cases of the chance that a trial of b beats one of a, ties half: U / (r_a r_b) (Mann and Whitney 1947).

    A row is a case; missing trials are left out, and so is a case without any in one arm. None when none is left.
    """
    shares: list[float] = []
    for left, right in zip(a, b, strict=True):
        x, y = (np.array([v for v in row if v is not None], dtype=np.float64) for row in (left, right))
        if len(x) and len(y):
            gaps = y[:, None] - x[None, :]
            shares.append(float(np.mean((gaps > EPS) + 0.5 * (np.abs(gaps) <= EPS))))
    return math.fsum(shares) / len(shares) if shares else None
