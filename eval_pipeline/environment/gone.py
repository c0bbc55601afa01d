"""What was to be stood on has expired at its platform: by the time that shows its record is gone, and it is built anew."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from eval_pipeline.errors import LayerGone

log = logging.getLogger(__name__)
T = TypeVar("T")
_DEPTH = 4
"""base, image, runtime, prepared: each may turn out to be gone once the one above it is there again."""


async def built_again(make: Callable[[], Awaitable[T]]) -> T:
    """Raises LayerGone when layers go faster than they are built."""
    for _ in range(_DEPTH):
        try:
            return await make()
        except LayerGone as gone:
            log.warning("built again: %s", gone)
    return await make()
