"""Improving an agent without fooling oneself: cases to work on, cases kept apart, and what a lost cell counts as in between."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

MIN_HOLDOUT_CASES = 100


@dataclass(frozen=True, kw_only=True)
class Split:
    """Cases in the order given. flags: small_holdout (below 100 cases: size it by power), one_sided (a side is empty)."""

    dev: tuple[str, ...]
    holdout: tuple[str, ...]
    flags: tuple[str, ...]


def split_holdout(
    cases: Sequence[str],
    world: Mapping[str, str] | None = None,
    stratum: Mapping[str, str] | None = None,
    share: float = 0.5,
    seed: int = 0,
) -> Split:
    """Split cases by whole worlds, so that nothing learned of a world in dev helps in the holdout, stratum by stratum.

    stratum: a tag a case; a world belongs to that of most of its cases. share: of the cases that go to the holdout. Within a
    stratum, worlds in an order drawn by the seed go to the side that lacks more cases of its share (stratified cluster sampling,
    Cochran 1977, "Sampling techniques").
    """
    if not 0.0 < share < 1.0:
        raise ValueError(f"a holdout's share lies between 0 and 1, found {share}")
    members: dict[tuple[str, str], list[str]] = {}
    for case in cases:
        label = ("world", world[case]) if world and case in world else ("case", case)
        members.setdefault(label, []).append(case)
    strata: dict[str, list[list[str]]] = {}
    for label in sorted(members):
        strata.setdefault(_main_stratum(members[label], stratum or {}), []).append(members[label])
    rng, kept = np.random.default_rng(seed), set[str]()
    for name in sorted(strata):
        worlds, sizes = strata[name], [0.0, 0.0]
        for index in rng.permutation(len(worlds)):
            drawn = worlds[int(index)]
            side = int(sizes[1] / share <= sizes[0] / (1.0 - share))
            sizes[side] += len(drawn)
            kept.update(drawn if side else ())
    dev, holdout = (tuple(case for case in cases if (case in kept) == side) for side in (False, True))
    flags = ("small_holdout",) * (len(holdout) < MIN_HOLDOUT_CASES) + ("one_sided",) * (not (dev and holdout))
    return Split(dev=dev, holdout=holdout, flags=flags)


def _main_stratum(cases: Sequence[str], stratum: Mapping[str, str]) -> str:
    tags = [stratum.get(case, "") for case in cases]
    return max(sorted(set(tags)), key=tags.count)


def loop_value(
    value: float | None, role: Literal["candidate", "baseline"], score_range: tuple[float, float] = (0.0, 1.0)
) -> float:
    """What a cell counts as while searching: a missing one is the worst for a candidate and the best for the baseline, so that
    failing to be measured never helps. For accepting only, never for publishing."""
    if value is not None and math.isfinite(value):
        return value
    return score_range[0] if role == "candidate" else score_range[1]
