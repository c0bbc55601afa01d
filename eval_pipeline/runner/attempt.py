"""One try at a cell: setup, run, persist. Every exception ends here, as an outcome."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from eval_pipeline.domain.cell import AttemptResult, Outcome
from eval_pipeline.domain.handover import Handover, Measured
from eval_pipeline.domain.ids import CellKey
from eval_pipeline.domain.outcome import Stop
from eval_pipeline.domain.usage import Usage
from eval_pipeline.environment.gone import built_again
from eval_pipeline.errors import (
    Cancelled,
    EvalsError,
    FenceLost,
    InfrastructureError,
    LedgerUnavailable,
    SandboxError,
    SandboxLost,
)
from eval_pipeline.gateway.model_log import ModelLog
from eval_pipeline.runner.app_life import AppLife
from eval_pipeline.runner.conclude import concluded, take_up, while_store_is_away
from eval_pipeline.runner.context import CellContext
from eval_pipeline.runner.doing import waits_for
from eval_pipeline.runner.held import ENDING, in_words, isolation, refused
from eval_pipeline.runner.meter import Meter
from eval_pipeline.runner.models import goes_through_gateway, not_measured
from eval_pipeline.runner.persist import Kept, Persisted
from eval_pipeline.runner.redacted import redacted, redacted_end
from eval_pipeline.runner.setup import AGENT_ENV, Ground, lay_ground, set_up, take_ready
from eval_pipeline.runner.used import measured, record, spent
from eval_pipeline.sandbox import modal_plan
from eval_pipeline.sandbox.base import CommandState, Limit, Phase, Sandbox
from eval_pipeline.store.handovers import hand_over
from eval_pipeline.store.rows import Begun, Claim, OpenAttempt, Stopping
from eval_pipeline.store.steps import has_ended

log = logging.getLogger(__name__)

AGENT = "agent"
GRACE_S = 5.0
_POLL_MIN_S = 0.02
_SETTLE_S = 10.0


class HandedOver(Exception):
    """The attempt goes on elsewhere."""


class Attempt:
    """One try at a cell. retryable: whether another one could do better."""

    def __init__(self, context: CellContext, claim: Claim, attempt: OpenAttempt) -> None:
        self.context = context
        self.claim = claim
        self.attempt = attempt
        self.key = CellKey.parse(claim.key)
        self.case = context.experiment.run.case(self.key.case_name)
        self.arm = context.experiment.run.arm(self.key.arm)
        self.retryable = True
        self.started_at = datetime.now(UTC)
        self._agent_started_at = attempt.agent_started_at
        self._stopping = attempt.stopping
        self._began = time.monotonic()
        self._app = AppLife(self.arm.manifest)
        self._state_before: str | None = None
        self._kept: Kept | None = None
        self._asked_at: float | None = None
        self._sandbox: Sandbox | None = None

    async def result(self) -> AttemptResult:
        """How the attempt ended. Raises FenceLost; LedgerUnavailable, which leaves the agent alone for whoever can write again; and
        Cancelled once the cancelled attempt is recorded.
        """
        if self._stopping is not None and self._stopping.outcome is not None:  # decided by an engine that died over it
            return await self._cut_short(Outcome(self._stopping.outcome), self._stopping.reason)
        try:
            return await self._run()
        except (FenceLost, LedgerUnavailable, HandedOver):
            raise
        except Cancelled as stopped:
            await self.finish(await self._cut_short(Outcome.CANCELLED, str(stopped)), last=False)
            raise
        except EvalsError as error:
            self.retryable = error.retryable
            return await self._cut_short(Outcome.INFRA_FAILURE, f"{type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - the cell's boundary: whatever happens to one cell stays there
            log.error("%s: %s", self.claim.key, traceback.format_exc())
            return await self._cut_short(Outcome.INFRA_FAILURE, f"{type(error).__name__}: {error}")

    async def finish(self, result: AttemptResult, *, last: bool) -> None:
        """Durable first, then the sandbox ends: what can't be ended, or a crash in between, is left to the reaper."""
        if self.attempt.handover is None:
            result = replace(result, evidence={**self._app.evidence, **result.evidence, **await self._held()})
        result = redacted(result, self.context.secrets.redactor())
        await asyncio.to_thread(self.context.ledger.finish_attempt, self.claim, self.attempt.id, result, last=last)
        await self._end_sandbox()

    async def _held(self) -> dict[str, Any]:
        held: dict[str, Any] = {"isolation": isolation(self.context.backend)}
        if (weak := modal_plan.open_egress(self.context.backend.name, self.arm.manifest.egress)) is not None:
            held["open_egress"] = weak
        if (why := not_measured(self.context.backend.name, self.arm.manifest)) is not None:
            held["models_not_measured"] = why
        if self._sees_egress:
            held |= await asyncio.to_thread(refused, self.context.gateway, self.attempt.sandbox)
        return held

    async def _end_sandbox(self) -> None:
        try:
            sandbox = self._sandbox or await self.context.backend.find(self.attempt.sandbox)
            if sandbox is not None:
                await sandbox.terminate()
        except (SandboxError, OSError) as error:
            log.warning("%s: the sandbox %s could not be ended: %s", self.claim.key, self.attempt.sandbox, error)
            return
        await asyncio.to_thread(self.context.ledger.sandbox_ended, self.attempt.id, self._sandbox_for_s())

    def _sandbox_for_s(self) -> float | None:
        """How long the sandbox has been there; None: an engine before us may have asked for it."""
        if self.claim.open_attempt is not None and self.claim.open_attempt.id == self.attempt.id:
            return None
        return 0.0 if self._asked_at is None else time.monotonic() - self._asked_at

    async def _run(self) -> AttemptResult:
        if self.attempt.handover is not None:
            return await self._take_up()
        self._sandbox = sandbox = await self._setup()
        begun = await asyncio.to_thread(
            self.context.ledger.agent_started, self.claim, self.attempt.id, self.case.limits.wall_s, self._sandbox_for_s()
        )
        is_new, self._agent_started_at = self._agent_started_at is None, begun.at
        if is_new or (await sandbox.state(AGENT)).phase is Phase.ABSENT:
            await self._app.start_agent(sandbox, AGENT, AGENT_ENV)
        waits_for("its agent")
        state, stop = await self._watch(sandbox, begun, is_new)
        waits_for("the state that its app dumps")
        await asyncio.to_thread(self.context.ledger.persisting, self.claim)
        await self._app.look_back(sandbox, state)
        hit = await sandbox.limits_hit()
        await self._app.dump(sandbox)
        end = await self._end(state, stop or self._overran(state), hit)
        if self.context.hands_over():
            await self._hand_over(sandbox, end)
        persisted = await self._persist(sandbox, end.measured)
        await self._app.down(sandbox)
        return concluded(self.context.experiment, self.key, self.context.prices, end, persisted)

    async def _take_up(self) -> AttemptResult:
        context = self.context
        return await take_up(context.persister, context.backend.find, context.experiment, self.key, context.prices, self.attempt)

    async def _hand_over(self, sandbox: Sandbox, end: Handover) -> None:
        """Raises HandedOver. A sandbox that everybody can reach is left to whoever takes it up; of another the output is stored first."""
        if self.context.backend.name == "local":
            await self._app.keep_logs(sandbox)
            async with self.context.persister.collected(sandbox, self._given_secrets) as kept:
                end = end.model_copy(update={"bundle": kept.bundle, "facts": kept.facts})
            await self._app.down(sandbox)
        end = end.model_copy(update={"evidence": {**self._app.evidence, **await self._held()}})
        end = redacted_end(end, self.context.secrets.redactor())
        await asyncio.to_thread(hand_over, self.context.ledger.database, self.claim, self.attempt.id, end)
        if end.bundle is not None:
            await self._end_sandbox()
        raise HandedOver(f"{self.claim.key} is handed over")

    async def _persist(self, sandbox: Sandbox, seen: Measured | None) -> Persisted:
        """Tried again while the sandbox still has the output: a store that is away must not cost the agent's run."""
        return await while_store_is_away(self.claim.key, lambda: self._keep(sandbox, seen))

    async def _keep(self, sandbox: Sandbox, seen: Measured | None) -> Persisted:
        await self._app.keep_logs(sandbox)
        before = self._state_before if self._app.dumped else None
        async with self.context.persister.collected(sandbox, self._given_secrets) as self._kept:
            return await self.context.persister.read(self._kept, self.context.experiment, self.key, before, seen and seen.usages)

    def _overran(self, state: CommandState) -> Stop | None:
        """It may have ended by itself while no engine was there to stop it."""
        over = state.elapsed_s is not None and state.elapsed_s > self.case.limits.wall_s + GRACE_S
        return Stop.DEADLINE if over else None

    async def _setup(self) -> Sandbox:
        waits_for("a place to set up")
        async with self.context.setups.hold():
            self.context.stop_if_cancelled()
            sandbox, ground = await built_again(self._set_up)
        self._state_before = ground.prepared.state
        self._app.evidence["setup"]["total_s"] = round(time.monotonic() - self._began, 4)
        return sandbox

    async def _set_up(self) -> tuple[Sandbox, Ground]:
        ground = await lay_ground(self.context, self.claim, self.attempt)
        self.attempt = await take_ready(self.context, self.claim, self.attempt, ground)
        self._asked_at = self._asked_at or time.monotonic()
        return await set_up(self.context, self.claim, self.attempt, ground, self._app), ground

    async def _watch(self, sandbox: Sandbox, begun: Begun, is_new: bool) -> tuple[CommandState, Stop | None]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + begun.left_s + GRACE_S
        meter = Meter(self.case.limits, self.context.prices, begun.at, self._model_log())
        decided = None if self._stopping is None else Stop(self._stopping.reason)
        pause_s = self.context.backend.poll_s / 50
        if is_new:
            await asyncio.sleep(pause_s)  # nobody ends in no time
        while True:
            state = await sandbox.state(AGENT)
            if state.phase is Phase.LOST:
                if ENDING & set(await sandbox.limits_hit()):
                    return state, None
                raise SandboxLost(f"{sandbox.name} ended without a recorded exit of its agent")
            if state.phase is not Phase.RUNNING:
                return state, decided
            self.context.stop_if_cancelled()
            stop = decided or (Stop.DEADLINE if loop.time() > deadline else await meter.read(sandbox))
            if stop is None and await self._app.gave_up(sandbox):
                stop = Stop.SERVICE
            if stop is not None:
                await self._stop(sandbox, Stopping(reason=stop))
                return await _settled(sandbox), stop
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.3, self.context.backend.poll_s)

    async def _end(self, state: CommandState, stop: Stop | None, hit: Sequence[Limit]) -> Handover:
        return Handover(
            exit_code=state.exit_code,
            elapsed_s=state.elapsed_s,
            stop=stop,
            faults=await asyncio.to_thread(self._faults) if self._sees_egress else [],
            limits=[in_words(limit, self.arm.manifest.resources) for limit in hit],
            service=self._app.ended,
            state_before=self._state_before if self._app.dumped else None,
            day=self._day,
            evidence={},
            measured=await self._measured(),
        )

    def _model_log(self) -> ModelLog | None:
        """None: nothing of the agent's goes through the model gateway."""
        if not goes_through_gateway(self.context.backend.name, self.arm.manifest):
            return None
        return self.context.gateway.model_log(self.attempt.sandbox)

    async def _measured(self) -> Measured | None:
        found = self._model_log()
        return None if found is None else await measured(found)

    def _spent(self, seen: Measured | None, claimed: Sequence[Usage]) -> dict[str, Any]:
        at_most_usd, day = self.context.experiment.believed_usd(self.case.limits), self._day
        return spent(seen, claimed, self.context.prices, day, may_use_none=False, at_most_usd=at_most_usd)

    def _record(self, seen: Measured | None, claimed: Sequence[Usage]) -> dict[str, Any]:
        at_most_usd = self.context.experiment.believed_usd(self.case.limits)
        return record(seen, claimed, self.context.prices, self._day, at_most_usd=at_most_usd)

    @property
    def _day(self) -> date:
        """Whose prices hold."""
        return (self._agent_started_at or self.started_at).date()

    async def _stop(self, sandbox: Sandbox, decided: Stopping) -> None:
        """Raises FenceLost: what another engine drives is not ours to stop."""
        await asyncio.to_thread(self.context.ledger.stopping, self.claim, self.attempt.id, decided)
        await sandbox.stop(AGENT)

    async def abandon(self) -> None:
        """Who paused for long may have made the sandbox again after its attempt had ended: then it is nobody's."""
        try:
            if await asyncio.to_thread(has_ended, self.context.ledger.database, self.attempt.id):
                sandbox = await self.context.backend.find(self.attempt.sandbox)
                if sandbox is not None:
                    await sandbox.terminate()
        except (InfrastructureError, OSError) as error:
            log.warning("%s: the sandbox %s is left to the reaper: %s", self.claim.key, self.attempt.sandbox, error)

    @property
    def _given_secrets(self) -> int | None:
        """The attempt, when its sandbox was given any."""
        return self.attempt.id if self.arm.manifest.secrets.agent else None

    @property
    def _sees_egress(self) -> bool:
        """Whether our own proxy stands between the agent and the world, and keeps a record."""
        return bool(self.arm.manifest.egress) and "egress" not in self.context.backend.missing

    def _faults(self) -> list[str]:
        gateway, attempt = self.context.gateway, self.attempt
        faults = [
            f"the proxy could not reach {event.host}:{event.port}: {event.error}"
            for event in gateway.evidence(attempt.sandbox)
            if event.verdict == "dial_failed"
        ]
        if self._agent_started_at is not None and gateway.outages(since=self._agent_started_at):
            faults.append("the egress proxy was down during the attempt")
        return faults[:5]

    async def _cut_short(self, outcome: Outcome, error: str) -> AttemptResult:
        """Keep what the sandbox left. An agent that never started cost nothing; of one that did, its output tells."""
        error = self.context.secrets.redactor().text(error)
        if self._agent_started_at is None:
            return AttemptResult(outcome=outcome, error=error, cost_usd=Decimal(0))
        if self.attempt.handover is not None:
            end = self.attempt.handover
            return AttemptResult(outcome=outcome, error=error, bundle=end.bundle, evidence={**end.evidence, **end.facts})
        kept = self._kept
        left = None if kept is not None else await self._salvage(Stopping(reason=error, outcome=outcome))
        seen = await self._measured()
        claimed = [] if left is None else left.usages
        known = {} if left is None and seen is None else self._spent(seen, claimed)
        bundle = left or kept
        evidence = left.evidence if left is not None else kept.facts if kept is not None else {}
        return AttemptResult(
            outcome=outcome,
            error=error,
            bundle=None if bundle is None else bundle.bundle,  # whoever wants to know more finds all of it in the store
            evidence={**evidence, **self._record(seen, claimed)},
            verdicts=() if left is None else left.verdicts,
            **known,
        )

    async def _salvage(self, decided: Stopping) -> Persisted | None:
        try:
            sandbox = await self.context.backend.find(self.attempt.sandbox)
            if sandbox is None:
                return None
            await self._stop(sandbox, decided)
            return await self._keep(sandbox, await self._measured())
        except (FenceLost, LedgerUnavailable):
            raise
        except Exception as error:  # noqa: BLE001 - the attempt has failed already; its leftovers are worth a try, no more
            log.warning("%s: what the attempt left could not be kept: %s", self.claim.key, error)
            return None


async def _settled(sandbox: Sandbox) -> CommandState:
    """The state once the stopped command is recorded as ended; as it is when that takes too long."""
    deadline = asyncio.get_running_loop().time() + _SETTLE_S
    while (state := await sandbox.state(AGENT)).phase is Phase.RUNNING and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(_POLL_MIN_S)
    return state
