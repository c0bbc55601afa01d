"""Start the engine of an experiment as a process of its own, and watch it through the ledger."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from eval_pipeline.cli.output import note
from eval_pipeline.defs.launcher import BEGIN
from eval_pipeline.errors import IsolationUnavailable
from eval_pipeline.host import own_state_dir
from eval_pipeline.sandbox.local import preflight
from eval_pipeline.settings import Settings

if TYPE_CHECKING:
    from eval_pipeline.store.ledger import ExperimentRow
    from eval_pipeline.store.records import Records

WATCH_POLL_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Launched:
    process: subprocess.Popen[bytes]
    log: Path


def log_of(settings: Settings, experiment: str) -> Path:
    """Of the engines that were started from here."""
    return settings.state_dir / "logs" / f"{experiment}.log"


@contextmanager
def engine_ahead(settings: Settings, experiment: str) -> Generator[Launched | None]:
    """An engine that imports meanwhile and begins nothing unless `launch` is given it: else it is ended, or ends with this process.

    None where one has worked here before: that may have left nothing to do.
    """
    started = _started_ahead(settings, experiment)
    try:
        yield started
    finally:
        if started is not None and started.process.stdin is not None and not started.process.stdin.closed:
            started.process.kill()
            started.process.communicate()


def _started_ahead(settings: Settings, experiment: str) -> Launched | None:
    log = log_of(settings, experiment)
    try:
        own_state_dir(settings.state_dir)
        return None if log.exists() and log.stat().st_size > 0 else _start(settings, experiment)
    except OSError:  # who opens the ledger next says what is wrong with the state directory
        return None


def launch(
    settings: Settings,
    experiment: ExperimentRow,
    keys: Sequence[str] = (),
    *,
    only_score: bool = False,
    ahead: Launched | None = None,
) -> Launched:
    """keys: only these cells; empty means all that are not done. The process outlives this one. only_score: no cell is run.

    It waits for cells that another engine is working on, and takes them over if that one leaves them open.
    """
    if ahead is None or ahead.log != log_of(settings, experiment.id):  # an older lock of the file is resumed
        ahead = _start(settings, experiment.id, *(["--only-score"] if only_score else []))
    assert ahead.process.stdin is not None
    with suppress(BrokenPipeError), ahead.process.stdin as told:  # of one that has ended: who watches it says so
        told.write("\n".join([BEGIN, *keys]).encode())
    return ahead


def _start(settings: Settings, experiment: str, *flags: str) -> Launched:
    log = log_of(settings, experiment)
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "eval_pipeline.defs.launcher", experiment, "--when-told", *flags]
    if settings.unsafe_no_isolation:
        command.append("--unsafe-no-isolation")
    with log.open("ab") as sink:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=sink, stderr=sink, start_new_session=True)
    return Launched(process=process, log=log)


def death_of(launched: Launched) -> datetime | None:
    """When its process was last known to write, if a signal has ended it; None when it has ended by itself, or lives."""
    code = launched.process.poll()
    return None if code is None or code >= 0 else datetime.fromtimestamp(launched.log.stat().st_mtime, UTC)


def require_isolation(settings: Settings, backend: str = "local") -> None:
    """Raise IsolationUnavailable before anything is spent when no sandbox may run here. Says so when one runs without isolation."""
    if backend != "local":
        return
    found = preflight.look(unsafe=settings.unsafe_no_isolation)
    if found.way is None:
        raise IsolationUnavailable(found.said, hint=found.remedy)
    if settings.unsafe_no_isolation:
        note(found.said)


def is_worked_on(settings: Settings, records: Records, experiment: str) -> bool:
    """Whether a living engine owns cells of the experiment."""
    from eval_pipeline.store.liveness import end_dead_engines

    end_dead_engines(records.leases, settings)
    return bool(records.leases.engines_of(experiment))


class Watch:
    """Follows an experiment until its engine is gone or `timeout_s` is over. The first Ctrl-C cancels, the second detaches."""

    def __init__(
        self, settings: Settings, records: Records, experiment: ExperimentRow, launched: Launched, timeout_s: float | None
    ) -> None:
        self._settings = settings
        self._records = records
        self._experiment = experiment
        self._launched = launched
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._interrupts = 0

    def run(self) -> bool:
        """True when the engine has ended; False when we left while it goes on."""
        from eval_pipeline.cli.progress import Progress

        before = signal.signal(signal.SIGINT, self._interrupted)
        try:
            with Progress(self._records, self._experiment) as progress:
                while True:
                    ended = self._ended()
                    leave = ended or self._interrupts > 1 or bool(self._deadline and time.monotonic() > self._deadline)
                    progress.update(last=leave)
                    if leave:
                        return ended
                    time.sleep(WATCH_POLL_S)
        finally:
            signal.signal(signal.SIGINT, before)

    def _ended(self) -> bool:
        from eval_pipeline.store.liveness import end_dead_engines

        ended = self._launched.process.poll() is not None
        if ended:  # that it died is known at once, not when its lease has run out
            end_dead_engines(self._records.leases, self._settings)
        return ended

    def _interrupted(self, *_: object) -> None:
        self._interrupts += 1
        if self._interrupts == 1:
            self._records.ledger.request_cancel(self._experiment.id)
            note(
                "\ncancelling: sandboxes are being ended and their cells opened again; press Ctrl-C again to leave that to itself"
            )
        else:
            note(f"\ndetached; the cancel goes on without you. Look: evals experiment status {self._experiment.id}")
