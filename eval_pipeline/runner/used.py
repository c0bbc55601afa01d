"""What an attempt used of models: as the gateway measured it, else as the agent reported it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from typing import Any

from eval_pipeline.domain.handover import Measured
from eval_pipeline.domain.outcome import Stop
from eval_pipeline.domain.usage import Usage
from eval_pipeline.gateway.model_log import Call, ModelLog
from eval_pipeline.scoring.prices import PriceBook

_LAST_CALLS_S = 10.0  # an agent has ended, and the provider may still be at its last answer
_POLL_S = 0.05
_MAX_FAULTS = 5
_STOPS: dict[str, Stop] = {"cost": Stop.COST, "tokens": Stop.TOKENS, "turns": Stop.TURNS}


async def measured(log: ModelLog) -> Measured:
    deadline = asyncio.get_running_loop().time() + _LAST_CALLS_S
    await asyncio.to_thread(log.read)
    while log.under_way and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(_POLL_S)
        await asyncio.to_thread(log.read)
    return Measured(
        usages=log.usages,
        calls=log.calls,
        unmeasured=log.unmeasured + log.under_way,
        retried=log.retried,
        n_faults=len(log.faults),
        faults=[_in_words(one) for one in log.faults[:_MAX_FAULTS]],
        stop=refused(log),
        last_fault=None if log.last_fault is None else _in_words(log.last_fault),
    )


def _in_words(fault: Call) -> str:
    return f"the provider {fault.provider} {fault.error} (tries: {fault.tries})"


def refused(log: ModelLog) -> Stop | None:
    """The limit at which the gateway refused a call."""
    return next((stop for why, stop in _STOPS.items() if why in log.refusals), None)


def spent(
    seen: Measured | None, claimed: Sequence[Usage], prices: PriceBook, day: date, *, may_use_none: bool, at_most_usd: Decimal
) -> dict[str, Any]:
    """For an attempt's record. claimed: by the agent's transcript.

    may_use_none: an agent that reports nothing has used nothing: it could reach nobody, and came to an end of its own with an answer.
    Of any other it is unknown: it may have ended before it told.
    at_most_usd: what is believed of the transcript; a cost above it is not known, so what was held for the attempt stays held.
    """
    usages = list(claimed) if seen is None else list(seen.usages)
    known = seen.unmeasured == 0 if seen is not None else bool(usages) or may_use_none
    cost = prices.cost(usages, day) if known else None
    return {
        "usage": [usage.model_dump() for usage in usages],
        "usage_source": "self-reported" if seen is None else "measured",
        "cost_usd": None if seen is None and cost is not None and cost > at_most_usd else cost,
        "price_version": prices.version,
    }


def record(
    seen: Measured | None, claimed: Sequence[Usage], prices: PriceBook, day: date, *, at_most_usd: Decimal
) -> dict[str, Any]:
    """What else there is to say of the calls, for an attempt's evidence."""
    if seen is None:
        cost = prices.cost(claimed, day)
        if cost is None or cost <= at_most_usd:
            return {}
        return {"implausible_cost": {"self_reported_usd": f"{cost:f}", "at_most_usd": f"{at_most_usd:f}"}}
    told = seen.model_dump(mode="json", exclude={"usages"})
    return {"models": {**told, "self_reported": [usage.model_dump() for usage in claimed]}}
