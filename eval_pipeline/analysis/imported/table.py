"""A scored table that was read from another system's files: what it holds, and its rows as cells like ours."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from typing import Any, Literal

from pydantic import AwareDatetime

from eval_pipeline.analysis.origin import Origin
from eval_pipeline.analysis.tables import ScoredCell
from eval_pipeline.domain.base import Spec
from eval_pipeline.domain.canonical import canonical_json
from eval_pipeline.domain.cell import CellState, Outcome
from eval_pipeline.domain.ids import CellKey, Slug
from eval_pipeline.domain.usage import Usage
from eval_pipeline.errors import NotFound
from eval_pipeline.store.cell_views import AttemptView, CellView

System = Literal["inspect", "harbor"]
REPORTED = "reported"
_NOT_KNOWN = datetime(1970, 1, 1, tzinfo=UTC)  # a view must have some time; no table shows these two


class ImportedRow(Spec):
    """One trial of a case. score: as the other system has it, also of one that a limit ended; None: it has none.

    question: digest of what was asked; None: not known. usage None: nobody told. untold: columns of tokens that nobody told, of which
    usage holds 0; input_tokens: the sum of its classes. cost_usd: as reported. censored: a time limit ended it. working_s: latency_s
    without waiting, where it is told.
    """

    case: str
    trial: int
    outcome: Outcome
    score: float | None = None
    passed: bool | None = None
    error: str | None = None
    question: str | None = None
    usage: list[Usage] | None = None
    untold: list[str] = []
    cost_usd: float | None = None
    latency_s: float | None = None
    censored: bool = False
    working_s: float | None = None
    started_at: AwareDatetime | None = None
    ended_at: AwareDatetime | None = None

    @property
    def ran(self) -> bool:
        """Not only planned; it may have been withdrawn since."""
        return self.outcome != Outcome.CANCELLED or self.started_at is not None or self.usage is not None


class ImportedSource(Spec):
    """A file or folder that was read. sha256: of its bytes, of a folder: of what was read in it."""

    file: str
    sha256: str


class ImportedArm(Spec):
    """config: what the files say of the model, the agent and the task. n_absent: planned cells of it that the files name no case of;
    None: not known, the table has those of all its arms."""

    name: Slug
    config: dict[str, Any]
    sources: list[ImportedSource]
    rows: list[ImportedRow]
    n_absent: int | None = 0


class ImportedTable(Spec):
    """score: what was read as the score. low, high: its range. pass_at None: nobody said from where on a cell passes.

    trials: 1 + the highest index of a trial. notes: what is to be known of what was read, in words. n_absent: planned cells of which the
    files tell neither case nor arm.
    """

    version: Literal[1] = 1
    name: Slug
    system: System
    score: str
    low: float
    high: float
    pass_at: float | None
    trials: int
    arms: list[ImportedArm]
    notes: list[str]
    n_absent: int = 0

    @property
    def stored(self) -> bytes:
        return f"{canonical_json(self.model_dump(mode='json'))}\n".encode()

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.stored).hexdigest()

    def arm(self, name: str) -> ImportedArm:
        """Raises NotFound."""
        arms = {arm.name: arm for arm in self.arms}
        if name not in arms:
            raise NotFound(f"{self.name} has no arm {name!r}", hint=f"its arms: {', '.join(arms)}")
        return arms[name]

    @cached_property
    def cells(self) -> list[ScoredCell]:
        """By arm, one a row."""
        return [_cell(self, arm, row, at) for arm in self.arms for at, row in enumerate(arm.rows)]


def _cell(table: ImportedTable, arm: ImportedArm, row: ImportedRow, ordinal: int) -> ScoredCell:
    key = CellKey(table.name, "", row.case, arm.name, row.trial)
    counted = _attempt(arm, row) if row.outcome.valid else None
    cost = None if row.cost_usd is None else Decimal(str(row.cost_usd))
    known = row.score is not None
    return ScoredCell(
        key=key,
        state=_state(row.outcome),
        status=row.outcome,
        score=row.score,
        lower=row.score if known else table.low,
        upper=row.score if known else table.high,
        passed=row.passed,
        all_passed=None,
        n_criteria=0,
        n_not_judged=0,
        n_judge_failed=0,
        n_satisfied=0,
        n_unsatisfied=0,
        cost_usd=cost if counted else None,
        cold_cost_usd=None,
        cost_over_usd=None,
        spent_usd=cost or Decimal(0),
        sandbox_s=None,
        sandbox_cost_usd=None,
        sandbox_spent_s=0.0,
        sandbox_spent_usd=Decimal(0),
        n_sandbox_unknown=0,
        judge_cost_usd=None,
        latency_s=row.latency_s,
        censored=row.censored,
        usages=list(row.usage or []),
        untold=frozenset(row.untold),
        criteria=[],
        groups={},
        counted=counted,
        view=_view(str(key), ordinal, arm, row, counted),
        origin=Origin(config=canonical_json(arm.config)),
    )


def _view(key: str, ordinal: int, arm: ImportedArm, row: ImportedRow, counted: AttemptView | None) -> CellView:
    return CellView(
        key=key,
        ordinal=ordinal,
        state=_state(row.outcome),
        outcome=row.outcome,
        engine_id=None,
        logged=False,
        updated_at=row.ended_at or _NOT_KNOWN,
        counted=counted,
        attempts=[counted or _attempt(arm, row)] if row.ran else [],
    )


def _state(outcome: Outcome) -> str:
    if outcome.valid:
        return CellState.DONE
    return CellState.FAILED if outcome == Outcome.INFRA_FAILURE else CellState.OPEN


def _attempt(arm: ImportedArm, row: ImportedRow) -> AttemptView:
    """Its id is below 0, and the same for the same cell in another import."""
    identity = hashlib.sha256(canonical_json([arm.config, row.model_dump(mode="json")]).encode()).hexdigest()
    return AttemptView(
        id=-int(identity[:15], 16) - 1,
        number=1,
        sandbox="",
        outcome=row.outcome,
        created_at=row.started_at or _NOT_KNOWN,
        agent_started_at=row.started_at,
        deadline_at=None,
        ended_at=row.ended_at,
        error=row.error,
        error_class=None,
        bundle=None,
        usage=[usage.model_dump() for usage in row.usage or []],
        cost_usd=None if row.cost_usd is None else Decimal(str(row.cost_usd)),
        latency_s=row.latency_s,
        evidence={},
        discarded=None,
        usage_source=None if row.usage is None else REPORTED,
    )
