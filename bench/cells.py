"""N no-op cells through the whole pipeline: world restored, isolated sandbox, one command, result persisted, scored, logged.

    python bench/cells.py [--cells 2000] [--state DIR]

Prints one JSON line. CPU is everything that ran for it, children and Postgres included, from a control group of its own (or from
/proc/stat where none can be made: then the machine must be quiet). The floor is the same sandbox with nothing around it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import yaml

from eval_pipeline.sandbox.base import Phase, SandboxSpec
from eval_pipeline.sandbox.local.backend import LocalBackend
from eval_pipeline.settings import Settings
from eval_pipeline.store.records import open_records

CASES, ARMS = 100, 4
FLOOR_RUNS, FLOOR_AT_ONCE = 200, 8
CPUACCT = Path("/sys/fs/cgroup/cpuacct")
AGENT = """#!/bin/sh
while read -r line; do echo "$line"; done < /world/documents/c.txt > "$EVALS_OUTPUT/seen"
printf '{"status": "ok", "answer": "yes"}' > "$EVALS_OUTPUT/result.json"
"""


def make_project(root: Path, cells: int) -> None:
    trials = max(1, cells // (CASES * ARMS))
    cases = CASES if cells >= CASES * ARMS else max(1, cells // ARMS)
    criteria = [{"id": "yes", "text": "Says yes", "points": 1, "check": {"equals": "yes"}}]
    files: dict[str, Any] = {
        "worlds_src/app.yaml": {"name": "noop", "repo": "app", "path": "."},
        "worlds_src/worlds/w/world.yaml": {"id": "w", "title": "Three files", "documents": "documents/"},
        "worlds_src/datasets/all.yaml": {"name": "all", "cases": ["*"]},
        "worlds_src/experiments/noop.yaml": {
            "name": "noop",
            "dataset": "all",
            "app": "noop",
            "arms": [{"name": f"a{n}", "ref": "main", "config": {"n": n}} for n in range(ARMS)],
            "trials": trials,
        },
        "app/evals.app.yaml": {"name": "noop", "image": {"base": "host"}, "agent": ["bin/agent"]},
        "app/bin/agent": AGENT,
        **{f"worlds_src/worlds/w/documents/{name}.txt": f"{name}\n" * 50 for name in "abc"},
        **{
            f"worlds_src/worlds/w/cases/c{n:03}.yaml": {"id": f"c{n:03}", "prompt": f"{n}?", "rubric": {"criteria": criteria}}
            for n in range(cases)
        },
    }
    for path, content in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    (root / "app/bin/agent").chmod(0o755)
    git = ["git", "-C", str(root / "app"), "-c", "user.name=b", "-c", "user.email=b@example.invalid"]
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "no-op"]):
        subprocess.run([*git, *command], check=True)


class Cpu:
    """Seconds of CPU used by a group of processes and all their children, and their highest resident memory."""

    def __init__(self) -> None:
        own = re.search(r"cpuacct:(/.*)", Path("/proc/self/cgroup").read_text())
        self.group = CPUACCT / f"evals-bench-{os.getpid()}" if own and os.access(CPUACCT, os.W_OK) else None
        if self.group is not None:
            self.group.mkdir()

    def enter(self) -> None:
        if self.group is not None:
            (self.group / "cgroup.procs").write_text(str(os.getpid()))

    def used_s(self) -> float:
        if self.group is not None:
            return int((self.group / "cpuacct.usage").read_text()) / 1e9
        user, nice, system = (int(field) for field in Path("/proc/stat").read_text().split()[1:4])
        return (user + nice + system) / os.sysconf("SC_CLK_TCK")


class PeakRss(threading.Thread):
    """The highest sum of resident memory of the engine's process tree, sampled."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.peak_mib, self._end = pid, 0.0, threading.Event()

    def run(self) -> None:
        while not self._end.wait(0.5):
            try:
                text = Path(f"/proc/{self.pid}/status").read_text()
            except OSError:
                return
            found = re.search(r"VmRSS:\s+(\d+)", text)
            self.peak_mib = max(self.peak_mib, int(found.group(1)) / 1024 if found else 0.0)

    def stop(self) -> float:
        self._end.set()
        return self.peak_mib


