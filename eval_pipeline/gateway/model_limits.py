"""What a sandbox's calls may cost together, those under way at the most that they can."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal

from eval_pipeline.domain.usage import Usage
from eval_pipeline.gateway.model_log import Access, ModelLog, Refusal
from eval_pipeline.scoring.prices import TOKEN_CLASSES, PriceBook

CALLS_OF_ONE = 4
"""Of a sandbox at once: whatever it does with them, others have theirs."""


@dataclass
class Caller:
    """A sandbox. held: the most that each call under way may use, by its id. waiting: those that have not gone out."""

    log: ModelLog
    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CALLS_OF_ONE))
    held: dict[str, Usage] = field(default_factory=dict[str, Usage])
    waiting: set[asyncio.Task[object]] = field(default_factory=set[asyncio.Task[object]])
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def place(self, call_id: str, most: Usage, access: Callable[[], Access]) -> AsyncGenerator[None]:
        """For a call, once it fits the limits beside the others. `access` is asked each time and may raise: then it never goes out."""
        task = asyncio.current_task()
        assert task is not None
        self.waiting.add(task)
        try:
            async with self.places:
                while not self._fits(access(), most):
                    self._changed.clear()
                    await self._changed.wait()
                self.held[call_id] = most
                try:
                    yield
                finally:
                    del self.held[call_id]
                    self._changed.set()
        finally:
            self.waiting.discard(task)

    def sent(self) -> None:
        """The current task's call goes out: from now on its bill is waited for."""
        task = asyncio.current_task()
        assert task is not None
        self.waiting.discard(task)

    def cancel_waiting(self) -> None:
        for task in list(self.waiting):
            task.cancel()

    def _fits(self, access: Access, most: Usage) -> bool:
        """A call goes alone if need be: what it costs at most is far above what it costs."""
        return not self.held or not _above(access, [*self.spent(), *self.held.values(), most])

    def spent(self) -> list[Usage]:
        """With what calls may have used that were never measured, those too that another process left under way."""
        left = [most for call_id, most in self.log.open.items() if call_id not in self.held]
        return [*self.log.usages, *self.log.assumed, *left]

    def reached(self, access: Access, own: str | None = None) -> Refusal | None:
        """own: the id of the call that asks."""
        self.log.read()
        under_way = {*self.held, *self.log.open} - {own}
        if access.turns is not None and self.log.calls + len(under_way) >= access.turns:
            return "turns"
        spent = self.spent()
        if access.tokens is not None and _tokens(spent) >= access.tokens:
            return "tokens"
        if access.cost_usd is not None and _cost(access, spent) >= Decimal(str(access.cost_usd)):
            return "cost"
        return None


def has_price(access: Access, model: str) -> bool:
    return _prices(access).row(model, _today()) is not None


def dearest(access: Access, most: Usage) -> Usage:
    """With its input in the class that costs most."""
    row = _prices(access).row(most.model, _today())
    if row is None:
        return most
    name = max(TOKEN_CLASSES[:-1], key=lambda one: Decimal(getattr(row, one)))
    return most.model_copy(update={"input_uncached": 0} | {name: most.input_uncached})


def _above(access: Access, usages: list[Usage]) -> bool:
    if access.tokens is not None and _tokens(usages) > access.tokens:
        return True
    return access.cost_usd is not None and _cost(access, usages) > Decimal(str(access.cost_usd))


def _tokens(usages: Iterable[Usage]) -> int:
    return sum(usage.tokens for usage in usages)


def _cost(access: Access, usages: Iterable[Usage]) -> Decimal:
    return _prices(access).known_cost(usages, _today())


def _prices(access: Access) -> PriceBook:
    return PriceBook.from_rows(access.prices, "prices")


def _today() -> date:
    return datetime.now(UTC).date()
