"""Cells and verdicts as the ledger gives them, made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from eval_pipeline.domain.ids import CellKey
from eval_pipeline.domain.lock import RunLock, ScoreLock
from eval_pipeline.domain.verdict import VerdictRow
from eval_pipeline.scoring.verdicts import questions
from eval_pipeline.store.cell_views import AttemptView, CellView
from eval_pipeline.store.ledger import ExperimentRow

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)


def experiment_row(run: RunLock, score: ScoreLock, baseline: str | None = None) -> ExperimentRow:
    return ExperimentRow(
        id=run.experiment_id,
        name=run.name,
        run=run,
        score=score,
        repo="/app",
        baseline=baseline,
        budget_usd=None,
        committed_usd=Decimal(0),
        n_cells=len(run.cell_keys()),
        created_at=NOW,
        cancel_requested_at=None,
        archived_at=None,
    )


def attempt(number: int = 1, outcome: str | None = "ok", **more: Any) -> AttemptView:
    fields: dict[str, Any] = {"id": number, "number": number, "sandbox": f"e-{number}", "outcome": outcome, "created_at": NOW}
    fields |= dict.fromkeys(["agent_started_at", "deadline_at", "error", "error_class", "cost_usd", "latency_s", "discarded"])
    fields |= {"ended_at": NOW, "bundle": f"b{number}", "usage": [], "evidence": {}}
    fields |= more
    return AttemptView(**fields)


def cell_view(key: CellKey, *attempts: AttemptView, counted: AttemptView | None = None, state: str | None = None) -> CellView:
    """counted: the last attempt unless it failed for the platform's sake."""
    last = attempts[-1] if attempts else None
    valid = last if last is not None and last.outcome not in (None, "infra_failure", "cancelled") else None
    counted = counted or valid
    return CellView(
        key=str(key),
        ordinal=0,
        state=state or ("done" if counted else "open"),
        outcome=counted.outcome if counted else last.outcome if last else None,
        engine_id=None,
        logged=False,
        updated_at=NOW,
        counted=counted,
        attempts=list(attempts),
    )


def verdicts_of(
    score: ScoreLock, run: RunLock, key: CellKey, bundle: str, said: Mapping[str, float | None]
) -> dict[str, VerdictRow]:
    """By request digest. None: asked, and nothing could be had."""
    asked = questions(score.cases[key.case_name].rubric, run.worlds[key.world], bundle)
    return {
        question.request_digest: VerdictRow(
            request_digest=question.request_digest,
            judge_version="check-1",
            vote=0,
            bundle=bundle,
            criterion=question.criterion.id,
            verdict=said[question.criterion.id],
            status="failed" if said[question.criterion.id] is None else "ok",
            reason="because",
        )
        for question in asked
        if question.criterion.id in said
    }
