"""What each cell of an engine waits for, told by whoever makes it wait and written down with the engine's heartbeat."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

_CELL: ContextVar[tuple[Doing, str] | None] = ContextVar("_CELL", default=None)


class Doing:
    def __init__(self) -> None:
        self._waits: dict[str, tuple[str, datetime]] = {}

    @contextmanager
    def cell(self, key: str) -> Generator[None]:
        """What is said within, also in tasks that are made there, is about this cell."""
        token = _CELL.set((self, key))
        try:
            yield
        finally:
            _CELL.reset(token)
            self._waits.pop(key, None)

    def say(self, key: str, what: str) -> None:
        before = self._waits.get(key)
        if before is None or before[0] != what:
            self._waits[key] = (what, datetime.now(UTC))

    def as_data(self) -> dict[str, list[str]]:
        return {key: [what, since.isoformat()] for key, (what, since) in self._waits.copy().items()}


def waits_for(what: str) -> None:
    """Of the cell at hand, if there is one: the words after `waits for`."""
    if (about := _CELL.get()) is not None:
        about[0].say(about[1], what)
