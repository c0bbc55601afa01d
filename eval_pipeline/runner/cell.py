"""One cell from claim to durable result: attempts until one is valid, or until they are used up."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from eval_pipeline.domain.budget import reservation_usd
from eval_pipeline.domain.cell import MAX_ATTEMPTS, Outcome
from eval_pipeline.domain.ids import CellKey, sandbox_name
from eval_pipeline.errors import (
    Cancelled,
    FenceLost,
)
from eval_pipeline.runner.attempt import Attempt, HandedOver
from eval_pipeline.runner.context import CellContext
from eval_pipeline.runner.doing import waits_for
from eval_pipeline.store.rows import Claim, OpenAttempt

log = logging.getLogger(__name__)

_RETRY_BASE_S = 0.2


@dataclass(frozen=True, kw_only=True)
class CellDone:
    """How a cell left the engine. outcome None: nothing new happened to it and it stays open; `error` says why.

    handed_over: its agent has ended, and whoever has a place for it ends the attempt.
    """

    key: str
    outcome: Outcome | None
    error: str | None = None
    handed_over: bool = False


async def drive_cell(context: CellContext, claim: Claim) -> CellDone:
    """Attempts until one is valid, or until they are used up. Raises BudgetExceeded when a reservation does not fit."""
    tried = 1
    attempt = claim.open_attempt
    run: Attempt | None = None
    try:
        while True:
            run = Attempt(context, claim, attempt or await _begin(context, claim))
            result = await run.result()
            last = tried == MAX_ATTEMPTS or not run.retryable
            await run.finish(result, last=last)
            if result.outcome.valid or (last and result.outcome is Outcome.INFRA_FAILURE):
                return CellDone(key=claim.key, outcome=result.outcome, error=result.error)
            log.warning("%s: attempt ended as %s, another follows: %s", claim.key, result.outcome, result.error)
            waits_for("its next attempt")
            await asyncio.sleep(_RETRY_BASE_S * 2**tried)
            tried, attempt = tried + 1, None
    except HandedOver as done:
        return CellDone(key=claim.key, outcome=None, error=str(done), handed_over=True)
    except FenceLost as lost:
        if run is not None:
            await run.abandon()
        return CellDone(key=claim.key, outcome=None, error=str(lost))
    except Cancelled as stopped:
        return CellDone(key=claim.key, outcome=None, error=str(stopped))


async def _begin(context: CellContext, claim: Claim) -> OpenAttempt:
    experiment, key = context.experiment, CellKey.parse(claim.key)
    limits = experiment.run.case(key.case_name).limits
    terms = context.terms(experiment.run.arm(key.arm), limits)
    return await asyncio.to_thread(
        context.ledger.begin_attempt,
        claim,
        backend=context.backend.name,
        host_id=context.host.id,
        name_sandbox=lambda number: sandbox_name(context.installation, claim.key, number),
        reserve_usd=reservation_usd(limits, experiment.budget_usd, experiment.n_cells, terms.reserve_usd),
        terms=terms,
    )
