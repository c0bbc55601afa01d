"""Arms against each other: paired comparisons, ranks where they may be given, and the front of score, cost and latency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from eval_pipeline.analysis import measures
from eval_pipeline.analysis.arm_rows import Worlds
from eval_pipeline.analysis.board import ArmRow, Comparison, Front
from eval_pipeline.analysis.stat_arms import MAX_INFRA_GAP, MIN_COMMON, MIN_VALID
from eval_pipeline.analysis.stats import (
    AdjustedMeans,
    Contrast,
    adjusted_means,
    case_clusters,
    contrasts,
    front_label,
    probs_on_fronts,
    rank_intervals,
)
from eval_pipeline.analysis.tables import ScoredCell
from eval_pipeline.domain.failure import MAX_PROVIDER_GAP, Failure

_SLACK = 1e-9
_RESPECTS = (measures.score, measures.cost_usd, measures.latency_s)


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """unranked: why no arm has a rank. n_cases: of any arm; n_common: that all arms have."""

    arms: list[ArmRow]
    comparisons: list[Comparison]
    unranked: list[str]
    n_cases: int
    n_common: int


def ranked(
    rows: Sequence[ArmRow],
    cells: Mapping[str, Sequence[ScoredCell]],
    baseline: str | None,
    worlds: Worlds,
    span: tuple[float, float],
    resamples: int,
) -> Ranked:
    means = {row.arm: _planned(cells.get(row.arm, ())) for row in rows}
    adjusted = adjusted_means(means)
    unranked = [] if len(rows) < 2 else [*_coverage(rows), *_common(adjusted), *gaps(rows)]
    ground = _on_common(means) if adjusted.rankable else means
    family = contrasts(ground, baseline, worlds, score_range=span) if len(rows) > 1 else []
    fronts = _fronts(cells, [row.arm for row in rows], worlds, resamples)
    ranks = rank_intervals(list(means), family) if len(rows) > 1 and not unranked else {}
    return Ranked(
        arms=[_placed(row, adjusted, ranks.get(row.arm), fronts[row.arm]) for row in rows],
        comparisons=[comparison(contrast) for contrast in family],
        unranked=unranked,
        n_cases=adjusted.n_cases,
        n_common=adjusted.n_common,
    )


def _placed(row: ArmRow, adjusted: AdjustedMeans, rank: tuple[int, int] | None, front: Front) -> ArmRow:
    best, worst = rank or (None, None)
    return replace(row, score_common=adjusted.common[row.arm], rank_best=best, rank_worst=worst, front=front)


def _planned(cells: Sequence[ScoredCell]) -> dict[str, float | None]:
    """Case -> mean score; None for a case without a scored cell."""
    return dict.fromkeys(cell.key.case_name for cell in cells) | measures.case_means(cells, measures.score)


def _on_common(means: Mapping[str, Mapping[str, float | None]]) -> dict[str, dict[str, float | None]]:
    known = [{case for case, value in one.items() if value is not None} for one in means.values()]
    common = set.intersection(*known) if known else set()
    return {arm: {case: value for case, value in one.items() if case in common} for arm, one in means.items()}


def _coverage(rows: Sequence[ArmRow]) -> list[str]:
    planned = sum(row.n_cells for row in rows)
    scored = sum(row.coverage * row.n_cells for row in rows)
    if scored >= MIN_VALID * planned - _SLACK:
        return []
    return [f"{scored / planned:.1%} of {planned} cells have a score, {MIN_VALID:.0%} are needed"]


def _common(adjusted: AdjustedMeans) -> list[str]:
    if adjusted.rankable:
        return []
    return [f"{adjusted.n_common} of {adjusted.n_cases} cases have a scored cell in every arm, {MIN_COMMON:.0%} are needed"]


def gaps(rows: Sequence[ArmRow]) -> list[str]:
    """An arm that the platform or its provider failed more often looks worse than it is."""
    of_planned = [row.n_infra / row.n_cells for row in rows if row.n_cells]
    of_ended = [rate for row in rows if (rate := row.rates[Failure.PROVIDER]) is not None]
    return [
        *_gap("infrastructure failures", of_planned, MAX_INFRA_GAP),
        *_gap("provider errors", of_ended, MAX_PROVIDER_GAP),
    ]


def _gap(what: str, rates: Sequence[float], most: float) -> list[str]:
    if not rates or max(rates) - min(rates) <= most + _SLACK:
        return []
    return [f"{what} differ between arms: {min(rates):.1%} to {max(rates):.1%}, {most * 100:.0f} points are allowed"]


def comparison(contrast: Contrast) -> Comparison:
    found = contrast.difference
    return Comparison(
        a=contrast.a,
        b=contrast.b,
        n_shared=found.n_shared,
        diff=found.diff,
        ci_low=found.ci_lower,
        ci_high=found.ci_upper,
        p=found.p,
        p_holm=contrast.p_holm,
        significant=contrast.significant,
        wins=found.wins,
        losses=found.losses,
        ties=found.ties,
        flags=list(found.flags),
    )


def _fronts(cells: Mapping[str, Sequence[ScoredCell]], arms: Sequence[str], worlds: Worlds, resamples: int) -> dict[str, Front]:
    tables = {arm: [measures.case_means(cells.get(arm, ()), measure) for measure in _RESPECTS] for arm in arms}
    priced = {arm: table for arm, table in tables.items() if all(table[:2])}
    if all(table[2] for table in priced.values()):
        cost, latency = _on_fronts(priced, [(0, 1), (0, 1, 2)], worlds, resamples)
    else:
        (cost,) = _on_fronts({arm: table[:2] for arm, table in priced.items()}, [(0, 1)], worlds, resamples)
        (latency,) = _on_fronts({arm: table for arm, table in priced.items() if table[2]}, [(0, 1, 2)], worlds, resamples)
    return {arm: Front(cost=cost.get(arm), latency=latency.get(arm), on=front_label(cost.get(arm))) for arm in arms}


def _on_fronts(
    tables: Mapping[str, Sequence[Mapping[str, float]]], fronts: Sequence[Sequence[int]], worlds: Worlds, resamples: int
) -> list[dict[str, float | None]]:
    """On the cases that all of the arms have."""
    shared = [set(means) for table in tables.values() for means in table]
    common = set.intersection(*shared) if shared else set()
    cases = [case for case in (next(iter(tables.values()))[0] if tables else ()) if case in common]
    if len(tables) < 2 or len(set(case_clusters(cases, worlds))) < 2:
        return [{} for _ in fronts]
    ground = {arm: [{case: means[case] for case in cases} for means in table] for arm, table in tables.items()}
    directions = ("max", "min", "min")[: len(next(iter(ground.values())))]
    return probs_on_fronts(ground, directions, fronts, worlds, resamples)
