"""Which arms no other arm beats in every respect: quality against cost against latency."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from eval_pipeline.analysis.stat_bootstrap import RESAMPLES, bootstrap_means
from eval_pipeline.analysis.stat_intervals import Floats, case_clusters
from eval_pipeline.analysis.stat_pairs import CaseMeans

Direction = Literal["max", "min"]
FrontLabel = Literal["on", "off", "undetermined"]

ON_FRONT = 0.9
OFF_FRONT = 0.1


def pareto_front(arms: Sequence[Sequence[float | None]], directions: Sequence[Direction]) -> list[int]:
    """Indices of the arms that none dominates: at least as good everywhere and better somewhere, on unrounded values.

    Exact ties both stay; an arm with None is left out; infinite is allowed (Kung, Luccio and Preparata 1975 define the maxima).
    """
    known = [index for index, arm in enumerate(arms) if all(value is not None for value in arm)]
    values = np.array([arms[index] for index in known], dtype=np.float64).reshape(1, len(known), len(directions))
    on = ~_dominated(values * _signs(directions), exact=True)[0]
    return [index for index, stays in zip(known, on.tolist(), strict=True) if stays]


def _signs(directions: Sequence[Direction]) -> Floats:
    if set(directions) - {"max", "min"}:
        raise ValueError(f"directions are max or min, found {', '.join(directions)}")
    return np.array([1.0 if direction == "min" else -1.0 for direction in directions])


def _dominated(costs: Floats, *, exact: bool) -> NDArray[np.bool_]:
    """costs: table x arm x dimension, less is better; an arm with NaN neither dominates nor is dominated."""
    left, right = costs[:, :, None, :], costs[:, None, :, :]
    equal = left == right if exact else np.isclose(left, right, rtol=1e-12, atol=0.0)
    better = (left < right) & ~equal
    return np.any(np.all(better | equal, axis=3) & np.any(better, axis=3), axis=1)


def prob_on_front(
    case_values: Mapping[str, Sequence[CaseMeans]],
    directions: Sequence[Direction],
    world: Mapping[str, str] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, float | None]:
    """Share of joint bootstraps over clusters (Efron 1979) in which an arm is on the front.

    case_values: arm -> one mapping from case to mean for each direction, averaged over the arm's own cases: give the common ones to
    compare like with like. An arm that lacks one of them altogether has None and
    beats nobody; one that a resample leaves without cases is out of that resample. Means equal to 12 digits are a tie.
    """
    (found,) = probs_on_fronts(case_values, directions, [range(len(directions))], world, resamples, seed)
    return found


def probs_on_fronts(
    case_values: Mapping[str, Sequence[CaseMeans]],
    directions: Sequence[Direction],
    fronts: Sequence[Sequence[int]],
    world: Mapping[str, str] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> list[dict[str, float | None]]:
    """`prob_on_front` of several fronts from the same resamples. fronts: the directions that count in each, by position."""
    tables = {arm: values for arm, values in case_values.items() if all(_any_known(means) for means in values)}
    if any(len(values) != len(directions) for values in tables.values()):
        raise ValueError(f"an arm needs one value a case for each of {len(directions)} directions")
    if not tables:
        return [dict.fromkeys(case_values) for _ in fronts]
    cases = list(dict.fromkeys(case for values in tables.values() for means in values for case in means))
    columns = [[_number(means.get(case)) for case in cases] for values in tables.values() for means in values]
    means = bootstrap_means(np.array(columns).T, case_clusters(cases, world), resamples, seed)
    costs = means.reshape(resamples, len(tables), len(directions)) * _signs(directions)
    shares = [dict(zip(tables, _shares(costs[:, :, list(front)]), strict=True)) for front in fronts]
    return [{arm: found.get(arm) for arm in case_values} for found in shares]


def _shares(costs: Floats) -> list[float]:
    there = ~np.any(np.isnan(costs), axis=2)
    on = there & ~_dominated(np.where(there[:, :, None], costs, np.nan), exact=False)
    return (on.sum(axis=0) / np.maximum(there.sum(axis=0), 1)).tolist()


def _any_known(means: CaseMeans) -> bool:
    return any(value is not None for value in means.values())


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def front_label(p_front: float | None) -> FrontLabel | None:
    if p_front is None:
        return None
    return "on" if p_front >= ON_FRONT else "off" if p_front <= OFF_FRONT else "undetermined"
