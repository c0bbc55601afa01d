"""What held an agent, and what did not, in the words of an attempt's record."""

from __future__ import annotations

from typing import Any

from eval_pipeline.domain.app import Resources
from eval_pipeline.sandbox.base import Backend, Limit, isolation_level

ENDING = {Limit.MEMORY, Limit.DISK}  # those that can end a whole sandbox


def in_words(limit: Limit, resources: Resources) -> str:
    if limit is Limit.MEMORY:
        return f"out of memory: limit {resources.memory_mib} MiB"
    if limit is Limit.DISK:
        return f"disk full: limit {resources.disk_mib} MiB"
    return "out of processes"


def isolation(backend: Backend) -> dict[str, Any]:
    missing = dict(backend.missing)
    return {"level": isolation_level(missing), "missing": missing}
