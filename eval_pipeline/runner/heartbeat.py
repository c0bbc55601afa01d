"""The beat of a lease, in a thread: a loop that lags does not lose the lease."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

HEARTBEAT_S = 5.0


class Heartbeat:
    """The first beat is done before `start` returns."""

    def __init__(self, beat: Callable[[asyncio.AbstractEventLoop], None]) -> None:
        self._beat = beat
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._beat(loop)
        self._thread = threading.Thread(target=self._run, args=(loop,), name="lease", daemon=True)
        self._thread.start()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._end.wait(HEARTBEAT_S):
            try:
                self._beat(loop)
            except Exception as error:  # noqa: BLE001 - whatever it was, the next beat may succeed, and without beats the lease is lost
                log.warning("the lease could not be renewed: %s", error)

    def stop(self) -> None:
        self._end.set()
        if self._thread is not None:
            self._thread.join()
