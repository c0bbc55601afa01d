"""A semaphore whose size may change while it is held."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Slots:
    """First come, first served. Shrinking takes nothing back: it holds until enough are returned."""

    def __init__(self, size: int = 0) -> None:
        self._size = size
        self._used = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def used(self) -> int:
        return self._used

    @property
    def full(self) -> bool:
        return self._used >= self._size or bool(self._waiting)

    def resize(self, size: int) -> None:
        self._size = size
        self._wake()

    @asynccontextmanager
    async def hold(self) -> AsyncGenerator[None]:
        await self.take()
        try:
            yield
        finally:
            self.give()

    async def take(self) -> None:
        if self._used < self._size and not self._waiting:
            self._used += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.give()
            elif turn in self._waiting:  # no longer when a slot came free after the cancel
                self._waiting.remove(turn)
            raise

    def give(self) -> None:
        self._used -= 1
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self._used < self._size:
            turn = self._waiting.popleft()
            if not turn.done():
                self._used += 1
                turn.set_result(None)
