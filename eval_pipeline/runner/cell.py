"""One cell from claim to durable result: setup, run, persist. Every exception ends here, as an outcome."""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from eval_pipeline.domain.case import Limits
from eval_pipeline.domain.cell import MAX_ATTEMPTS, AttemptResult, Outcome
from eval_pipeline.domain.ids import CellKey, sandbox_name
from eval_pipeline.domain.outcome import AgentResult, Decision, Stop, decide
from eval_pipeline.domain.usage import Usage, total_by_model
from eval_pipeline.environment.layers import APP_DIR, Layers, Prepared
from eval_pipeline.errors import BuildError, Cancelled, EvalsError, FenceLost, InfrastructureError, SandboxLost
from eval_pipeline.gateway.client import Gateway
from eval_pipeline.host import HostIdentity
from eval_pipeline.runner.output import TranscriptReader
from eval_pipeline.runner.persist import Persisted, Persister
from eval_pipeline.runner.slots import Slots
from eval_pipeline.sandbox.base import (
    OUTPUT_DIR,
    RUN_DIR,
    WORLD_DIR,
    Backend,
    CommandState,
    Phase,
    Resources,
    Sandbox,
    SandboxSpec,
)
from eval_pipeline.scoring.prices import PriceBook
from eval_pipeline.store.ledger import Claim, ExperimentRow, Ledger, OpenAttempt
from eval_pipeline.vault.environment import read_secrets

log = logging.getLogger(__name__)

AGENT = "agent"
GRACE_S = 5.0
_TAIL_BYTES = 2**20
_POLL_MIN_S, _POLL_MAX_S = 0.02, 1.0


@dataclass(frozen=True, kw_only=True)
class CellContext:
    """What all cells of one experiment share in one engine."""

    experiment: ExperimentRow
    ledger: Ledger
    backend: Backend
    layers: Layers
    world_dirs: dict[str, Path]
    persister: Persister
    prices: PriceBook
    installation: str
    host: HostIdentity
    gateway: Gateway
    setups: Slots
    cancelled: Callable[[], bool]


@dataclass(frozen=True, kw_only=True)
class CellDone:
    """How a cell left the engine. outcome None: nothing new happened to it and it stays open; `error` says why."""

    key: str
    attempt_id: int | None
    outcome: Outcome | None
    error: str | None = None
    result: AttemptResult | None = None


async def drive_cell(context: CellContext, claim: Claim) -> CellDone:
    """Attempts until one is valid, or until they are used up. Raises BudgetExceeded when the first reservation does not fit."""
    attempt: OpenAttempt | None = claim.open_attempt
    for tried in range(1, MAX_ATTEMPTS + 1):
        try:
            run = _AttemptRun(context, claim, attempt)
            done = await run.execute(last=tried == MAX_ATTEMPTS)
        except (FenceLost, Cancelled) as stopped:
            return CellDone(key=claim.key, attempt_id=None, outcome=None, error=str(stopped))
        if done.outcome is not Outcome.INFRA_FAILURE or run.final:
            return done
        log.warning("%s: attempt failed, another follows: %s", claim.key, done.error)
        attempt = None
        await asyncio.sleep(0.2 * 2**tried)
    return done


