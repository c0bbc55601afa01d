"""Several comparisons at once: a family declared before the run, Holm's p values, rank intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from eval_pipeline.analysis.stat_distributions import binomial_cdf
from eval_pipeline.analysis.stat_pairs import CaseMeans, PairedDifference, paired_difference


@dataclass(frozen=True, kw_only=True)
class Adjusted:
    """In the order of the p values given; None for a p that was None."""

    p_adj: tuple[float | None, ...]
    reject: tuple[bool | None, ...]


def holm(p: Sequence[float | None], alpha: float = 0.05) -> Adjusted:
    """Holm (1979), "A simple sequentially rejective multiple test procedure". A p of None leaves the family."""
    known = sorted((value, index) for index, value in enumerate(p) if value is not None)
    adjusted: list[float | None] = [None] * len(p)
    reached = 0.0
    for step, (value, index) in enumerate(known):
        reached = max(reached, min(1.0, (len(known) - step) * value))
        adjusted[index] = reached
    return Adjusted(p_adj=tuple(adjusted), reject=tuple(None if value is None else value <= alpha for value in adjusted))


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """b against a. p_holm and significant are None when the difference has no p."""

    a: str
    b: str
    difference: PairedDifference
    p_holm: float | None
    significant: bool | None


def contrasts(
    case_means: Mapping[str, CaseMeans],
    baseline: str | None = None,
    world: Mapping[str, str] | None = None,
    alpha: float = 0.05,
    score_range: tuple[float, float] = (0.0, 1.0),
) -> list[Contrast]:
    """The family of an experiment: every other arm against the baseline when one is named, else every pair; Holm over all of it.

    case_means: arm -> case -> mean. Raises ValueError for a baseline that is no arm.
    """
    if baseline is not None and baseline not in case_means:
        raise ValueError(f"the baseline {baseline!r} is none of the arms {', '.join(case_means)}")
    pairs = [(baseline, arm) for arm in case_means if arm != baseline] if baseline else list(combinations(case_means, 2))
    found = [paired_difference(case_means[a], case_means[b], world, alpha, score_range) for a, b in pairs]
    adjusted = holm([difference.p for difference in found], alpha)
    return [
        Contrast(a=a, b=b, difference=difference, p_holm=p, significant=reject)
        for (a, b), difference, p, reject in zip(pairs, found, adjusted.p_adj, adjusted.reject, strict=True)
    ]


def rank_intervals(arms: Sequence[str], family: Iterable[Contrast]) -> dict[str, tuple[int, int]]:
    """(best, worst) rank of every arm that the significant contrasts leave open: 1 + arms better, k - arms worse."""
    best, worst = dict.fromkeys(arms, 1), dict.fromkeys(arms, len(arms))
    for contrast in family:
        if contrast.significant and contrast.difference.diff:
            winner, loser = (contrast.b, contrast.a) if contrast.difference.diff > 0 else (contrast.a, contrast.b)
            best[loser] += 1
            worst[winner] -= 1
    return {arm: (best[arm], worst[arm]) for arm in arms}


def mcnemar_exact(a_only: int, b_only: int) -> float:
    """The exact two-sided p of passes that only one arm has, one trial a case (McNemar 1947). 1 without any."""
    if min(a_only, b_only) < 0:
        raise ValueError(f"counts must not be negative, found {a_only} and {b_only}")
    discordant = a_only + b_only
    return min(1.0, 2.0 * binomial_cdf(min(a_only, b_only), discordant)) if discordant else 1.0
