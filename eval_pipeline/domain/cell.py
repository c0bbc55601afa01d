"""The states a cell and its attempts go through."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any

from eval_pipeline.domain.verdict import VerdictRow

MAX_ATTEMPTS = 4  # the first, and up to three after infrastructure failures


class Outcome(StrEnum):
    """How an attempt ended. Only platform code decides `infra_failure`; nothing an agent prints can."""

    OK = "ok"
    AGENT_ERROR = "agent_error"
    AGENT_TIMEOUT = "agent_timeout"
    BUDGET_EXCEEDED = "budget_exceeded"
    REFUSAL = "refusal"
    INFRA_FAILURE = "infra_failure"
    CANCELLED = "cancelled"

    @property
    def valid(self) -> bool:
        """A valid attempt is a result: it counts and is never run again."""
        return self not in (Outcome.INFRA_FAILURE, Outcome.CANCELLED)


class CellState(StrEnum):
    """open: nothing valid yet and nobody works on it; the next three: an engine does; failed: attempts used up; done: valid."""

    OPEN = "open"
    SETUP = "setup"
    RUNNING = "running"
    PERSISTING = "persisting"
    FAILED = "failed"
    DONE = "done"


@dataclass(frozen=True, kw_only=True)
class AttemptResult:
    """What is known of a finished attempt. None means it could not be had.

    error_class: "provider" for a provider error the agent reports.
    bundle: digest of the stored output bundle. cost_usd None: a model without a price. latency_s: agent start to terminal outcome.
    verdicts: what the checks say of the bundle, written with the result.
    """

    outcome: Outcome
    error: str | None = None
    error_class: str | None = None
    bundle: str | None = None
    usage: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    usage_source: str | None = None
    cost_usd: Decimal | None = None
    price_version: str | None = None
    latency_s: float | None = None
    evidence: dict[str, Any] = field(default_factory=dict[str, Any])
    verdicts: tuple[VerdictRow, ...] = ()