async def floor_ms(state: Path) -> float:
    """CPU of bare sandboxes (bwrap, runner, one command) without the orchestrator's own."""
    world = state / "floor-world"
    world.mkdir()
    world.chmod(0o755)
    backend = LocalBackend("floor", state)
    before = os.times()
    gate = asyncio.Semaphore(FLOOR_AT_ONCE)

    async def one(number: int) -> None:
        async with gate:
            sandbox = await backend.get_or_create(SandboxSpec(name=f"floor-{number}", installation="floor", world=world))
            await sandbox.start("true", ["/bin/true"], env={}, workdir="/")
            while (await sandbox.state("true")).phase is Phase.RUNNING:
                await asyncio.sleep(0.005)
            await sandbox.terminate()

    await asyncio.gather(*(one(number) for number in range(FLOOR_RUNS)))
    after = os.times()
    children = after.children_user + after.children_system - before.children_user - before.children_system
    return children / FLOOR_RUNS * 1e3


def stages(settings: Settings) -> tuple[int, dict[str, float]]:
    """Cells with a valid result, and the medians of what each spent where, in ms."""
    with open_records(settings) as records:
        cells = [cell for cell in records.views.cells(records.ledger.experiment("noop").id) if cell.counted is not None]
    spans: dict[str, list[float]] = {"setup": [], "agent": [], "persist": []}
    for attempt in (cell.counted for cell in cells):
        if attempt is None or attempt.agent_started_at is None or attempt.ended_at is None or attempt.latency_s is None:
            continue
        spans["setup"].append((attempt.agent_started_at - attempt.created_at).total_seconds())
        spans["agent"].append(attempt.latency_s)
        spans["persist"].append((attempt.ended_at - attempt.agent_started_at).total_seconds() - attempt.latency_s)
    return len(cells), {name: round(statistics.median(values) * 1e3, 1) for name, values in spans.items() if values}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=2000)
    parser.add_argument("--keep", action="store_true", help="leave the state directory")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="evb-", dir="/tmp"))
    root.chmod(0o711)
    make_project(root, options.cells)
    state = root / "state"
    env = {**os.environ, "EVALS_STATE_DIR": str(state), "EVALS_WORLDS_DIR": str(root / "worlds_src")}
    evals = [sys.executable, "-m", "eval_pipeline.cli"]
    subprocess.run([*evals, "doctor"], env=env, check=True, stdout=subprocess.DEVNULL)  # Postgres' data directory is made once
    cpu = Cpu()
    started, before = time.monotonic(), cpu.used_s()
    run = subprocess.Popen(
        [*evals, "experiment", "run", "noop", "--wait", "--json"],
        env=env, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=cpu.enter,
    )  # fmt: skip
    rss: PeakRss | None = None
    lines: list[str] = []
    assert run.stderr is not None and run.stdout is not None
    for line in run.stderr:
        lines.append(line)
        if (found := re.search(r"process (\d+)", line)) and rss is None:
            rss = PeakRss(int(found.group(1)))
            rss.start()
    out = run.stdout.read()
    if run.wait() != 0:
        sys.exit(f"the run failed:\n{out}\n{''.join(lines)}")
    wall_s, cpu_s = time.monotonic() - started, cpu.used_s() - before
    settings = Settings(state_dir=state, worlds_dir=root / "worlds_src")
    n_cells, spans = stages(settings)
    log = next((state / "logs").glob("noop-*.log")).read_text()
    events = re.search(r"(\d+) events stored in ([\d.]+) s", log)
    result = {
        "cells": n_cells,
        "wall_s": round(wall_s, 1),
        "cpu_ms_per_cell": round(cpu_s / n_cells * 1e3, 1),
        "peak_rss_mib": round(rss.stop()) if rss else None,
        "dagster_event_ms": round(float(events.group(2)) / int(events.group(1)) * 1e3, 2) if events else None,
        "floor_ms_per_cell": round(asyncio.run(floor_ms(state)), 1),
        "stages_ms": spans,
    }
    print(json.dumps(result))
    if not options.keep:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
