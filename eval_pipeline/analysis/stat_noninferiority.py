"""Whether a candidate is no worse than another arm by more than a margin declared before the run."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eval_pipeline.analysis.stat_distributions import t_above, t_quantile
from eval_pipeline.analysis.stat_intervals import EPS, Floats, case_clusters, cluster_sums, cr2, few_clusters
from eval_pipeline.analysis.stat_pairs import MIN_DISCORDANT, CaseMeans, pair_flags, shared_pairs


@dataclass(frozen=True, kw_only=True)
class NonInferiority:
    """diff, se, df as in `paired_difference`; *_guarded with the guard against lost cases; lower: one-sided limit of b - a.

    non_inferior: None when it can't be told, which passes no gate. n_missing: cases of either arm that are not shared;
    non_inferior_filled: the verdict with each of them counted against b; provisional: that verdict is another.
    flags: no_shared_cases, one_cluster, insufficient_discordance, zero_variance, few_clusters.
    """

    n_shared: int
    n_missing: int
    diff: float | None = None
    se: float | None = None
    df: float | None = None
    n_discordant: int | None = None
    diff_guarded: float | None = None
    se_guarded: float | None = None
    lower: float | None = None
    p: float | None = None
    non_inferior: bool | None = None
    non_inferior_filled: bool | None = None
    provisional: bool = False
    flags: tuple[str, ...] = ()


def non_inferiority(
    a: CaseMeans,
    b: CaseMeans,
    margin: float,
    world: Mapping[str, str] | None = None,
    alpha: float = 0.05,
    score_range: tuple[float, float] = (0.0, 1.0),
) -> NonInferiority:
    """Test that b - a > -margin (Blackwelder 1982, "Proving the null hypothesis in clinical trials"). Larger is better.

    alpha is one-sided. The planned cases are those either arm names. Raises ValueError for a margin outside (0, range].
    Deviation: a pseudo-cluster guards against arms that agree by luck: half a cluster as bad as the worst one seen, or with
    fewer than 6 differing cases a whole one that b lost entirely.
    """
    width = score_range[1] - score_range[0]
    if not 0.0 < margin <= width:
        raise ValueError(f"a margin must lie above 0 and within the score range of {width}, found {margin}")
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"alpha must lie between 0 and 1, found {alpha}")
    pairs = shared_pairs(a, b, world)
    shared = len(pairs.a)
    planned = list(dict.fromkeys([*a, *b]))
    lost = [case for case in planned if a.get(case) is None or b.get(case) is None]
    if not shared:
        return NonInferiority(n_shared=0, n_missing=len(lost), flags=("no_shared_cases",))
    d = pairs.b - pairs.a
    found = _tested(d, pairs.clusters, margin, alpha, width)
    filled = found
    if lost:
        against = np.concatenate([d, np.full(len(lost), -width)])
        filled = _tested(against, [*pairs.clusters, *case_clusters(lost, world)], margin, alpha, width)
    return NonInferiority(
        n_shared=shared,
        n_missing=len(lost),
        diff=float(d.mean()),
        se=found.se,
        df=found.df,
        n_discordant=found.n_discordant,
        diff_guarded=found.diff_guarded,
        se_guarded=found.se_guarded,
        lower=found.lower,
        p=found.p,
        non_inferior=found.verdict,
        non_inferior_filled=filled.verdict,
        provisional=found.verdict is not None and found.verdict != filled.verdict,
        flags=found.flags,
    )


@dataclass(frozen=True, kw_only=True)
class _Tested:
    n_discordant: int
    se: float | None = None
    df: float | None = None
    diff_guarded: float | None = None
    se_guarded: float | None = None
    lower: float | None = None
    p: float | None = None
    verdict: bool | None = None
    flags: tuple[str, ...]


def _tested(d: Floats, clusters: Sequence[Hashable], margin: float, alpha: float, width: float) -> _Tested:
    error, discordant = cr2(d, clusters), int(np.sum(np.abs(d) > EPS))
    if error.se is None or error.df is None:
        return _Tested(n_discordant=discordant, flags=("one_cluster",))
    few, constant = discordant < MIN_DISCORDANT, error.se <= EPS
    sums, sizes = cluster_sums(d, clusters)
    h, m = (1.0, width) if few or constant else (0.5, max(0.0, -float(np.min(sums / sizes))))
    groups, diff = float(error.n_clusters), float(d.mean())
    guarded = (groups * diff - h * m) / (groups + h)
    spread = groups * (groups - 1.0) * error.se**2 + h * groups / (groups + h) * (diff + m) ** 2
    se = math.sqrt(spread / ((groups + h) * (groups + h - 1.0)))
    certain = se <= EPS
    p = 1.0 if certain else t_above((guarded + margin) / se, error.df)
    return _Tested(
        n_discordant=discordant,
        se=error.se,
        df=error.df,
        diff_guarded=guarded,
        se_guarded=se,
        lower=guarded if certain else guarded - t_quantile(1.0 - alpha, error.df) * se,
        p=p,
        verdict=p < alpha,
        flags=(*pair_flags(few=few, constant=constant), *few_clusters(error.df)),
    )
