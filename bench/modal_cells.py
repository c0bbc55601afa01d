"""N sandboxes on Modal at once, from one process, against the loopback Modal in another; then a run in which everything goes wrong.

    python bench/modal_cells.py [--cells 2000] [--faulty 200]

Prints one JSON line. Each cell is made, set up, given a command, looked at until all run, ended, read and terminated. The process'
CPU is that of our own loop and that of the rest, which is the SDK's loop and its threads. Needs root, as the loopback Modal does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.modal_loopback import FileRefs, LoopbackModal, loopback_modal

from eval_pipeline.errors import SandboxError, SandboxLost
from eval_pipeline.sandbox.base import Phase, Sandbox, SandboxSpec
from eval_pipeline.sandbox.modal import ModalBackend
from eval_pipeline.settings import ModalSettings

APP = "bench"
AGENT = "agent"
WAITING = "mkfifo /out/go; echo up >/out/up; read word </out/go; exit 7"  # waits in the kernel: so many polls would be load
RATE = 0.05


class Memory(threading.Thread):
    """The highest resident memory of this process, in MiB."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_mib = 0.0
        self._end = threading.Event()

    def run(self) -> None:
        while not self._end.wait(0.25):
            self.look()

    def look(self) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.peak_mib = max(self.peak_mib, pages * resource.getpagesize() / 2**20)

    def stop(self) -> float:
        self._end.set()
        self.join()
        return round(self.peak_mib, 1)


def make_backend(folder: Path, cells: int) -> ModalBackend:
    settings = ModalSettings(app=APP, max_sandboxes=max(cells, 100))
    return ModalBackend("bench", settings, FileRefs(folder / "refs.json"))


def spec(number: int, attempt: int = 1) -> SandboxSpec:
    tags = {"purpose": "cell", "cell": f"bench/w.c/{number}/0", "attempt": str(attempt)}
    return SandboxSpec(
        name=f"e-{number:020x}-{attempt}", installation="bench", tags=tags, files={"/run/evals/case.json": b"{}"}, lifetime_s=7200
    )


async def exit_code(backend: ModalBackend, sandbox: Sandbox) -> int | None:
    """Raises SandboxLost."""
    pause_s = backend.poll_s / 4
    while (state := await sandbox.state(AGENT)).phase is Phase.RUNNING:
        await asyncio.sleep(pause_s * (0.5 + random.random()))
        pause_s = min(pause_s * 1.3, backend.poll_s)
    if state.phase is Phase.LOST:
        raise SandboxLost(f"{sandbox.name} is lost")
    return state.exit_code


async def all_at_once(folder: Path, server: LoopbackModal, cells: int) -> dict[str, Any]:
    backend = make_backend(folder, cells)
    await backend.base_layer()
    marks: dict[str, float] = {}
    began, own, total = time.monotonic(), time.thread_time(), time.process_time()

    def mark(name: str) -> None:
        nonlocal began, own, total
        marks[f"{name}_s"] = round(time.monotonic() - began, 1)
        marks[f"{name}_own_cpu_s"] = round(time.thread_time() - own, 1)
        marks[f"{name}_sdk_cpu_s"] = round(time.process_time() - total - (time.thread_time() - own), 1)
        began, own, total = time.monotonic(), time.thread_time(), time.process_time()

    async def begin(number: int) -> Sandbox:
        sandbox = await backend.get_or_create(spec(number))
        await sandbox.start(AGENT, ["sh", "-c", WAITING], env={}, workdir="/out", with_secrets=True)
        return sandbox

    sandboxes = await asyncio.gather(*map(begin, range(cells)))
    mark("start")
    states = await asyncio.gather(*(sandbox.state(AGENT) for sandbox in sandboxes))
    at_once = sum(state.phase is Phase.RUNNING for state in states)
    mark("look")
    await asyncio.sleep(10)
    mark("rest_10s")

    async def end(sandbox: Sandbox) -> tuple[int | None, bytes | None]:
        await sandbox.start("end", ["sh", "-c", "echo go >/out/go"], env={}, workdir="/out")
        code = await exit_code(backend, sandbox)
        said = await sandbox.read("/out/up", 99)
        await sandbox.terminate()
        return code, said

    ends = await asyncio.gather(*map(end, sandboxes))
    mark("end")
    left = [one["name"] for one in await asyncio.to_thread(server.sandboxes) if one["alive"] or one["folder"]]
    files = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    return {
        "cells": cells,
        "at_once": at_once,
        "right": ends.count((7, b"up\n")),
        "left_behind": len(left),
        "poll_s": backend.poll_s,
        "open_files_after": files,
        **marks,
    }


async def through_faults(folder: Path, server: LoopbackModal, cells: int) -> dict[str, Any]:
    """5 % of each kind on every call that changes something, and 5 % of the workers lost. A cell has three attempts."""
    backend = make_backend(folder, cells)
    await backend.base_layer()
    kinds = ("unavailable", "lost_answer", "throttled", "exhausted")
    methods = ("SandboxCreateV2", "TaskExecStart", "SandboxTerminateV2")
    orders = [
        {"method": m, "kind": kind, "times": None, "rate": RATE}
        for m in methods
        for kind in kinds
        if (m, kind) != ("TaskExecStart", "exhausted")
    ]
    await asyncio.to_thread(
        server.order, *orders, {"method": "SandboxCreateV2", "kind": "slow", "times": None, "rate": RATE, "delay_s": 3.0}
    )
    doomed = set(random.Random(1).sample(range(cells), max(1, int(cells * RATE))))
    ways: Counter[str] = Counter()

    async def attempt(number: int, nth: int) -> bool:
        sandbox = None
        try:
            sandbox = await backend.get_or_create(spec(number, nth))
            await sandbox.start(AGENT, ["sh", "-c", "sleep 2; exit 7"], env={}, workdir="/out")
            if number in doomed and nth == 1:
                await asyncio.to_thread(server.lose, sandbox.name)
            right = await exit_code(backend, sandbox) == 7
            ways["ok" if right else "wrong exit code"] += 1
            return True
        except SandboxLost:
            ways["lost"] += 1
        except SandboxError as error:
            ways[f"failed: {type(error).__name__}"] += 1
        finally:
            if sandbox is not None:
                await sandbox.terminate()
        return False

    async def cell(number: int) -> int | None:
        for nth in (1, 2, 3):
            if await attempt(number, nth):
                return nth
        return None

    attempts = await asyncio.gather(*map(cell, range(cells)))
    happened = {f"{one['method']} {one['kind']}": one["happened"] for one in (await asyncio.to_thread(server.state))["faults"]}
    await asyncio.to_thread(server.order)
    for info in await backend.list():  # what the reaper would find
        ways["left to the reaper"] += 1
        if (found := await backend.find(info.name)) is not None:
            await found.terminate()
    left = [one["name"] for one in await asyncio.to_thread(server.sandboxes) if one["alive"]]
    return {
        "cells": cells,
        "done": sum(nth is not None for nth in attempts),
        "by_attempt": dict(Counter(map(str, attempts))),
        "ways": dict(ways),
        "faults": happened,
        "left_behind": len(left),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=2000)
    parser.add_argument("--faulty", type=int, default=200)
    asked = parser.parse_args()
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="evb-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        with loopback_modal(folder) as server:
            os.environ.update(server.env)
            memory = Memory()
            memory.start()
            if asked.cells:
                result["all_at_once"] = asyncio.run(all_at_once(folder, server, asked.cells))
            result["peak_rss_mib"] = memory.stop()
            if asked.faulty:
                result["through_faults"] = asyncio.run(through_faults(folder, server, asked.faulty))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
