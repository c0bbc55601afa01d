"""What a running agent has used so far, read from its transcript as it grows."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from eval_pipeline.domain.case import Limits
from eval_pipeline.domain.outcome import Stop
from eval_pipeline.runner.output import TranscriptReader
from eval_pipeline.sandbox.base import OUTPUT_DIR, Sandbox
from eval_pipeline.scoring.prices import PriceBook

_TAIL_BYTES = 2**20


class Meter:
    """Reads the transcript's new usage events at each poll, when the case limits what may be used."""

    def __init__(self, limits: Limits, prices: PriceBook, started_at: datetime) -> None:
        self._limits = limits
        self._prices = prices
        self._day = started_at.date()
        self._reader = TranscriptReader()
        self._offset = 0

    async def read(self, sandbox: Sandbox) -> Stop | None:
        limits = self._limits
        if limits.cost_usd is None and limits.turns is None:
            return None
        while chunk := await sandbox.tail(f"{OUTPUT_DIR}/transcript.jsonl", self._offset, _TAIL_BYTES):
            self._offset += len(chunk)
            self._reader.feed(chunk)
        if limits.turns is not None and self._reader.calls > limits.turns:
            return Stop.TURNS
        cost = self._prices.cost(self._reader.usages, self._day)
        if limits.cost_usd is not None and cost is not None and cost > Decimal(str(limits.cost_usd)):
            return Stop.COST
        return None
