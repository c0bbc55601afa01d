"""What another scoring of the same results changes: old and new score of each cell, paired."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from eval_pipeline.analysis.stats import PairedDifference, paired_difference, score_range
from eval_pipeline.analysis.tables import ScoredCell
from eval_pipeline.store.ledger import ExperimentRow


@dataclass(frozen=True, kw_only=True)
class ArmChange:
    """old, new: means over cases of the cells that both scorings could score; None without any. change: new - old, by case."""

    arm: str
    n_cells: int
    n_differ: int
    old: float | None
    new: float | None
    change: PairedDifference


def arm_changes(experiment: ExperimentRow, old: Sequence[ScoredCell], new: Sequence[ScoredCell]) -> list[ArmChange]:
    """old, new: the tables of the same cells, under one policy, in one order."""
    worlds = {case.name: case.world for case in experiment.run.cases}
    span = score_range(experiment.score.policy, [case.rubric for case in experiment.score.cases.values()])
    changes: list[ArmChange] = []
    for arm in experiment.run.arms:
        before: dict[str, list[float]] = defaultdict(list)
        after: dict[str, list[float]] = defaultdict(list)
        for a, b in zip(old, new, strict=True):
            if a.key.arm == arm.name and a.score is not None and b.score is not None:
                before[a.key.case_name].append(a.score)
                after[a.key.case_name].append(b.score)
        pairs = [(x, y) for case in before for x, y in zip(before[case], after[case], strict=True)]
        means = [{case: fmean(values) for case, values in found.items()} for found in (before, after)]
        changes.append(
            ArmChange(
                arm=arm.name,
                n_cells=len(pairs),
                n_differ=sum(x != y for x, y in pairs),
                old=fmean(means[0].values()) if pairs else None,
                new=fmean(means[1].values()) if pairs else None,
                change=paired_difference(means[0], means[1], worlds, score_range=span),
            )
        )
    return changes
