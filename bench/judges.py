"""The judge stage alone: N cells with 50 judged criteria each, against a judge over real HTTP that answers after 50 ms.

    python bench/judges.py [--cells 2000] [--criteria 50] [--at-once 8 16 32 64]

The ledger is an embedded Postgres; the cells' outputs are stored through the product's own store and ledger, no sandbox runs. Then the
product's judge stage runs over them once for each number of calls at once (the limit `judge calls`), each time as another judge. The
judge is a process of its own on loopback, whose CPU is counted apart. One call is made a criterion: ideal_s = calls x 50 ms / at once.

Prints one JSON line, and a table on standard error. ratio: wall over ideal; floor_ratio: the same of bare calls of the client, which
says how much of it is the machine's (on a busy one even these wait). CPU in ms a call: engine (this process), of it client (what
the same calls take without the product around them, measured in the same run: the floor), readers (the processes that read outputs)
and postgres; provider is what loopback's judge takes. cpu_bound_at: calls at once at which one core of the engine would be full.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import sqlalchemy as sa
from support.judged import JudgedRuns, judged, judged_runs
from support.locks import locked_arm
from support.loopback_judge import completion

from eval_pipeline.domain.experiment import JudgeSpec
from eval_pipeline.scoring.judge_client import JudgeClient
from eval_pipeline.settings import Settings
from eval_pipeline.store.judge_calls import CALLS, CALLS_PER_MINUTE
from eval_pipeline.store.ledger import ExperimentRow

LATENCY_S = 0.05
ARMS, TRIALS = 4, 5
FLOOR_CALLS = 2000
NO_LIMIT = 60_000_000


class Provider(asyncio.Protocol):
    """As little as an HTTP server can be: it must not be what is measured."""

    _HEAD = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
    _ASKED = re.compile(rb"criterion_id is ([\w-]+):")

    def connection_made(self, transport: Any) -> None:
        self._transport, self._got = transport, b""

    def data_received(self, data: bytes) -> None:
        self._got += data
        head, mark, body = self._got.partition(b"\r\n\r\n")
        found = self._HEAD.search(head)
        if not mark or found is None or len(body) < int(found[1]):
            return
        self._got = b""
        asked = self._ASKED.search(body)
        assert asked is not None
        asyncio.get_running_loop().call_later(LATENCY_S, self._answer, asked[1].decode())

    def _answer(self, criterion: str) -> None:
        said = {"criterion_id": criterion, "evidence": "", "reasoning": "It is not there.", "verdict": "not_met"}
        data = completion(json.dumps(said))
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data)
        self._transport.write(head + data)


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Provider, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def cpu_s(*roots: int) -> float:
    """Of processes and all below them, ended ones included."""
    parents, used = dict[int, int](), dict[int, float]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(fields[1])
        used[int(stat.parent.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    below = set(roots)
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return sum(used.get(pid, 0.0) for pid in below)


def postmaster(runs: JudgedRuns) -> int:
    backend = runs.records.database.run(lambda c: c.execute(sa.text("select pg_backend_pid()")).scalar_one())
    return _parent(Path(f"/proc/{backend}/stat"))


def stored(runs: JudgedRuns, judge: JudgeSpec, n_cells: int, n_criteria: int, chars: int) -> ExperimentRow:
    criteria = [judged(f"c{n}", f"States obligation number {n} of the lease of Kiel and who owes it") for n in range(n_criteria)]
    line = "The tenant owes the landlord of the Kiel lease written notice of every change of control within 60 days.\n"
    answers = [f"Answer {n}.\n" + line * (chars // len(line)) for n in range(n_cells)]
    arms = [locked_arm(f"a{n}", config={"n": n}) for n in range(ARMS)]
    return runs.experiment(judge, criteria, answers, arms=arms, trials=TRIALS, budget_usd="10000000")


async def floor(judge: JudgeSpec, at_once: int, text: str) -> tuple[float, float]:
    """Of calls that are only made, and read as the client reads them: CPU in ms a call, and their wall over ideal."""
    gate = asyncio.Semaphore(at_once)
    async with JudgeClient(judge, None, 120.0) as client:

        async def one() -> None:
            async with gate:
                await client.ask(text, "The criterion, whose criterion_id is c0:", per_occurrence=False)

        await one()
        started, before = time.monotonic(), time.process_time()
        await asyncio.gather(*(one() for _ in range(FLOOR_CALLS)))
        cpu_s, wall_s = time.process_time() - before, time.monotonic() - started
        return cpu_s / FLOOR_CALLS * 1e3, wall_s / (FLOOR_CALLS * LATENCY_S / at_once)


class Bench:
    def __init__(self, runs: JudgedRuns, experiment: ExperimentRow, postgres: int, provider: int) -> None:
        self.runs, self.experiment, self.postgres, self.provider = runs, experiment, postgres, provider

    def level(self, at_once: int, chars: int) -> dict[str, Any]:
        score = self.experiment.score
        assert score.judge is not None
        judge = score.judge.model_copy(update={"temperature": at_once / 1000})
        self.runs.records.scorings.set(self.experiment.id, score.model_copy(update={"judge": judge}))
        self.runs.records.judge_calls.set_limit(CALLS, None, at_once)
        client, floor_ratio = asyncio.run(floor(judge, at_once, "x" * chars))
        before = self._used()
        started = time.monotonic()
        report = self.runs.judge(self.experiment)
        wall_s = time.monotonic() - started
        used = {name: (now - before[name]) / report.n_calls * 1e3 for name, now in self._used().items()}
        assert report.stopped is None and report.n_failed == 0, report
        ideal_s = report.n_calls * LATENCY_S / at_once
        return {
            "at_once": at_once,
            "calls": report.n_calls,
            "wall_s": round(wall_s, 1),
            "ideal_s": round(ideal_s, 1),
            "ratio": round(wall_s / ideal_s, 2),
            "floor_ratio": round(floor_ratio, 2),
            "cpu_ms": {name: round(value, 2) for name, value in {**used, "client": client}.items()},
            "cpu_bound_at": round(LATENCY_S * 1e3 / used["engine"]),
            "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }

    def _used(self) -> dict[str, float]:
        engine, provider, postgres = time.process_time(), cpu_s(self.provider), cpu_s(self.postgres)
        here = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/stat") if _parent(path) == os.getpid()]
        readers = sum(cpu_s(pid) for pid in here if pid not in (self.provider, self.postgres))
        return {"engine": engine, "readers": readers, "postgres": postgres, "provider": provider}


def _parent(stat: Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def table(levels: list[dict[str, Any]]) -> str:
    names = ["engine", "client", "readers", "postgres", "provider"]
    lines = [
        f"{'at once':>8} {'calls':>7} {'wall s':>7} {'ideal s':>7} {'ratio':>6} {'floor':>6}  "
        + " ".join(f"{one:>8}" for one in names)
    ]
    lines += [
        f"{one['at_once']:8} {one['calls']:7} {one['wall_s']:7} {one['ideal_s']:7} {one['ratio']:6} {one['floor_ratio']:6}  "
        + " ".join(f"{one['cpu_ms'][name]:8}" for name in names)
        for one in levels
    ]
    return "\n".join([*lines, "CPU in ms a call; the engine's holds the client's"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=2000, help=f"a multiple of {ARMS * TRIALS}")
    parser.add_argument("--criteria", type=int, default=50)
    parser.add_argument("--at-once", type=int, nargs="+", default=[8, 16, 32, 64])
    parser.add_argument("--chars", type=int, default=4000, help="of an answer")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return asyncio.run(serve())
    root = Path(tempfile.mkdtemp(prefix="evj-", dir="/tmp"))
    root.chmod(0o711)
    provider = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    try:
        assert provider.stdout is not None
        judge = JudgeSpec(model="openai:gpt-test", base_url=f"http://127.0.0.1:{provider.stdout.readline().strip()}/v1")
        with judged_runs(Settings(state_dir=root / "state", worlds_dir=root / "worlds_src")) as runs:
            runs.records.judge_calls.set_limit(CALLS_PER_MINUTE, None, NO_LIMIT)
            # starts the processes that read outputs: once, however many cells
            runs.judge(stored(runs, judge, ARMS * TRIALS, 1, 100))
            experiment = stored(runs, judge, options.cells, options.criteria, options.chars)
            bench = Bench(runs, experiment, postmaster(runs), provider.pid)
            levels = [bench.level(at_once, options.chars) for at_once in options.at_once]
    finally:
        provider.kill()
        provider.wait()
        shutil.rmtree(root, ignore_errors=True)
    print(table(levels), file=sys.stderr)
    print(json.dumps({"cells": options.cells, "criteria": options.criteria, "latency_ms": LATENCY_S * 1e3, "levels": levels}))


if __name__ == "__main__":
    main()
