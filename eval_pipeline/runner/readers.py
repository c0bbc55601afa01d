"""Worker processes that read stored bundles, one bundle at a time each: one that dies takes nobody else's work with it."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import resource
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from eval_pipeline.errors import OutputUnreadable
from eval_pipeline.runner.judging import BundleReport, BundleTask, end_with, report_on_bundle
from eval_pipeline.vault.bundles import Redacted, RedactionTask, redact_bundle

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

T = TypeVar("T", "BundleReport", "Redacted")
log = logging.getLogger(__name__)

MEMORY_MIB = 1024
READ_S = 1800.0
TRIES = 2


class Readers:
    """As many processes as are asked at once; who asks sees to it that they are few. memory_mib: what one of them may have. read_s: how long for a bundle."""

    def __init__(self, memory_mib: int = MEMORY_MIB, read_s: float = READ_S) -> None:
        self._memory_mib = memory_mib
        self._read_s = read_s
        self._idle: list[_Reader] = []

    async def report(self, task: BundleTask) -> BundleReport:
        """Raises OutputUnreadable when the bundle kills its reader, a fresh one too, takes it too long, or is broken."""
        return await self._asked(task, BundleReport, "is stored, but")

    async def redact(self, task: RedactionTask) -> Redacted:
        """Raises OutputUnreadable likewise: then nothing of it may be stored."""
        return await self._asked(task, Redacted, "is not stored, since a secret may be in it:")

    async def _asked(self, task: BundleTask | RedactionTask, kind: type[T], what: str) -> T:
        for left in reversed(range(TRIES)):
            reader = self._idle.pop() if self._idle else await asyncio.to_thread(_Reader, self._memory_mib, self._read_s)
            try:
                answer = await asyncio.to_thread(reader.ask, task)
            except asyncio.CancelledError:
                reader.kill()  # the thread that waits for it ends with it
                raise
            if isinstance(answer, kind):
                self._idle.append(reader)
                return answer
            reader.close()
            again = left > 0 and not reader.too_slow
            log.warning("%s: %s%s", task.path, answer, "; another reader is tried" if again else "")
            if not again:
                raise OutputUnreadable(f"the output {what} {answer}")
        raise AssertionError("unreachable")

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


class _Reader:
    def __init__(self, memory_mib: int, read_s: float) -> None:
        self._read_s = read_s
        self.too_slow = False
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self._pipe, theirs = context.Pipe()
        self._process: ForkServerProcess = context.Process(target=_serve, args=(theirs, os.getpid(), memory_mib), daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, task: BundleTask | RedactionTask) -> BundleReport | Redacted | str:
        """The answer, or why there is none."""
        try:
            self._pipe.send(task)
            if self._pipe.poll(self._read_s):
                return self._pipe.recv()
            self.too_slow = True
            return f"takes its reader more than {self._read_s:g} s"
        except (EOFError, OSError):
            self._process.join(timeout=10)
            return f"its reader {_ended(self._process.exitcode)}"

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        """Only when nobody asks it."""
        self._process.kill()
        self._process.join()
        self._pipe.close()
        self._process.close()


def _ended(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name} while it read"
    return f"ended with code {'unknown' if code is None else code} while it read"


def _serve(pipe: Connection, engine: int, memory_mib: int) -> None:
    end_with(engine)
    # Beside what is mapped already. The soft one alone: what it starts to read a document has a limit of its own
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (mapped + memory_mib * 2**20, hard))
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        pipe.send(_answer(task, memory_mib))


def _answer(task: BundleTask | RedactionTask, memory_mib: int) -> BundleReport | Redacted | str:
    try:
        return redact_bundle(task) if isinstance(task, RedactionTask) else report_on_bundle(task)
    except MemoryError:
        return f"needs more than the {memory_mib} MiB of memory that its reader may have"
    except Exception as error:  # noqa: BLE001 - the process' boundary: what can't be pickled must not end it
        return f"can't be read: {type(error).__name__}: {error}"
