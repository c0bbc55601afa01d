"""What held an agent, and what did not, in the words of an attempt's record."""

from __future__ import annotations

from collections import Counter
from typing import Any

from eval_pipeline.domain.app import Resources
from eval_pipeline.gateway.client import Gateway
from eval_pipeline.gateway.evidence import Verdict
from eval_pipeline.sandbox.base import Backend, Limit, isolation_level

MAX_REFUSED = 20
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


def refused(gateway: Gateway, sandbox: str) -> dict[str, Any]:
    """What the proxy refused: how often, and the first MAX_REFUSED kinds. What never reached the proxy is not among it."""
    denied = [event for event in gateway.evidence(sandbox) if event.verdict is Verdict.DENIED]
    kinds = Counter((event.host, event.port, event.error) for event in denied)
    listed = [
        {"host": host, "port": port, "reason": reason, "count": count}
        for (host, port, reason), count in list(kinds.items())[:MAX_REFUSED]
    ]
    return {"egress_refused_count": gateway.counts(sandbox)[Verdict.DENIED], "egress_refused": listed}
