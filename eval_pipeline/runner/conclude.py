"""From what was seen of an agent's end and what its output says to the attempt's result."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from eval_pipeline.domain.cell import AttemptResult, Outcome
from eval_pipeline.domain.handover import Handover
from eval_pipeline.domain.ids import CellKey
from eval_pipeline.domain.outcome import decide
from eval_pipeline.errors import OutputUnreadable, SandboxLost, StoreError
from eval_pipeline.runner.meter import exceeded
from eval_pipeline.runner.persist import Persisted, Persister
from eval_pipeline.runner.used import record, spent
from eval_pipeline.sandbox.base import Sandbox
from eval_pipeline.scoring.prices import PriceBook
from eval_pipeline.store.ledger import ExperimentRow, OpenAttempt

Result = TypeVar("Result")
log = logging.getLogger(__name__)

_PAUSES_S = (1.0, 5.0)


async def while_store_is_away(what: str, work: Callable[[], Awaitable[Result]]) -> Result:
    """`work`, tried again after a StoreError, which the last try raises."""
    for pause_s in _PAUSES_S:
        try:
            return await work()
        except StoreError as error:
            log.warning("%s: the output could not be stored or read, trying again in %s s: %s", what, pause_s, error)
            await asyncio.sleep(pause_s)
    return await work()


def concluded(experiment: ExperimentRow, key: CellKey, prices: PriceBook, end: Handover, left: Persisted) -> AttemptResult:
    seen = end.measured
    usages, calls = (left.usages, left.calls) if seen is None else (list(seen.usages), seen.calls)
    limits = experiment.run.case(key.case_name).limits
    at_most_usd = experiment.believed_usd(limits)
    decision = decide(
        left.result,
        exit_code=end.exit_code,
        stop=end.stop or (seen and seen.stop) or exceeded(limits, prices, usages, calls, end.day),
        platform_faults=end.faults,
        limits_hit=end.limits,
        service=end.service,
        provider_faults=[] if seen is None or seen.last_fault is None else [seen.last_fault],
    )
    may_use_none = decision.outcome is Outcome.OK and not experiment.run.arm(key.arm).manifest.egress
    return AttemptResult(
        outcome=decision.outcome,
        error=decision.error,
        error_class=decision.error_class,
        bundle=left.bundle,
        latency_s=end.elapsed_s,
        verdicts=left.verdicts,
        evidence={**end.evidence, **left.evidence, **record(seen, left.usages, prices, end.day, at_most_usd=at_most_usd)},
        **spent(seen, left.usages, prices, end.day, may_use_none=may_use_none, at_most_usd=at_most_usd),
    )


async def take_up(
    persister: Persister,
    find: Callable[[str], Awaitable[Sandbox | None]],
    experiment: ExperimentRow,
    key: CellKey,
    prices: PriceBook,
    attempt: OpenAttempt,
) -> AttemptResult:
    """End an attempt that was handed over. Raises StoreError: another try, or another place, may do better."""
    end = attempt.handover
    assert end is not None
    return await while_store_is_away(str(key), lambda: _taken_up(persister, find, experiment, key, prices, attempt, end))


async def _taken_up(
    persister: Persister,
    find: Callable[[str], Awaitable[Sandbox | None]],
    experiment: ExperimentRow,
    key: CellKey,
    prices: PriceBook,
    attempt: OpenAttempt,
    end: Handover,
) -> AttemptResult:
    sandbox = None
    if end.bundle is None and (sandbox := await find(attempt.sandbox)) is None:
        raise SandboxLost(f"{attempt.sandbox} is gone, and its output with it")
    source = persister.fetched(end.bundle or "", end.facts) if sandbox is None else persister.collected(sandbox, attempt.id)
    async with source as kept:
        try:
            return concluded(
                experiment,
                key,
                prices,
                end,
                await persister.read(kept, experiment, key, end.state_before, end.measured and end.measured.usages),
            )
        except OutputUnreadable as error:
            evidence = {**end.evidence, **kept.facts}
            return AttemptResult(outcome=Outcome.INFRA_FAILURE, error=str(error), bundle=kept.bundle, evidence=evidence)
