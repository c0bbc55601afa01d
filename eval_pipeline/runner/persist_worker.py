"""A worker that only persists: it takes attempts whose agents have ended, wherever they ran, and brings them to their end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
import uuid
from collections.abc import Callable

from eval_pipeline.domain.cell import MAX_ATTEMPTS, AttemptResult, Outcome
from eval_pipeline.domain.ids import CellKey
from eval_pipeline.errors import EvalsError, FenceLost, SandboxError, SpecError, StoreError
from eval_pipeline.runner.conclude import take_up
from eval_pipeline.runner.doing import Doing
from eval_pipeline.runner.heartbeat import Heartbeat
from eval_pipeline.runner.redacted import redacted
from eval_pipeline.runner.services import Services
from eval_pipeline.sandbox.base import Sandbox
from eval_pipeline.store.handovers import claim_handed_over, give_back
from eval_pipeline.store.ledger import Claim, OpenAttempt
from eval_pipeline.store.liveness import alive, engines_dir

log = logging.getLogger(__name__)

POLL_S = 1.0
_PAUSE_S = 5.0
_PAUSE_MAX_S = 600.0


class Left:
    """Cells that could not be brought to their end: each is left to others for a while, after every try for twice as long."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._until: dict[str, tuple[float, float]] = {}

    def leave(self, key: str) -> float:
        """For how many seconds from now."""
        _, before_s = self._until.get(key, (0.0, _PAUSE_S / 2))
        pause_s = min(2 * before_s, _PAUSE_MAX_S)
        self._until[key] = (self._now() + pause_s, pause_s)
        return pause_s

    def forget(self, key: str) -> None:
        self._until.pop(key, None)

    def keys(self) -> list[str]:
        """Those whose time has not come, in order. One that somebody else has ended is forgotten long after."""
        now = self._now()
        self._until = {key: one for key, one in self._until.items() if now < one[0] + 2 * _PAUSE_MAX_S}
        return sorted(key for key, (until, _) in self._until.items() if now < until)


class PersistWorker:
    """limit: how many outputs at once. What it can't have (a store that lacks a bundle) it leaves to others, and tries again later."""

    def __init__(self, services: Services, limit: int) -> None:
        self.n_ended = 0
        self._services = services
        self._limit = limit
        self._id = str(uuid.uuid4())
        self._doing = Doing()
        self._said: dict[str, list[str]] = {}
        self._left = Left()
        self._tasks: set[asyncio.Task[None]] = set()
        self._end = asyncio.Event()
        services.persister.parsers.resize(limit)

    async def run(self, *, once: bool = False) -> int:
        """Until a signal asks for the end; once: until nothing is left to take. Returns how many attempts were ended."""
        services = self._services
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end.set)
        with alive(engines_dir(services.settings), self._id):
            services.leases.open_engine(self._id, services.host, os.getpid(), None, "persist")
            heartbeat = Heartbeat(self._beat)
            heartbeat.start(loop)
            try:
                await self._work(once)
            finally:
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)
                await services.backends.aclose()
                heartbeat.stop()
                await asyncio.to_thread(services.ledger.release, self._id)
                services.leases.close_engine(self._id)
        return self.n_ended

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._services.leases.renew(self._id, {})
        if (doing := self._doing.as_data()) != self._said:
            self._services.leases.say(self._id, doing)
            self._said = doing

    async def _work(self, once: bool) -> None:
        while not self._end.is_set():
            free = self._limit - len(self._tasks)
            claims = await asyncio.to_thread(self._claim, free) if free else []
            for claim in claims:
                task = asyncio.create_task(self._one(claim))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            if once and not self._tasks:
                return
            ended = asyncio.ensure_future(self._end.wait())
            await asyncio.wait({ended, *self._tasks}, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()

    def _claim(self, most: int) -> list[Claim]:
        return claim_handed_over(self._services.records.database, self._id, most, backends=["modal"], but=self._left.keys())

    async def _one(self, claim: Claim) -> None:
        try:
            with self._doing.cell(claim.key):
                await self._bring_to_its_end(claim)
            self.n_ended += 1
            self._left.forget(claim.key)
        except FenceLost as error:
            self._left.forget(claim.key)
            log.warning("%s", error)
        except (StoreError, SpecError) as error:
            log.warning("%s is left to others for %.0f s: %s", claim.key, self._left.leave(claim.key), error)
        except Exception:
            log.exception("%s is left to others for %.0f s", claim.key, self._left.leave(claim.key))
        finally:
            await asyncio.to_thread(give_back, self._services.records.database, claim)

    async def _bring_to_its_end(self, claim: Claim) -> None:
        attempt = claim.open_attempt
        if attempt is None or attempt.handover is None:
            return
        result, last = await self._result(claim, attempt)
        result = redacted(result, await asyncio.to_thread(self._services.secrets.redactor))
        await asyncio.to_thread(self._services.ledger.finish_attempt, claim, attempt.id, result, last=last)
        log.info("%s: %s", claim.key, result.outcome)
        try:
            sandbox = None if attempt.handover.bundle is not None else await self._find(attempt.sandbox)
            if sandbox is not None:
                await sandbox.terminate()
        except SandboxError as error:
            log.warning("%s: the sandbox %s is left to the reaper: %s", claim.key, attempt.sandbox, error)
            return
        await asyncio.to_thread(self._services.ledger.sandbox_ended, attempt.id)

    async def _result(self, claim: Claim, attempt: OpenAttempt) -> tuple[AttemptResult, bool]:
        """And whether no further attempt follows. Raises StoreError and SpecError for what is no fault of the attempt."""
        services, key = self._services, CellKey.parse(claim.key)
        experiment = await asyncio.to_thread(services.ledger.experiment, key.experiment)
        await services.restore_worlds(experiment, [claim.key])
        prices = services.prices_of(experiment)
        try:
            result = await take_up(services.persister, self._find, experiment, key, prices, attempt)
            return result, result.outcome is Outcome.INFRA_FAILURE  # its output can't be read, and would be no better
        except (StoreError, SpecError, FenceLost):
            raise
        except EvalsError as error:
            assert attempt.handover is not None
            lost = AttemptResult(
                outcome=Outcome.INFRA_FAILURE, error=f"{type(error).__name__}: {error}", evidence=attempt.handover.evidence
            )
            return lost, attempt.number >= MAX_ATTEMPTS

    async def _find(self, name: str) -> Sandbox | None:
        return await self._services.backends.named("modal")[0].find(name)
