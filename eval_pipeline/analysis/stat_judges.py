"""Votes of a judge, and the biases a judge is checked for."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from eval_pipeline.analysis.stat_distributions import binomial_cdf
from eval_pipeline.analysis.stat_intervals import EPS, Floats

Vote = Literal[0, 1, "abstain", "failed"]
Winner = Literal["a", "b", "tie"]


@dataclass(frozen=True, kw_only=True)
class Votes:
    """n_votes: valid ones. share: of them that say met. verdict: 1, 0, or 0.5 at a tie; None without a valid vote.

    agreement: share of the pairs of votes that agree, None below two votes. flag: "", tie or no_votes.
    """

    n_votes: int
    n_abstain: int
    n_failed: int
    share: float | None
    verdict: float | None
    agreement: float | None
    flag: str


def aggregate_votes(votes: Iterable[Vote]) -> Votes:
    """The majority of the valid votes; a failed call is no vote, never "not met". agreement is P_i of Fleiss (1971).

    Raises ValueError for anything that is no vote.
    """
    cast: list[Vote] = list(votes)
    strange = [vote for vote in cast if isinstance(vote, bool) or vote not in (0, 1, "abstain", "failed")]
    if strange:
        raise ValueError(f"a vote is 1, 0, 'abstain' or 'failed', found {strange[0]!r}")
    met, n_abstain, n_failed = cast.count(1), cast.count("abstain"), cast.count("failed")
    n = len(cast) - n_abstain - n_failed
    if not n:
        return Votes(n_votes=0, n_abstain=n_abstain, n_failed=n_failed, share=None, verdict=None, agreement=None, flag="no_votes")
    agreeing = met * (met - 1) + (n - met) * (n - met - 1)
    tie = 2 * met == n
    return Votes(
        n_votes=n,
        n_abstain=n_abstain,
        n_failed=n_failed,
        share=met / n,
        verdict=0.5 if tie else float(2 * met > n),
        agreement=agreeing / (n * (n - 1)) if n > 1 else None,
        flag="tie" if tie else "",
    )


@dataclass(frozen=True, kw_only=True)
class PositionBias:
    """None without a decisive pair."""

    rate: float | None
    p: float | None


def position_bias(first_wins: int, decisive_pairs: int) -> PositionBias:
    """How often the answer shown first wins, against one half: the exact two-sided binomial test (Zheng et al. 2023, "Judging
    LLM-as-a-judge", name the bias)."""
    if not 0 <= first_wins <= decisive_pairs:
        raise ValueError(f"first wins must lie within 0..decisive pairs, found {first_wins} of {decisive_pairs}")
    if not decisive_pairs:
        return PositionBias(rate=None, p=None)
    fewer = min(first_wins, decisive_pairs - first_wins)
    return PositionBias(rate=first_wins / decisive_pairs, p=min(1.0, 2.0 * binomial_cdf(fewer, decisive_pairs)))


@dataclass(frozen=True, kw_only=True)
class OrderCheck:
    """consistency: share of the pairs whose winner is the same in both orders; None without a pair."""

    n_pairs: int
    consistency: float | None
    bias: PositionBias


def order_check(pairs: Iterable[tuple[Winner, Winner]]) -> OrderCheck:
    """Each pair judged in both orders, (winner with a shown first, winner with b shown first). A judgement with a winner is decisive."""
    seen = list(pairs)
    decisive = sum(winner != "tie" for pair in seen for winner in pair)
    first = sum((forward == "a") + (backward == "b") for forward, backward in seen)
    same = sum(forward == backward for forward, backward in seen)
    return OrderCheck(n_pairs=len(seen), consistency=same / len(seen) if seen else None, bias=position_bias(first, decisive))


def verbosity_spearman(length: Sequence[float], score: Sequence[float | None]) -> float | None:
    """Spearman's (1904) rank correlation, average ranks at ties. score: a judge's, or its gap to a human's. None is left out.

    None below two known pairs, or when one side does not vary.
    """
    known = [(size, value) for size, value in zip(length, score, strict=True) if value is not None]
    if len(known) < 2:
        return None
    x, y = (_ranks([pair[side] for pair in known]) for side in (0, 1))
    if min(float(x.std()), float(y.std())) <= EPS:
        return None
    return min(max(float(np.corrcoef(x, y)[0, 1]), -1.0), 1.0)


def _ranks(values: Sequence[float]) -> Floats:
    _, index, counts = np.unique(np.array(values, dtype=np.float64), return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2.0)[index]


def family_gaps(
    rows: Iterable[tuple[Hashable, Hashable, float | None, float | None]],
) -> Mapping[tuple[Hashable, Hashable], float]:
    """Mean of judge - human by (judge family, arm family), from rows (judge family, arm family, judge's score, human's score).

    A judge that favours its own family shows a larger gap there (Panickssery, Bowman and Feng 2024). Rows lacking a score are left out.
    """
    gaps: dict[tuple[Hashable, Hashable], list[float]] = {}
    for judge, arm, said, true in rows:
        if said is not None and true is not None:
            gaps.setdefault((judge, arm), []).append(said - true)
    return {families: math.fsum(found) / len(found) for families, found in gaps.items()}
