"""Who decides how an attempt ended: the platform, from what it saw; an agent's own words only tell ok, error and refusal apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from eval_pipeline.domain.cell import Outcome

SAID_MAX_CHARS = 2000  # of an agent's words in an error message; result.json itself is kept whole


class Stop(StrEnum):
    """Why the platform ended a running agent."""

    DEADLINE = "deadline"
    COST = "cost"
    TURNS = "turns"


@dataclass(frozen=True, kw_only=True)
class AgentResult:
    """What stands in result.json. status None: there is none that can be read, and `error` says why."""

    status: str | None
    answer: str | None = None
    error: str | None = None
    error_class: str | None = None


@dataclass(frozen=True, kw_only=True)
class Decision:
    outcome: Outcome
    error: str | None = None
    error_class: str | None = None


def read_result(data: Any) -> AgentResult:
    """From the parsed result.json; anything that isn't as the contract says has status None and says what was found."""
    if not isinstance(data, dict):
        return AgentResult(status=None, error=f"result.json must hold an object, found {type(data).__name__}")
    status, answer = data.get("status"), data.get("answer")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if status not in ("ok", "error", "refusal"):
        return AgentResult(status=None, error=f"result.json: status must be ok, error or refusal, found {_short(repr(status))}")  # pyright: ignore[reportUnknownArgumentType]
    if not (answer is None or isinstance(answer, str)):
        return AgentResult(status=None, error=f"result.json: answer must be text or null, found {type(answer).__name__}")  # pyright: ignore[reportUnknownArgumentType]
    error, error_class = data.get("error"), data.get("error_class")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return AgentResult(
        status=status,
        answer=answer,
        error=None if error is None else _short(str(error)),  # pyright: ignore[reportUnknownArgumentType]
        error_class="provider" if error_class == "provider" else None,
    )


def _short(text: str) -> str:
    return text if len(text) <= SAID_MAX_CHARS else text[:SAID_MAX_CHARS] + "..."


def decide(
    result: AgentResult,
    *,
    exit_code: int | None,
    stop: Stop | None,
    platform_faults: Sequence[str],
    limits_hit: Sequence[str] = (),
) -> Decision:
    """platform_faults: what our own proxy saw fail during the attempt. They excuse an agent's error, never a success.

    limits_hit: the sandbox's own limits that the agent ran into, in words; such an error is nobody else's.
    exit_code None: the agent destroyed the record of its own exit, or its sandbox ended at such a limit.
    """
    if stop is Stop.DEADLINE:
        return Decision(outcome=Outcome.AGENT_TIMEOUT, error="the time limit (limits.wall_s) was reached")
    if stop is not None:
        return Decision(outcome=Outcome.BUDGET_EXCEEDED, error=f"the limit on {stop} was reached")
    if result.status == "ok":
        note = None if exit_code == 0 else f"answered, then ended with code {exit_code}"
        return Decision(outcome=Outcome.OK, error=note)
    if result.status == "refusal":
        return Decision(outcome=Outcome.REFUSAL, error=result.error)
    said = result.error or "no reason given"
    error = said if exit_code == 0 else f"ended with code {'unknown' if exit_code is None else exit_code}; {said}"
    if limits_hit:
        return Decision(outcome=Outcome.AGENT_ERROR, error="; ".join([*limits_hit, error]), error_class=result.error_class)
    if platform_faults:
        return Decision(outcome=Outcome.INFRA_FAILURE, error="; ".join([*platform_faults, error]))
    return Decision(outcome=Outcome.AGENT_ERROR, error=error, error_class=result.error_class)
