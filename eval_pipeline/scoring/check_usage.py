"""The check `usage`: what an answer may have taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from eval_pipeline.domain.usage import Usage
from eval_pipeline.scoring.check_base import Arguments, CheckResult, Evidence, Run, Undecided, decided

USAGE = "`usage: {calls: 20, input_tokens: 200000, output_tokens: 5000}`, each of them at most"

_MEASURES: Mapping[str, Callable[[Usage], int]] = {
    "calls": lambda one: one.calls,
    "input_tokens": lambda one: one.input_uncached + one.cache_read + one.cache_write_5m + one.cache_write_1h,
    "output_tokens": lambda one: one.output,
}


def usage(argument: Any, per_occurrence: bool) -> Run:
    del per_occurrence
    options = Arguments("usage", USAGE, argument, main=None, options=tuple(_MEASURES))
    most = {name: options.whole(name, 0) for name in _MEASURES if name in options}
    if not most:
        raise options.wrong("needs at least one limit")

    def run(evidence: Evidence) -> CheckResult:
        if not evidence.usage:
            raise Undecided("no usage was recorded, so how much it was is not known")
        used = {name: sum(map(_MEASURES[name], evidence.usage)) for name in most}
        over = [name for name in most if used[name] > most[name]]
        told = ", ".join(f"{name} {used[name]:,} of {most[name]:,}" for name in over or most)
        return decided(not over, told, f"too much: {told}")

    return run
