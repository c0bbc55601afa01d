"""The engine: one event loop that drives all cells of one experiment, under a lease that a thread renews."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from eval_pipeline.domain.ids import CellKey
from eval_pipeline.environment.images import AppSource
from eval_pipeline.errors import BudgetExceeded, EvalsError
from eval_pipeline.runner.cell import CellDone, drive_cell
from eval_pipeline.runner.context import CellContext
from eval_pipeline.runner.doing import Doing
from eval_pipeline.runner.heartbeat import Heartbeat
from eval_pipeline.runner.modal_secrets import sync_to_modal
from eval_pipeline.runner.rates import current_rates
from eval_pipeline.runner.services import Services
from eval_pipeline.runner.slots import Slots
from eval_pipeline.runner.warm import Stock
from eval_pipeline.scoring.sandbox_prices import SandboxRates
from eval_pipeline.store.ledger import Claim, ExperimentRow
from eval_pipeline.store.liveness import alive, engines_dir
from eval_pipeline.store.warm import WarmRows

log = logging.getLogger(__name__)

WANTED = {"setups": 8, "running": 1024, "parsers": 2}
MODAL_SETUPS = 64
_WAIT_FOR_OTHERS_S = 1.0
_ASK_TIMEOUT_S = 5.0


@dataclass(kw_only=True)
class RunReport:
    """done: what this engine finished, by cell. stopped: why cells were left open, None when none was.

    drained: a signal asked this process to go; the sandboxes live on.
    """

    done: dict[str, CellDone] = field(default_factory=dict[str, CellDone])
    stopped: str | None = None
    drained: bool = False


class Engine:
    """Drives `keys` of one experiment until each is done, failed, or the work is stopped.

    on_done is called in the loop for each finished cell and must not block. cancelled is asked every few seconds, in a thread.
    """

    def __init__(
        self,
        services: Services,
        experiment: ExperimentRow,
        *,
        run_id: str | None,
        on_done: Callable[[CellDone], None],
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self.services = services
        self.experiment = experiment
        self.report = RunReport()
        self._run_id = run_id
        self._on_done = on_done
        self._asked = cancelled
        self._running = Slots()
        self._setups = Slots()
        self._pending: deque[Claim] = deque()
        self._in_flight: set[asyncio.Task[None]] = set()
        self._finished = asyncio.Event()
        self._blocked_by_budget: BudgetExceeded | None = None
        self._time_is_up: BudgetExceeded | None = None
        self._cancel = False
        self._drain = asyncio.Event()
        self._engine_id = ""
        self._doing = Doing()
        self._said: dict[str, list[str]] = {}
        self._interruption: asyncio.Future[None] | None = None

    async def run(self, keys: Sequence[str]) -> RunReport:
        services, host = self.services, self.services.host
        await asyncio.to_thread(self._require_secrets, keys)
        self._engine_id = str(uuid.uuid4())
        with alive(engines_dir(services.settings), self._engine_id):
            services.leases.open_engine(self._engine_id, host, os.getpid(), self._run_id)
            heartbeat = Heartbeat(self._beat)
            heartbeat.start(asyncio.get_running_loop())
            try:
                with self._signals():
                    await self._work(list(keys))
            finally:
                await services.backends.aclose()
                heartbeat.stop()
                await asyncio.to_thread(services.ledger.release, self._engine_id)
                services.leases.close_engine(self._engine_id)
        return self.report

    def _require_secrets(self, keys: Sequence[str]) -> None:
        """An agent without its key would fail, and its failure would count."""
        run = self.experiment.run
        self.services.secrets.sync_arms(run.app, [run.arm(name) for name in sorted({CellKey.parse(key).arm for key in keys})])
        if run.backend == "modal":
            self._write_modal_secrets(run.app)

    def _write_modal_secrets(self, app: str) -> None:
        """Without them, cells are sent what they need one by one."""
        services = self.services
        try:
            asyncio.run(sync_to_modal(services.settings, services.records, services.secrets, app=app))
        except EvalsError as error:
            log.warning("secrets are sent to each sandbox: %s", error)

    async def _work(self, keys: list[str]) -> None:
        world_dirs = await self.services.restore_worlds(self.experiment, keys)
        context = self._context(world_dirs, await current_rates(self.services.settings, self.experiment.run.backend))
        while not self._stopping():
            self._pending.extend(
                await asyncio.to_thread(
                    self.services.ledger.claim,
                    self._engine_id,
                    keys,
                    self.services.host.place,
                    handed_over=not self._only_workers,
                )
            )
            if not self._pending:
                keys = await asyncio.to_thread(self._owned_by_others, keys)
                if not keys:
                    return
                await self._pause(_WAIT_FOR_OTHERS_S)
                continue
            await self._dispatch_all(context)
            keys = [key for key in keys if key not in self.report.done]

    async def _dispatch_all(self, context: CellContext) -> None:
        try:
            while (self._pending or self._in_flight) and not self._drain.is_set():
                if self._pending and not self._must_wait():
                    if not await self._before_drain(self._running.take()):
                        break
                    if self._must_wait():  # it may have come about while we waited
                        self._running.give()
                        continue
                    task = asyncio.create_task(self._one(context, self._pending.popleft()))
                    self._in_flight.add(task)
                    task.add_done_callback(self._landed)
                elif self._in_flight:
                    self._finished.clear()
                    await self._before_drain(self._finished.wait())
                else:
                    self._give_up()
        finally:
            for task in self._in_flight:
                task.cancel()  # a drain: the sandboxes live on and the next engine adopts them
            await asyncio.gather(*self._in_flight, return_exceptions=True)

    def _must_wait(self) -> bool:
        return self._cancel or self._out_of is not None

    @property
    def _out_of(self) -> BudgetExceeded | None:
        return self._time_is_up or self._blocked_by_budget

    def _give_up(self) -> None:
        self._pending.clear()
        reason = "cancelled" if self._cancel else str(self._out_of)
        self.report.stopped = self.report.stopped or reason

    async def _one(self, context: CellContext, claim: Claim) -> None:
        try:
            with self._doing.cell(claim.key):
                done = await drive_cell(context, claim)
        except BudgetExceeded as error:
            self._blocked_by_budget = error  # cleared when a cell ends and gives back what it did not use
            self._pending.appendleft(replace(claim, open_attempt=None))  # what was open has ended by now
            return
        self._blocked_by_budget = None
        if done.handed_over:
            return
        self.report.done[claim.key] = done
        self._on_done(done)

    def _landed(self, task: asyncio.Task[None]) -> None:
        self._in_flight.discard(task)
        self._running.give()
        self._finished.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a cell's task failed", exc_info=error)
            self.report.stopped = f"{type(error).__name__}: {error}"
            self._drain.set()

    def _stopping(self) -> bool:
        return self._cancel or self._drain.is_set() or self._out_of is not None or self.report.stopped is not None

    def _owned_by_others(self, keys: Sequence[str]) -> list[str]:
        others = self.services.views.in_other_hands(keys, handed_over=self._only_workers)
        return [key for key in others if key not in self.report.done]

    @property
    def _only_workers(self) -> bool:
        return self.services.settings.persist == "workers"

    async def _before_drain(self, work: Coroutine[Any, Any, object]) -> bool:
        """Wait for `work`; False when the drain came first, and `work` is then cancelled."""
        task, drain = asyncio.ensure_future(work), asyncio.ensure_future(self._drain.wait())
        try:
            await asyncio.wait({task, drain}, return_when=asyncio.FIRST_COMPLETED)
            return task.done()
        finally:
            drain.cancel()
            if not task.done():
                task.cancel()

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._drain.wait(), seconds)
        except TimeoutError:
            pass

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        """In the heartbeat's thread."""
        share = self.services.leases.renew(self._engine_id, self._wanted())
        if self.services.ledger.cancel_requested(self.experiment.id) or self._asked():
            self._cancel = True
        self._time_is_up = self._time_is_up or self._over_time()
        loop.call_soon_threadsafe(self._resize, share)
        if (doing := self._doing.as_data()) != self._said:
            self.services.leases.say(self._engine_id, doing)
            self._said = doing

    def _over_time(self) -> BudgetExceeded | None:
        """Cells in flight go on to their end; none follows."""
        name, most_s = self.experiment.id, self.experiment.budget_wall_s
        if most_s is None or (worked_s := self.services.records.spending.worked_s(name)) < most_s:
            return None
        return BudgetExceeded(f"{name}: it was worked on for {worked_s:.0f} s, and its budget is {most_s:.0f} s")

    def _wanted(self) -> dict[str, int]:
        if self.experiment.run.backend != "modal":
            return WANTED
        most = self.services.settings.modal.max_sandboxes
        return {"modal setups": MODAL_SETUPS, "modal running": most, "parsers": WANTED["parsers"]}

    def _resize(self, share: dict[str, int]) -> None:
        share = {name.removeprefix("modal "): amount for name, amount in share.items()}
        self._running.resize(share["running"])
        # With more engines than places some get none; one each is a little more than the limit, and nobody waits for ever.
        self._setups.resize(max(1, share["setups"]))
        self.services.persister.parsers.resize(max(1, share["parsers"]))
        self._finished.set()

    def _context(self, world_dirs: dict[str, Path], rates: SandboxRates | None) -> CellContext:
        services = self.services
        backend, layers = services.backends.named(self.experiment.run.backend)
        return CellContext(
            experiment=self.experiment,
            ledger=services.ledger,
            backend=backend,
            layers=layers,
            warm=Stock(WarmRows(services.records.database, backend.name, backend.place)),
            source=app_source(self.experiment),
            world_dirs=world_dirs,
            persister=services.persister,
            prices=services.prices_of(self.experiment),
            rates=rates,
            installation=services.installation,
            host=services.host,
            gateway=services.gateway,
            secrets=services.secrets,
            models=services.backends.models(backend.name),
            synced=lambda versions: services.backends.synced(backend.name, "agent", versions),
            setups=self._setups,
            cancelled=lambda: self._cancel,
            hands_over=self._hands_over,
        )

    def _hands_over(self) -> bool:
        by = self.services.settings.persist
        return by == "workers" or (by == "both" and self.services.persister.parsers.full)

    @contextmanager
    def _signals(self) -> Generator[None]:
        """SIGTERM and SIGINT drain, unless a cancel was asked for: the heartbeat sees that."""
        loop = asyncio.get_running_loop()
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        for number in before:
            loop.add_signal_handler(number, self._interrupted)
        try:
            yield
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

    def _interrupted(self) -> None:
        self._interruption = asyncio.ensure_future(self._cancel_or_drain())

    async def _cancel_or_drain(self) -> None:
        try:
            self._cancel = await asyncio.wait_for(asyncio.to_thread(self._asked), _ASK_TIMEOUT_S)
        except Exception as error:  # noqa: BLE001 - who can't be asked asked for nothing; a drain loses nothing
            log.warning("nobody could be asked whether this is a cancel: %s", error)
        if not self._cancel:
            self.report.stopped = "drained on a signal; the sandboxes live on and the next engine adopts them"
            self.report.drained = True
            self._drain.set()
        self._finished.set()


def app_source(experiment: ExperimentRow) -> AppSource:
    return AppSource.of(Path(experiment.repo), experiment.run.app_path, experiment.run.arms)
