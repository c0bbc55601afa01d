"""Waiting for what no event tells of."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator

SAY_AFTER_S = 5.0

log = logging.getLogger(__name__)


def looks(timeout_s: float, what: Callable[[], str], every_s: float = 0.02) -> Generator[None]:
    """One look after another until `timeout_s` is over; it is said what is waited for when that takes more than a few seconds."""
    began, said = time.monotonic(), False
    while time.monotonic() - began < timeout_s:
        yield
        if not said and time.monotonic() - began > SAY_AFTER_S:
            said = True
            log.warning("waiting for %s", what())
        time.sleep(every_s)
