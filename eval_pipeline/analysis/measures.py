"""What is measured of an arm's cells, and its means by case: the columns that comparisons are made of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from statistics import fmean

from eval_pipeline.analysis.stats import score_range
from eval_pipeline.analysis.tables import ScoredCell
from eval_pipeline.store.ledger import ExperimentRow

Measure = Callable[[ScoredCell], float | None]
"""None: not known of this cell."""


def score(cell: ScoredCell) -> float | None:
    return cell.score


def passed(cell: ScoredCell) -> float | None:
    return None if cell.passed is None else float(cell.passed)


def all_passed(cell: ScoredCell) -> float | None:
    return None if cell.all_passed is None else float(cell.all_passed)


def cost_usd(cell: ScoredCell) -> float | None:
    return None if cell.cost_usd is None else float(cell.cost_usd)


def cold_cost_usd(cell: ScoredCell) -> float | None:
    return None if cell.cold_cost_usd is None else float(cell.cold_cost_usd)


def sandbox_usd(cell: ScoredCell) -> float | None:
    return None if cell.sandbox_cost_usd is None else float(cell.sandbox_cost_usd)


def latency_s(cell: ScoredCell) -> float | None:
    return cell.latency_s


def case_means(cells: Iterable[ScoredCell], measure: Measure) -> dict[str, float]:
    """Case -> mean over its valid cells with a known value; a case without any is left out."""
    known: dict[str, list[float]] = defaultdict(list)
    for cell in cells:
        if cell.valid and (value := measure(cell)) is not None:
            known[cell.key.case_name].append(value)
    return {case: fmean(values) for case, values in known.items()}


def mean_over_cases(cells: Iterable[ScoredCell], measure: Measure) -> float | None:
    means = case_means(cells, measure)
    return fmean(means.values()) if means else None


def by_arm(cells: Iterable[ScoredCell]) -> dict[str, list[ScoredCell]]:
    found: dict[str, list[ScoredCell]] = defaultdict(list)
    for cell in cells:
        found[cell.key.arm].append(cell)
    return found


def worlds_of(experiment: ExperimentRow) -> dict[str, str]:
    """Case -> its world: what is drawn as one, and so the cluster of an interval."""
    return {case.name: case.world for case in experiment.run.cases}


def span_of(experiment: ExperimentRow) -> tuple[float, float]:
    """The lowest and the highest score that a cell can have."""
    return score_range(experiment.score.policy, [case.rubric for case in experiment.score.cases.values()])
