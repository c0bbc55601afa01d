"""What the report's first page says, from the leaderboard and the scored table. Nothing here is read or written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from eval_pipeline.analysis.leaderboard import Leaderboard
from eval_pipeline.analysis.report_pages import number, p_value, signed
from eval_pipeline.analysis.stats import Contrast, contrasts, score_range
from eval_pipeline.analysis.tables import ScoredCell
from eval_pipeline.domain.rubric import Criterion
from eval_pipeline.store.ledger import ExperimentRow

HEAT_STEPS = 10
CaseMeans = dict[str, dict[str, float | None]]
"""arm -> case -> mean of its known values; None without any"""


@dataclass(frozen=True, kw_only=True)
class Shade:
    """step: 0..10 of the scale, None for what could not be had. text: what stands in the field."""

    value: float | None
    step: int | None


@dataclass(frozen=True, kw_only=True)
class HeatField:
    mean: Shade
    cells: list[ScoredCell]


@dataclass(frozen=True, kw_only=True)
class HeatRow:
    case: str
    fields: list[HeatField]


@dataclass(frozen=True, kw_only=True)
class CriterionLine:
    """shares: by arm, how far the text was true of the answers. bad: a good answer does not do it."""

    criterion: Criterion
    shares: list[Shade]
    bad: bool


@dataclass(frozen=True, kw_only=True)
class Data:
    """All that the first page is made of. span: the range a score may have under the policy."""

    experiment: ExperimentRow
    board: Leaderboard
    cells: Sequence[ScoredCell]
    span: tuple[float, float]

    @classmethod
    def of(cls, experiment: ExperimentRow, board: Leaderboard, cells: Sequence[ScoredCell]) -> Data:
        rubrics = [case.rubric for case in experiment.score.cases.values()]
        return cls(experiment=experiment, board=board, cells=cells, span=score_range(experiment.score.policy, rubrics))

    @property
    def arms(self) -> list[str]:
        return [arm.name for arm in self.experiment.run.arms]

    @property
    def worlds(self) -> dict[str, str]:
        return {case.name: case.world for case in self.experiment.run.cases}

    def case_means(self, value: str = "score") -> CaseMeans:
        """value: score, cost_usd or latency_s."""
        known: dict[str, dict[str, list[float]]] = {arm: {case: [] for case in self.worlds} for arm in self.arms}
        for cell in self.cells:
            if cell.valid and (found := getattr(cell, value)) is not None:
                known[cell.key.arm][cell.key.case_name].append(float(found))
        return {arm: {case: fmean(all_of) if all_of else None for case, all_of in of.items()} for arm, of in known.items()}

    def contrasts(self) -> list[Contrast]:
        return contrasts(self.case_means(), self.board.baseline, self.worlds, score_range=self.span)

    def shade(self, value: float | None) -> Shade:
        low, high = self.span
        step = None if value is None else round(min(max((value - low) / (high - low), 0.0), 1.0) * HEAT_STEPS)
        return Shade(value=value, step=step)


def headline(data: Data, family: Sequence[Contrast]) -> list[str]:
    """Sentences. Without coverage none of them ranks an arm."""
    board = data.board
    if board.status != "final":
        return [f"This result is provisional: {'; '.join(board.reasons)}. Arms are not ranked."]
    best = max((arm for arm in board.arms if arm.score is not None), key=lambda arm: arm.score or 0.0, default=None)
    if best is None:
        return ["No cell has a score."]
    interval = "" if best.ci_low is None else f" (95% CI {number(best.ci_low)} to {number(best.ci_high)})"
    alone = len(board.arms) == 1
    said = [
        f"{best.arm} has {'a' if alone else 'the highest'} mean score{'' if alone else ','} of {number(best.score)}{interval}."
    ]
    if not family:
        return said
    sure = [one for one in family if one.significant]
    said += [f"{one.b} differs from {one.a} by {signed(one.difference.diff)} (p {_is(one.p_holm)} after Holm)." for one in sure]
    if not sure:
        against = f"from the baseline {board.baseline}" if board.baseline else "from another"
        known = any(one.p_holm is not None for one in family)
        said.append(
            f"No arm differs significantly {against} (5%, Holm)."
            if known
            else f"Whether an arm differs {against} can't be told: all cases are of one world."
        )
    return said


def _is(p: float | None) -> str:
    text = str(p_value(p))
    return text if text.startswith("<") else f"= {text}"


def heat(data: Data) -> dict[str, list[HeatRow]]:
    """By world, in the experiment's order."""
    by_case: dict[tuple[str, str], list[ScoredCell]] = defaultdict(list)
    for cell in data.cells:
        by_case[cell.key.case_name, cell.key.arm].append(cell)
    means = data.case_means()
    rows: dict[str, list[HeatRow]] = defaultdict(list)
    for case in data.experiment.run.cases:
        fields = [HeatField(mean=data.shade(means[arm][case.name]), cells=by_case[case.name, arm]) for arm in data.arms]
        rows[case.world].append(HeatRow(case=case.case, fields=fields))
    return dict(rows)


def criteria(data: Data) -> dict[str, list[CriterionLine]]:
    """By case: of each criterion, by arm, the mean of what its verdicts are of the most they could be."""
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for cell in data.cells:
        for row in cell.criteria if cell.valid else ():
            if row.verdict is not None:
                found[cell.key.case_name, row.id, cell.key.arm].append(row.verdict)
    lines: dict[str, list[CriterionLine]] = {}
    for case in data.experiment.run.cases:
        lines[case.name] = [
            CriterionLine(
                criterion=one,
                shares=[_share(found.get((case.name, one.id, arm)), one) for arm in data.arms],
                bad=one.points < 0,
            )
            for one in data.experiment.score.cases[case.name].rubric.criteria
        ]
    return lines


def _share(verdicts: Sequence[float] | None, criterion: Criterion) -> Shade:
    if not verdicts:
        return Shade(value=None, step=None)
    share = fmean(min(verdict / criterion.effective_cap, 1.0) for verdict in verdicts)
    return Shade(value=share, step=round((1 - share if criterion.points < 0 else share) * HEAT_STEPS))


def groups(data: Data) -> dict[str, list[Shade]]:
    """By group of criteria: by arm the mean over cases of the group's score; empty where no criterion has a group."""
    known: dict[str, dict[str, dict[str, list[float]]]] = {}
    for cell in data.cells:
        for group, score in cell.groups.items():
            if cell.valid and score is not None:
                by_arm = known.setdefault(group, {})
                by_arm.setdefault(cell.key.arm, {}).setdefault(cell.key.case_name, []).append(score)
    return {group: [data.shade(_mean_of_means(by_arm.get(arm, {}))) for arm in data.arms] for group, by_arm in known.items()}


def _mean_of_means(cases: Mapping[str, Sequence[float]]) -> float | None:
    return fmean(fmean(values) for values in cases.values()) if cases else None
