"""One round: an experiment, and what befalls those who work on it, in the order that a seed gives."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from chaos.chaos_stage import TREE, Stage

from eval_pipeline.store.ledger import ExperimentRow

MAX_ENGINES = 12
_LOOK_S = 0.01
_MARKER = "EVALS_CHAOS"
T = TypeVar("T")


@dataclass
class Actor:
    """An engine. paused: stopped by SIGSTOP. killed: by us."""

    process: subprocess.Popen[bytes]
    paused: bool = False
    killed: bool = False

    @property
    def working(self) -> bool:
        return self.process.poll() is None and not self.paused

    def signal(self, number: int) -> None:
        self.killed |= number == signal.SIGKILL
        self.paused = (self.paused or number == signal.SIGSTOP) and number != signal.SIGCONT
        with suppress(ProcessLookupError):
            self.process.send_signal(number)


class Round:
    """said: the story so far, a line each. excused: sandboxes that a fault took from their agent. full: spans of time, from and to, in
    which nothing could be stored for so long that the output of an agent that had ended may be lost."""

    def __init__(self, stage: Stage, seed: int, kinds: list[str], logs: Path) -> None:
        self.stage, self.seed, self.kinds = stage, seed, kinds
        self.random = random.Random(f"{stage.backend} {seed}")
        self.name = f"r{seed}{stage.backend[0]}"
        self.began = time.time()
        self.said: list[str] = []
        self.excused: set[str] = set()
        self.full: list[tuple[float, float]] = []
        self.actors: list[Actor] = []
        self.marker = f"{os.getpid()}-{self.name}"
        self.tree = TREE
        self.log = logs / f"{self.name}.log"
        self._clock = logs / f"{self.name}.clock"
        self._launcher = self.random.random() < 0.2 and "clock" not in kinds
        self.set_clock(0)
        self.experiment: ExperimentRow = stage.experiment(
            self.name, self.random.randint(3, 5), self.random.choice([0.8, 1.5, 2.5])
        )

    def say(self, line: str) -> None:
        self.said.append(f"{time.time() - self.began:6.2f} {line}")

    # ---- engines

    def start(self) -> Actor:
        assert len(self.actors) < MAX_ENGINES, "\n".join(self.said)
        env = {_MARKER: self.marker}
        if "clock" in self.kinds:
            env["EVALS_CHAOS_CLOCK"] = str(self._clock)
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                self.stage.command(self.experiment.id, self._launcher),
                env=self.stage.env(self.tree, env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.actors.append(Actor(process))
        self.say(f"engine {len(self.actors)} started, pid {process.pid}")
        return self.actors[-1]

    def working(self) -> list[Actor]:
        return [actor for actor in self.actors if actor.working]

    def one(self) -> Actor:
        """An engine at work; started when there is none."""
        working = self.working()
        return self.random.choice(working) if working else self.start()

    def set_clock(self, offset_s: int) -> None:
        partial = self._clock.with_suffix(".partial")
        partial.write_text(str(offset_s))
        partial.rename(self._clock)

    # ---- looking

    def done(self) -> bool:
        return [row[0] for row in self.stage.ask(_LEFT, self.experiment.id)] == [0]

    def at(self, *states: str) -> Actor | None:
        """An engine at work that has a cell of its own in one of the states."""
        pids = {row[0] for row in self.stage.ask(_DRIVERS, self.experiment.id, list(states))}
        return next((actor for actor in self.working() if actor.process.pid in pids), None)

    def wait(self, condition: Callable[[], T | None], timeout_s: float = 12.0) -> T | None:
        """What the condition gave. None: it did not come about, or the experiment came to its end first."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if found := condition():
                return found
            if self.done():
                return None
            time.sleep(_LOOK_S)
        return None

    def one_at(self, *states: str) -> Actor:
        """Once there is an engine with such a cell, that one; else any."""
        return self.wait(lambda: self.at(*states)) or self.one()

    def sandboxes_with_agents(self) -> list[str]:
        return [row[0] for row in self.stage.ask(_AT_WORK, f"{self.experiment.id}/%")]

    # ---- the whole

    def play(self, faults: dict[str, Callable[[Round], None]]) -> None:
        try:
            for kind in self.kinds:
                if self.done():
                    break
                self.one()
                faults[kind](self)
                self.say(f"{kind} is over")
        finally:
            self._heal()
        self._finish()

    def _heal(self) -> None:
        for actor in self.actors:
            if actor.paused:
                actor.signal(signal.SIGCONT)
        self.stage.filler.unlink(missing_ok=True)
        self.set_clock(0)

    def _finish(self) -> None:
        """Engines one after the other until all is done, and the last one has left by itself: it sweeps up after the others."""
        last: Actor | None = None
        for _ in range(6):
            running = [actor for actor in self.actors if actor.process.poll() is None]
            if not running and self.done() and last is not None:
                return
            last = running[-1] if running else self.start()
            for actor in running or [last]:
                try:
                    code = actor.process.wait(timeout=90)
                    self.say(f"pid {actor.process.pid} left with {code}")
                except subprocess.TimeoutExpired:
                    self.say(f"pid {actor.process.pid} did not leave within 90 s and is killed")
                    actor.signal(signal.SIGKILL)
                    actor.process.wait()

    def left_behind(self) -> list[str]:
        """Processes that came of our engines and are still there after a while."""
        deadline = time.monotonic() + 10
        while (found := _marked(self.marker)) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found


_LEFT = "select count(*) from evals.cells where experiment_id = %s and state <> 'done'"
_DRIVERS = """select e.pid from evals.cells c join evals.engines e on e.id = c.engine_id
where c.experiment_id = %s and c.state = any(%s)"""
_AT_WORK = """select a.sandbox from evals.attempts a join evals.cells c on c.key = a.cell_key
where a.cell_key like %s and a.ended_at is null and a.agent_started_at is not null and c.state = 'running' order by a.id"""


def _marked(marker: str) -> list[str]:
    wanted = f"{_MARKER}={marker}".encode()
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (path / "environ").read_bytes().split(b"\0"):
                found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:150])
    return found
