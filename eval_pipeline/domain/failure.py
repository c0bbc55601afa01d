"""What kept a cell from a good result, one kind beside the other: they say different things about an arm."""

from __future__ import annotations

from enum import StrEnum

from eval_pipeline.domain.cell import Outcome

MAX_PROVIDER_GAP = 0.02
"""Between the arms' rates; above it their scores are compared on unequal ground."""


class Failure(StrEnum):
    """provider: the agent's model could not be had, whoever noticed. judge: a valid cell without a score, for its judge's sake."""

    AGENT = "agent"
    TIMEOUT = "timeout"
    BUDGET = "budget"
    REFUSAL = "refusal"
    INFRA = "infra"
    PROVIDER = "provider"
    JUDGE = "judge"


_OF_OUTCOME = {
    Outcome.AGENT_ERROR: Failure.AGENT,
    Outcome.AGENT_TIMEOUT: Failure.TIMEOUT,
    Outcome.BUDGET_EXCEEDED: Failure.BUDGET,
    Outcome.REFUSAL: Failure.REFUSAL,
    Outcome.INFRA_FAILURE: Failure.INFRA,
}


def failure_of(outcome: str | None, error_class: str | None) -> Failure | None:
    """Of an attempt as it ended; None for a good end, a cancelled one, or none."""
    failure = None if outcome is None else _OF_OUTCOME.get(Outcome(outcome))
    return Failure.PROVIDER if error_class == "provider" and failure in (Failure.AGENT, Failure.INFRA) else failure
