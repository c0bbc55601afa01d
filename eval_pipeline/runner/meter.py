"""What a running agent has used so far, read from its transcript as it grows."""

from __future__ import annotations

import asyncio
from datetime import date, datetime
from decimal import Decimal

from eval_pipeline.domain.case import Limits
from eval_pipeline.domain.outcome import Stop
from eval_pipeline.domain.usage import Usage
from eval_pipeline.gateway.model_log import ModelLog
from eval_pipeline.runner.output import TranscriptReader
from eval_pipeline.runner.used import refused
from eval_pipeline.sandbox.base import OUTPUT_DIR, Sandbox
from eval_pipeline.scoring.prices import PriceBook

_TAIL_BYTES = 2**18  # a poll stays short, however fast an agent writes


class Meter:
    """Reads the transcript's new usage events at each poll, when the case limits what may be used.

    measured: the gateway's own count, in place of the transcript's; None when nothing goes through it.
    """

    def __init__(self, limits: Limits, prices: PriceBook, started_at: datetime, measured: ModelLog | None = None) -> None:
        self._limits = limits
        self._prices = prices
        self._day = started_at.date()
        self._reader = TranscriptReader()
        self._offset = 0
        self._measured = measured

    async def read(self, sandbox: Sandbox) -> Stop | None:
        if self._limits.cost_usd is None and self._limits.turns is None and self._limits.tokens is None:
            return None
        if self._measured is not None:
            await asyncio.to_thread(self._measured.read)
            counted = exceeded(self._limits, self._prices, self._measured.usages, self._measured.calls, self._day)
            return refused(self._measured) or counted
        chunk = await sandbox.tail(f"{OUTPUT_DIR}/transcript.jsonl", self._offset, _TAIL_BYTES)
        self._offset += len(chunk)
        await asyncio.to_thread(self._reader.feed, chunk)
        return exceeded(self._limits, self._prices, self._reader.usages, self._reader.calls, self._day)


def exceeded(limits: Limits, prices: PriceBook, usages: list[Usage], calls: int, day: date) -> Stop | None:
    """The limit that the usage is above. Calls of a model without a price count as free here: nothing better is known."""
    if limits.turns is not None and calls > limits.turns:
        return Stop.TURNS
    if limits.tokens is not None and sum(usage.tokens for usage in usages) > limits.tokens:
        return Stop.TOKENS
    if limits.cost_usd is not None and prices.known_cost(usages, day) > Decimal(str(limits.cost_usd)):
        return Stop.COST
    return None
