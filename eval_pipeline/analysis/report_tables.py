"""What the report's first page says, from the leaderboard and the scored table. Nothing here is read or written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import get_args

from eval_pipeline.analysis import measures
from eval_pipeline.analysis.board import Comparison, Leaderboard
from eval_pipeline.analysis.report_pages import number, p_value, signed
from eval_pipeline.analysis.slices import By, Slice, SliceRow, slices
from eval_pipeline.analysis.tables import ScoredCell
from eval_pipeline.domain.rubric import Criterion
from eval_pipeline.store.ledger import ExperimentRow

HEAT_STEPS = 10
CaseMeans = dict[str, dict[str, float]]
"""arm -> case -> mean of its known values; a case without any is left out"""


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
class SliceField:
    """against: the baseline; None of the baseline itself, and where there is none."""

    mean: Shade
    row: SliceRow
    against: Comparison | None


@dataclass(frozen=True, kw_only=True)
class SliceLine:
    name: str
    n_cases: int
    fields: list[SliceField]


@dataclass(frozen=True, kw_only=True)
class Data:
    """All that the first page is made of. span: the range a score may have under the policy."""

    experiment: ExperimentRow
    board: Leaderboard
    cells: Sequence[ScoredCell]
    span: tuple[float, float]

    @classmethod
    def of(cls, experiment: ExperimentRow, board: Leaderboard, cells: Sequence[ScoredCell]) -> Data:
        return cls(experiment=experiment, board=board, cells=cells, span=measures.span_of(experiment))

    @property
    def arms(self) -> list[str]:
        return [arm.name for arm in self.experiment.run.arms]

    @property
    def worlds(self) -> dict[str, str]:
        return measures.worlds_of(self.experiment)

    def case_means(self, measure: measures.Measure = measures.score) -> CaseMeans:
        of_arm = measures.by_arm(self.cells)
        return {arm: measures.case_means(of_arm[arm], measure) for arm in self.arms}

    def shade(self, value: float | None) -> Shade:
        low, high = self.span
        step = None if value is None else round(min(max((value - low) / (high - low), 0.0), 1.0) * HEAT_STEPS)
        return Shade(value=value, step=step)


def headline(data: Data) -> list[str]:
    """Sentences. Without coverage none of them ranks an arm."""
    board = data.board
    if board.status != "final" or board.unranked:
        why = "; ".join(dict.fromkeys([*board.reasons, *board.unranked]))
        return [f"{'This result is provisional' if board.reasons else 'Arms are not ranked'}: {why}."]
    best = max((arm for arm in board.arms if arm.score is not None), key=lambda arm: arm.score or 0.0, default=None)
    if best is None:
        return ["No cell has a score."]
    interval = "" if best.ci_low is None else f" (95% CI {number(best.ci_low)} to {number(best.ci_high)})"
    which = "has a mean score" if len(board.arms) == 1 else "has the highest mean score,"
    said = [f"{best.arm} {which} of {number(best.score)}{interval}."]
    sure = [one for one in board.comparisons if one.significant]
    said += [f"{one.b} differs from {one.a} by {signed(one.diff)} (p {_is(one.p_holm)} after Holm)." for one in sure]
    against = f"from the baseline {board.baseline}" if board.baseline else "from another"
    if board.comparisons and not sure:
        known = any(one.p_holm is not None for one in board.comparisons)
        unknown = f"Whether an arm differs {against} can't be told: all cases are of one world."
        said.append(f"No arm differs significantly {against} (5%, Holm)." if known else unknown)
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
        fields = [HeatField(mean=data.shade(means[arm].get(case.name)), cells=by_case[case.name, arm]) for arm in data.arms]
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


def sliced(data: Data) -> dict[By, list[SliceLine]]:
    """Only where there is more than one slice to tell apart."""
    found = {by: slices(data.experiment, data.cells, by) for by in get_args(By)}
    return {by: [_slice_line(data, part) for part in parts] for by, parts in found.items() if len(parts) > 1}


def _slice_line(data: Data, part: Slice) -> SliceLine:
    against = {one.b: one for one in part.comparisons} if data.board.baseline else {}
    fields = [SliceField(mean=data.shade(row.score), row=row, against=against.get(row.arm)) for row in part.arms]
    return SliceLine(name=part.name, n_cases=part.n_cases, fields=fields)
