"""Where two arms differ: case by case and criterion by criterion, with the cells to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from eval_pipeline.analysis.tables import ScoredCell
from eval_pipeline.domain.lock import ScoreLock
from eval_pipeline.domain.rubric import Criterion

Cases = Mapping[str, Sequence[ScoredCell]]


@dataclass(frozen=True, kw_only=True)
class CaseMove:
    """a, b: mean score over the trials; diff: b - a; None without a score in one of them. n_a, n_b: scored trials.

    cell_a, cell_b: of one trial, that in which the two differ most: what to look at. None: no cell is planned, or it is not ours.
    """

    case: str
    a: float | None
    b: float | None
    diff: float | None
    n_a: int
    n_b: int
    cost_usd_a: float | None
    cost_usd_b: float | None
    latency_s_a: float | None
    latency_s_b: float | None
    cell_a: str | None
    cell_b: str | None


@dataclass(frozen=True, kw_only=True)
class CriterionMove:
    """met_a, met_b: share met over the trials that both arms have a verdict for (of one that counts occurrences: count over its cap).

    n: those trials. gained, lost: in how many of them b meets more, or less. An agent that failed left nothing to decide.
    """

    case: str
    criterion: str
    text: str
    points: float
    n: int
    met_a: float
    met_b: float
    gained: int
    lost: int

    @property
    def worth(self) -> float:
        """What the move is worth in the rubric's points; below 0 it costs b points."""
        return (self.met_b - self.met_a) * self.points


def case_moves(a: Cases, b: Cases) -> list[CaseMove]:
    """All cases, the largest moves first; those without a difference last."""
    moves = [_case_move(name, a[name], b[name]) for name in a]
    return sorted(moves, key=lambda move: (move.diff is None, -abs(move.diff or 0.0), move.case))


def _case_move(name: str, a: Sequence[ScoredCell], b: Sequence[ScoredCell]) -> CaseMove:
    scores = [[cell.score for cell in cells if cell.score is not None] for cells in (a, b)]
    left, right = (fmean(found) if found else None for found in scores)
    cell_a, cell_b = _to_look_at(a, b)
    return CaseMove(
        case=name,
        a=left,
        b=right,
        diff=None if left is None or right is None else right - left,
        n_a=len(scores[0]),
        n_b=len(scores[1]),
        cost_usd_a=_mean([None if cell.cost_usd is None else float(cell.cost_usd) for cell in a]),
        cost_usd_b=_mean([None if cell.cost_usd is None else float(cell.cost_usd) for cell in b]),
        latency_s_a=_mean([cell.latency_s for cell in a]),
        latency_s_b=_mean([cell.latency_s for cell in b]),
        cell_a=cell_a,
        cell_b=cell_b,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _to_look_at(a: Sequence[ScoredCell], b: Sequence[ScoredCell]) -> tuple[str | None, str | None]:
    pairs = _pairs(a, b)
    if not pairs:
        return (_place(a[0]) if a else None), (_place(b[0]) if b else None)
    known = [(abs(y.score - x.score), x, y) for x, y in pairs if x.score is not None and y.score is not None]
    left, right = max(known, key=lambda one: one[0])[1:] if known else pairs[0]
    return _place(left), _place(right)


def _place(cell: ScoredCell) -> str | None:
    """None of one that was imported: it has no bundle here."""
    return None if cell.key.imported else str(cell.key)


def _pairs(a: Sequence[ScoredCell], b: Sequence[ScoredCell]) -> list[tuple[ScoredCell, ScoredCell]]:
    """The cells of the same trial: they share their seed."""
    theirs = {cell.key.trial: cell for cell in b}
    return [(cell, theirs[cell.key.trial]) for cell in a if cell.key.trial in theirs]


def criterion_moves(score: ScoreLock, a: Cases, b: Cases) -> list[CriterionMove]:
    """Criteria that some trial decided in both arms, those that moved most of the score first."""
    moves = [
        move
        for name in a
        for criterion in score.cases[name].rubric.criteria
        if (move := _criterion_move(name, criterion, _pairs(a[name], b[name]))) is not None
    ]
    return sorted(moves, key=lambda move: (-abs(move.worth), move.case, move.criterion))


def _criterion_move(case: str, criterion: Criterion, pairs: Sequence[tuple[ScoredCell, ScoredCell]]) -> CriterionMove | None:
    both = [
        (x, y) for left, right in pairs if (x := _met(left, criterion)) is not None and (y := _met(right, criterion)) is not None
    ]
    if not both:
        return None
    return CriterionMove(
        case=case,
        criterion=criterion.id,
        text=criterion.text,
        points=criterion.points,
        n=len(both),
        met_a=fmean(x for x, _ in both),
        met_b=fmean(y for _, y in both),
        gained=sum(y > x for x, y in both),
        lost=sum(y < x for x, y in both),
    )


def _met(cell: ScoredCell, criterion: Criterion) -> float | None:
    verdict = next((row.verdict for row in cell.criteria if row.id == criterion.id), None)
    return None if verdict is None else min(verdict, criterion.effective_cap) / criterion.effective_cap
