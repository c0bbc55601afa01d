"""One transaction for what many ask at about the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Together(Generic[Item, Answer]):
    """What is asked while others are worked on is worked on next, all of it together, in the order in which it came.

    work: called in a thread; gives an answer for each item, in their order. What it raises is raised to all of them.
    """

    def __init__(self, work: Callable[[list[Item]], Sequence[Answer]]) -> None:
        self._work = work
        self._waiting: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._worker: asyncio.Task[None] | None = None

    def ask(self, item: Item) -> asyncio.Future[Answer]:
        """The item is worked on even when nobody waits for its answer any more."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work_on())
        return answer

    async def close(self) -> None:
        """Waits until nothing is waiting."""
        while self._worker is not None and not self._worker.done():
            await asyncio.wait([self._worker])

    async def _work_on(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)  # whoever was woken by who asked comes along
            batch, self._waiting = self._waiting, []
            try:
                answers = await asyncio.to_thread(self._work, [item for item, _ in batch])
            except Exception as error:  # noqa: BLE001 - raised where it was asked
                for _, answer in batch:
                    if not answer.done():
                        answer.set_exception(error)
                continue
            for (_, answer), given in zip(batch, answers, strict=True):
                if not answer.done():
                    answer.set_result(given)
