"""Who decides how an attempt ended: the platform, from what it saw; an agent's own words only tell ok, error and refusal apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from eval_pipeline.domain.cell import Outcome

MAX_INFRA_RATE = 0.05
"""Of the attempts that ended; above it something is wrong with the platform."""
SAID_MAX_CHARS = 2000  # of an agent's words in an error message; result.json itself is kept whole


class Stop(StrEnum):
    """Why the platform ended a running agent."""

    DEADLINE = "deadline"
    SERVICE = "service"  # one of the app's services had ended, and the agent went on without it
    COST = "cost"
    TURNS = "turns"
    TOKENS = "tokens"


@dataclass(frozen=True, kw_only=True)
class AgentResult:
    """What stands in result.json. status None: there is none that can be read, and `error` says why."""

    status: str | None
    answer: str | None = None
    error: str | None = None
    error_class: str | None = None


@dataclass(frozen=True, kw_only=True)
class ServiceEnd:
    """A service of the app that ended while the agent ran. exit_code: 128+n for signal n; None when nobody saw it."""

    exit_code: int | None
    said: str

    @property
    def from_outside(self) -> bool:
        """Ended by a signal that asks for an end. No crash raises one, and the shell a model gets can't send one to a service."""
        return self.exit_code is not None and self.exit_code - 128 in _ENDING_SIGNALS


_ENDING_SIGNALS = {1, 2, 3, 9, 15}  # HUP, INT, QUIT, KILL, TERM


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
    service: ServiceEnd | None = None,
    provider_faults: Sequence[str] = (),
) -> Decision:
    """platform_faults: what our own proxy saw fail during the attempt. They excuse an agent's error, never a success.

    provider_faults: likewise, of the provider of models that our own gateway asked last, and asked again: what it got over before
    then is no excuse for what came after.
    limits_hit: the sandbox's own limits that the agent ran into, in words; such an error is nobody else's.
    exit_code None: the agent destroyed the record of its own exit, or its sandbox ended at such a limit.
    service: the first of the app's services that ended meanwhile. One that was ended from outside excuses what follows, also a time
    limit; one that failed by itself is the app's own failure.
    """
    answered = result.status in ("ok", "refusal")
    if service is not None and service.from_outside and not limits_hit and not (answered and stop is None):
        return Decision(outcome=Outcome.INFRA_FAILURE, error=f"a service was ended from outside: {service.said}")
    if stop is Stop.DEADLINE:
        return Decision(outcome=Outcome.AGENT_TIMEOUT, error="the time limit (limits.wall_s) was reached")
    if stop in (Stop.COST, Stop.TURNS, Stop.TOKENS):
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
    if service is not None:
        return Decision(outcome=Outcome.AGENT_ERROR, error=f"a service failed: {service.said}; {error}", error_class="service")
    if platform_faults:
        return Decision(outcome=Outcome.INFRA_FAILURE, error="; ".join([*platform_faults, error]))
    if provider_faults:
        return Decision(outcome=Outcome.INFRA_FAILURE, error="; ".join([*provider_faults, error]), error_class="provider")
    return Decision(outcome=Outcome.AGENT_ERROR, error=error, error_class=result.error_class)