class _AttemptRun:
    def __init__(self, context: CellContext, claim: Claim, attempt: OpenAttempt | None) -> None:
        self.context = context
        self.claim = claim
        self.attempt = attempt
        self.key = CellKey.parse(claim.key)
        self.case = context.experiment.run.case(self.key.case_name)
        self.arm = context.experiment.run.arm(self.key.arm)
        self.final = False
        self.started_at = datetime.now(UTC)
        self._agent_started = attempt is not None and attempt.agent_started_at is not None

    async def execute(self, *, last: bool) -> CellDone:
        await self._intend()
        try:
            result = await self._attempt()
        except (FenceLost, Cancelled) as stopped:
            if isinstance(stopped, Cancelled):
                await self._end(Outcome.CANCELLED, str(stopped), last=False)
            raise
        except BuildError as error:
            self.final = True  # the same build fails for every attempt
            result = AttemptResult(outcome=Outcome.INFRA_FAILURE, error=str(error), cost_usd=Decimal(0))
        except Exception as error:  # noqa: BLE001 - the cell's boundary: whatever happens to one cell stays there
            if not isinstance(error, EvalsError):
                log.error("%s: %s", self.claim.key, traceback.format_exc())
            result = await self._infra(f"{type(error).__name__}: {error}")
        self.final = self.final or last
        assert self.attempt is not None
        attempt_id = self.attempt.id
        await asyncio.to_thread(self.context.ledger.finish_attempt, self.claim, attempt_id, result, last=self.final)
        await self._end_sandbox()
        return CellDone(key=self.claim.key, attempt_id=attempt_id, outcome=result.outcome, error=result.error, result=result)

    async def _intend(self) -> None:
        if self.attempt is None:
            context = self.context
            self.attempt = await asyncio.to_thread(
                context.ledger.begin_attempt,
                self.claim,
                backend=context.backend.name,
                host_id=context.host.id,
                name_sandbox=lambda number: sandbox_name(context.installation, self.claim.key, number),
                reserve_usd=reservation(context.experiment, self.case.limits),
            )

    async def _attempt(self) -> AttemptResult:
        assert self.attempt is not None
        sandbox = await self._setup()
        self._agent_started = True
        left_s = await asyncio.to_thread(self.context.ledger.agent_started, self.claim, self.attempt.id, self.case.limits.wall_s)
        if (await sandbox.state(AGENT)).phase is Phase.ABSENT:
            await sandbox.start(AGENT, list(self.arm.manifest.agent), env=self._env(), workdir=APP_DIR, with_secrets=True)
        state, stop = await self._watch(sandbox, left_s)
        await asyncio.to_thread(self.context.ledger.persisting, self.claim)
        persisted = await self.context.persister.persist(sandbox, self.context.experiment, self.key)
        return self._result(state, stop, persisted)

    async def _setup(self) -> Sandbox:
        context, attempt = self.context, self.attempt
        assert attempt is not None
        if attempt.agent_started_at is not None and await context.backend.find(attempt.sandbox) is None:
            raise SandboxLost(f"{attempt.sandbox} is gone; its agent had started at {attempt.agent_started_at:%H:%M:%S}")
        async with context.setups.hold():
            self._stop_if_cancelled()
            prepared = await context.layers.prepared(
                Path(context.experiment.repo),
                self.arm,
                context.experiment.run.worlds[self.key.world],
                context.world_dirs[self.key.world],
            )
            return await context.backend.get_or_create(self._spec(attempt, prepared))

    def _spec(self, attempt: OpenAttempt, prepared: Prepared) -> SandboxSpec:
        manifest = self.arm.manifest
        return SandboxSpec(
            name=attempt.sandbox,
            installation=self.context.installation,
            tags={"purpose": "cell", "cell": self.claim.key, "attempt": str(attempt.number)},
            layers=prepared.layers,
            world=prepared.world_dir,
            files={f"{RUN_DIR}/case.json": self._case_json()},
            secrets=read_secrets(manifest.secrets.agent),
            egress=manifest.egress,
            resources=Resources(**manifest.resources.model_dump()),
        )

    def _case_json(self) -> bytes:
        """What the agent is told. Never the rubric, the reference or the arm's name."""
        data: dict[str, Any] = {
            "prompt": self.case.prompt,
            "deliverables": list(self.case.deliverables),
            "config": self.arm.config,
            "trial": self.key.trial,
            "seed": self.context.experiment.run.cell_seed(self.key),
            "limits": self.case.limits.model_dump(mode="json"),
            "world": WORLD_DIR,
            "output": OUTPUT_DIR,
        }
        return json.dumps(data, ensure_ascii=False, indent=1).encode()

    def _env(self) -> dict[str, str]:
        return {"EVALS_CASE": f"{RUN_DIR}/case.json", "EVALS_OUTPUT": OUTPUT_DIR}

    async def _watch(self, sandbox: Sandbox, left_s: float) -> tuple[CommandState, Stop | None]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + left_s + GRACE_S
        meter = _Meter(self.case.limits, self.context.prices, self.started_at)
        pause_s = _POLL_MIN_S
        while True:
            state = await sandbox.state(AGENT)
            if state.phase is Phase.LOST:
                raise SandboxLost(f"{sandbox.name} ended without a recorded exit of its agent")
            if state.phase is not Phase.RUNNING:
                return state, await meter.read(sandbox)
            self._stop_if_cancelled()
            stop = Stop.DEADLINE if loop.time() > deadline else await meter.read(sandbox)
            if stop is not None:
                await sandbox.stop(AGENT)
                return await _settled(sandbox), stop
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.3, _POLL_MAX_S)

    def _stop_if_cancelled(self) -> None:
        if self.context.cancelled():
            raise Cancelled(f"{self.claim.key}: cancelled on request")

    def _result(self, state: CommandState, stop: Stop | None, persisted: Persisted) -> AttemptResult:
        decision = decide(
            persisted.result if persisted.result is not None else AgentResult(status=None, error="unread"),
            exit_code=state.exit_code,
            stop=stop,
            platform_faults=self._faults(),
        )
        return AttemptResult(
            outcome=decision.outcome,
            error=decision.error,
            error_class=decision.error_class,
            bundle=persisted.bundle,
            usage=[usage.model_dump() for usage in persisted.usages],
            usage_source="self-reported",
            cost_usd=self._cost(persisted.usages, decision),
            price_version=self.context.prices.version,
            latency_s=state.elapsed_s,
            evidence=persisted.evidence,
        )

    def _cost(self, usages: list[Usage], decision: Decision) -> Decimal | None:
        """An agent that reports no usage cost nothing we know of: zero only when it says so by finishing well."""
        if not usages and decision.outcome is not Outcome.OK:
            return None if self.arm.manifest.egress else Decimal(0)
        return self.context.prices.cost(usages, self.started_at.date())

    def _faults(self) -> list[str]:
        gateway, attempt = self.context.gateway, self.attempt
        if attempt is None or not self.arm.manifest.egress:
            return []
        faults = [
            f"the proxy could not reach {event.host}:{event.port}: {event.error}"
            for event in gateway.evidence(attempt.sandbox)
            if event.verdict == "dial_failed"
        ]
        if gateway.outages(since=attempt.agent_started_at or self.started_at):
            faults.append("the egress proxy was down during the attempt")
        return faults[:5]

    async def _infra(self, error: str) -> AttemptResult:
        """Keep what the sandbox left. An agent that never started cost nothing; of one that did, the cost is what its output says."""
        if not self._agent_started:
            return AttemptResult(outcome=Outcome.INFRA_FAILURE, error=error, cost_usd=Decimal(0))
        left = await self._salvage()
        if left is None:
            return AttemptResult(outcome=Outcome.INFRA_FAILURE, error=error)
        cost = self.context.prices.cost(left.usages, self.started_at.date())
        usage = [one.model_dump() for one in left.usages]
        return AttemptResult(
            outcome=Outcome.INFRA_FAILURE,
            error=error,
            bundle=left.bundle,
            usage=usage,
            usage_source="self-reported",
            cost_usd=cost,
            price_version=self.context.prices.version,
            evidence=left.evidence,
        )

    async def _salvage(self) -> Persisted | None:
        assert self.attempt is not None
        try:
            sandbox = await self.context.backend.find(self.attempt.sandbox)
            return None if sandbox is None else await self.context.persister.persist(sandbox, self.context.experiment, self.key)
        except InfrastructureError as error:
            log.warning("%s: what the failed attempt left could not be kept: %s", self.claim.key, error)
            return None

    async def _end(self, outcome: Outcome, error: str, *, last: bool) -> None:
        assert self.attempt is not None
        result = AttemptResult(outcome=outcome, error=error)
        await asyncio.to_thread(self.context.ledger.finish_attempt, self.claim, self.attempt.id, result, last=last)
        await self._end_sandbox()

    async def _end_sandbox(self) -> None:
        assert self.attempt is not None
        sandbox = await self.context.backend.find(self.attempt.sandbox)
        if sandbox is not None:
            await sandbox.terminate()


