"""Two arms on the cases they share: quality, cost and latency, whether the data can tell, and what moved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Literal

from eval_pipeline.analysis.comparable import Side, shared_cases, unequal_ground
from eval_pipeline.analysis.moves import CaseMove, CriterionMove, case_moves, criterion_moves
from eval_pipeline.analysis.power import PowerAnalysis, Spread, harmonic_mean, power_analysis
from eval_pipeline.analysis.stats import (
    LogRatio,
    NonInferiority,
    PairedDifference,
    case_clusters,
    experiment_summary,
    non_inferiority,
    paired_difference,
    paired_log_ratio,
    provisional_reasons,
)
from eval_pipeline.analysis.tables import ScoredCell, count_failures, counted_status
from eval_pipeline.domain.failure import MAX_PROVIDER_GAP, Failure

DEFAULT_MARGIN = 0.05
ALPHA = 0.05
POWER = 0.8

Cases = Mapping[str, Sequence[ScoredCell]]
Answer = Literal["better", "worse", "undecided", "unknown"]
_EPS = 1e-12


@dataclass(frozen=True, kw_only=True)
class SideSummary:
    """Of the shared cases. score, pass_rate, cost_usd, latency_s: means over cases of the means over trials; None: could not be had.

    latency_s counts a timeout as its limit. n_unpriced: valid cells of unknown cost. failures: cells by kind of failure.
    imported: read from another system's files.
    """

    experiment: str
    arm: str
    commit: str | None
    config: dict[str, Any]
    n_cells: int
    n_valid: int
    n_scored: int
    n_unpriced: int
    n_timeouts: int
    score: float | None
    pass_rate: float | None
    cost_usd: float | None
    latency_s: float | None
    failures: dict[str, int]
    imported: bool = False


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """b against a. difference: b - a in score points; cost, latency: ratios b / a, below 1 is cheaper or faster.

    quality: what the two-sided test of the difference says; undecided: the data can't tell; unknown: no test could be made.
    non_inferiority: whether b is worse by less than `margin`, alpha one-sided. non_inferior: its verdict, None where it can't be
    told or changes when every missing case or cell is counted against b (`provisional_verdict`): that passes no gate.
    cheaper: whether the cost ratio's interval lies below 1, None without an interval; cheaper_at_quality: that, and not inferior.
    status: final, or provisional with reasons, of these two arms' cells. power: what this design shows, and what would show more: first
    a difference as large as was seen, then one as large as the margin; None with fewer than two shared cases.
    cases: all of them, the largest moves first; criteria: those that were decided in both, likewise.
    """

    a: SideSummary
    b: SideSummary
    n_cases: int
    n_worlds: int
    score_low: float
    score_high: float
    alpha: float
    margin: float
    status: str
    reasons: list[str]
    notes: list[str]
    difference: PairedDifference
    cost: LogRatio
    latency: LogRatio
    non_inferiority: NonInferiority
    quality: Answer
    non_inferior: bool | None
    provisional_verdict: bool
    cheaper: bool | None
    cheaper_at_quality: bool | None
    power: PowerAnalysis | None
    cases: list[CaseMove]
    criteria: list[CriterionMove]

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


def compare(
    a: Side,
    b: Side,
    *,
    margin: float = DEFAULT_MARGIN,
    alpha: float = ALPHA,
    power: float = POWER,
) -> Comparison:
    """margin: in score points, declared before the run. power: with which differences are to be shown.

    Raises SpecError where the two can't be compared, ValueError for a margin outside the range of scores.
    """
    names = shared_cases(a, b)
    span = a.span(names)
    world = {name: known for name in names if (known := a.worlds.get(name) or b.worlds.get(name)) is not None}
    cases_a, cases_b = _by_case(a, names), _by_case(b, names)
    scores = [means(cases, lambda cell: cell.score) for cases in (cases_a, cases_b)]
    difference = paired_difference(scores[0], scores[1], world, alpha, span)
    verdict = non_inferiority(scores[0], scores[1], margin, world, alpha, span)
    filled = [_against_b(cases_a, span[1]), _against_b(cases_b, span[0])]
    worst = non_inferiority(filled[0], filled[1], margin, world, alpha, span).non_inferior_filled
    flips = verdict.non_inferior is not None and verdict.non_inferior != worst
    cost = _cost(cases_a, cases_b, world, alpha)
    cheaper = None if cost.ci_upper is None else cost.ci_upper < 1.0
    no_worse = None if flips else verdict.non_inferior
    reasons = _reasons(a, b, cases_a, cases_b, world, span)
    return Comparison(
        a=_summary(a, cases_a),
        b=_summary(b, cases_b),
        n_cases=len(names),
        n_worlds=len(set(case_clusters(names, world))),
        score_low=span[0],
        score_high=span[1],
        alpha=alpha,
        margin=margin,
        status="provisional" if reasons else "final",
        reasons=reasons,
        notes=[*unequal_ground(a, b, names), *_same_results(cases_a, cases_b)],
        difference=difference,
        cost=cost,
        latency=_latency(a, b, cases_a, cases_b, world, alpha),
        non_inferiority=verdict,
        quality=_answer(difference, alpha),
        non_inferior=no_worse,
        provisional_verdict=flips,
        cheaper=cheaper,
        cheaper_at_quality=None if cheaper is None or no_worse is None else cheaper and no_worse,
        power=_power(a, b, cases_a, cases_b, sizes=(abs(difference.diff or 0.0), margin), alpha=alpha, power=power),
        cases=case_moves(cases_a, cases_b),
        criteria=criterion_moves(a.experiment.score, cases_a, cases_b) if a.experiment and b.experiment else [],
    )


def means(cases: Cases, value: Callable[[ScoredCell], Any]) -> dict[str, float | None]:
    """By case, over its valid cells with a known value; None without any."""
    found: dict[str, float | None] = {}
    for name, cells in cases.items():
        known = [float(number) for cell in cells if cell.valid and (number := value(cell)) is not None]
        found[name] = fmean(known) if known else None
    return found


def _by_case(side: Side, names: Sequence[str]) -> Cases:
    found: dict[str, list[ScoredCell]] = {name: [] for name in names}
    for cell in side.cells:
        if cell.key.case_name in found:
            found[cell.key.case_name].append(cell)
    return found


def _against_b(cases: Cases, fill: float) -> dict[str, float | None]:
    """Missing cells filled, of cases that have a score; a case without any is filled by the test itself."""
    return {
        name: fmean(fill if cell.score is None else cell.score for cell in cells)
        if any(c.score is not None for c in cells)
        else None
        for name, cells in cases.items()
    }


def _answer(difference: PairedDifference, alpha: float) -> Answer:
    if difference.p is None or difference.diff is None:
        return "unknown"
    if difference.p >= alpha:
        return "undecided"
    return "better" if difference.diff > 0 else "worse"


def _cost(a: Cases, b: Cases, world: Mapping[str, str], alpha: float) -> LogRatio:
    return paired_log_ratio(means(a, lambda cell: cell.cost_usd), means(b, lambda cell: cell.cost_usd), world, alpha)


def _latency(left: Side, right: Side, a: Cases, b: Cases, world: Mapping[str, str], alpha: float) -> LogRatio:
    timeouts = {"a": _timeouts(a), "b": _timeouts(b)}
    known = left.walls is not None and right.walls is not None
    if not known and left.table != right.table and any(timeouts.values()):
        return LogRatio(n_shared=len(a), flags=("unequal_limits",))
    walls = (left.walls or {}, right.walls or {}) if known else None
    return paired_log_ratio(
        means(a, lambda cell: cell.latency_s),
        means(b, lambda cell: cell.latency_s),
        world,
        alpha,
        timeouts,
        walls,
    )


def _timeouts(cases: Cases) -> int:
    return sum(cell.censored and cell.latency_s is not None for cells in cases.values() for cell in cells)


def _power(
    left: Side, right: Side, a: Cases, b: Cases, *, sizes: Sequence[float], alpha: float, power: float
) -> PowerAnalysis | None:
    scored = [{name: [cell.score for cell in cells] for name, cells in cases.items()} for cases in (a, b)]
    both = [name for name in a if all(any(value is not None for value in one[name]) for one in scored)]
    spread = Spread.of_pilot(scored[0], scored[1], f"{left.name} and {right.name}")
    if spread is None:
        return None
    k_a, k_b = (harmonic_mean([sum(value is not None for value in one[name]) for name in both]) for one in scored)
    return power_analysis(spread, len(both), k_a, k_b, [size for size in sizes if size > _EPS], alpha, power)


def _reasons(left: Side, right: Side, a: Cases, b: Cases, world: Mapping[str, str], span: tuple[float, float]) -> list[str]:
    """As a leaderboard of these two arms has them."""
    sides = {left.name if left.arm == right.arm else left.arm: a, right.name if left.arm == right.arm else right.arm: b}
    rows = [
        (name, case, cell.key.trial, counted_status(cell), cell.score)
        for name, cases in sides.items()
        for case, cells in cases.items()
        for cell in cells
    ]
    rates = [_provider_rate([cell for cells in cases.values() for cell in cells]) for cases in (a, b)]
    known = [rate for rate in rates if rate is not None]
    reasons = provisional_reasons(experiment_summary(rows, world, span))
    if len(known) == 2 and abs(known[0] - known[1]) > MAX_PROVIDER_GAP + _EPS:
        reasons.append(f"provider errors differ between arms: {known[0]:.1%} and {known[1]:.1%}, 2 points are allowed")
    return reasons


def _provider_rate(cells: Sequence[ScoredCell]) -> float | None:
    ended = sum(cell.valid or cell.status == "infra_failure" for cell in cells)
    return count_failures(cells)[Failure.PROVIDER] / ended if ended else None


def _same_results(a: Cases, b: Cases) -> list[str]:
    """Adopted cells: the same run is no evidence that two arms are alike."""
    left = {cell.counted.id for cells in a.values() for cell in cells if cell.counted is not None}
    same = sum(cell.counted is not None and cell.counted.id in left for cells in b.values() for cell in cells)
    return (
        [f"{same} cells of both sides are one and the same result: they ran the same, and say nothing about a difference"]
        if same
        else []
    )


def _summary(side: Side, cases: Cases) -> SideSummary:
    cells = [cell for found in cases.values() for cell in found]
    return SideSummary(
        experiment=side.table,
        arm=side.arm,
        commit=side.commit,
        config=side.config,
        n_cells=len(cells),
        n_valid=sum(cell.valid for cell in cells),
        n_scored=sum(cell.score is not None for cell in cells),
        n_unpriced=sum(cell.valid and cell.cost_usd is None for cell in cells),
        n_timeouts=_timeouts(cases),
        score=_over(means(cases, lambda cell: cell.score)),
        pass_rate=_over(means(cases, lambda cell: cell.passed)),
        cost_usd=_over(means(cases, lambda cell: cell.cost_usd)),
        latency_s=_over(means(cases, lambda cell: cell.latency_s)),
        failures=count_failures(cells),
        imported=side.experiment is None,
    )


def _over(by_case: Mapping[str, float | None]) -> float | None:
    known = [mean for mean in by_case.values() if mean is not None]
    return fmean(known) if known else None