class _Meter:
    """Reads the transcript's new usage events at each poll, when the case limits what may be used."""

    def __init__(self, limits: Limits, prices: PriceBook, started_at: datetime) -> None:
        self._limits = limits
        self._prices = prices
        self._day = started_at.date()
        self._reader = TranscriptReader()
        self._offset = 0

    async def read(self, sandbox: Sandbox) -> Stop | None:
        limits = self._limits
        if limits.cost_usd is None and limits.turns is None:
            return None
        while chunk := await sandbox.tail(f"{OUTPUT_DIR}/transcript.jsonl", self._offset, _TAIL_BYTES):
            self._offset += len(chunk)
            self._reader.feed(chunk)
        usages = self._reader.usages
        if limits.turns is not None and len(usages) > limits.turns:
            return Stop.TURNS
        cost = self._prices.cost(total_by_model(usages), self._day)
        if limits.cost_usd is not None and cost is not None and cost > Decimal(str(limits.cost_usd)):
            return Stop.COST
        return None


async def _settled(sandbox: Sandbox) -> CommandState:
    """The state once the stopped command is recorded as ended; a few seconds at most."""
    for _ in range(100):
        state = await sandbox.state(AGENT)
        if state.phase is not Phase.RUNNING:
            break
        await asyncio.sleep(0.05)
    return state


def reservation(experiment: ExperimentRow, limits: Limits) -> Decimal:
    """What an attempt may cost at the most: the case's own limit, else its fair share of the budget."""
    if experiment.budget_usd is None:
        return Decimal(str(limits.cost_usd or 0))
    if limits.cost_usd is not None:
        return Decimal(str(limits.cost_usd))
    return (experiment.budget_usd / experiment.n_cells).quantize(Decimal("1e-9"))
