"""What it costs to persist one large output: from a sandbox into the store, read by a worker process, on both backends.

    python bench/persist.py [--mib 1024] [--backend local|modal|both] [--secrets 5] [--text random|english]

Prints one JSON line. *_rss_peak_mib: above what the process had before; the worker is the one that reads. temp_disk_mib: the most that
lay in the scratch directory and in the store's unfinished files at once, beside the stored bundle. cpu_s: of the engine (engine_cpu_s)
and its workers, without what is only done to measure; mb_s_per_cpu: transcript bytes by that. floor_cpu_s: of nothing but to read such
a transcript, to take its SHA-256, to compress it and to write that durably where the store is; cpu_over_floor: the ratio. floor_mb_s:
what the disk gave it. reading_cpu_s: of reading the stored transcript once. A random transcript hardly compresses; an english one holds messages, tool calls and their results from the texts
of Python's library, each with a usage line. Both hold a line of 100 MB, NUL bytes, half a line and lone surrogates. The loopback Modal
needs root, and runs in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import json
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Any

from backports import zstd

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.locks import locked_case, run_lock, score_lock
from support.modal_loopback import backend as modal_backend
from support.modal_loopback import loopback_modal

from eval_pipeline.runner.persist import Persister
from eval_pipeline.sandbox.base import Backend, Phase, Resources, SandboxSpec
from eval_pipeline.sandbox.local.backend import LocalBackend
from eval_pipeline.scoring.bundle_tar import CHUNK_BYTES, bundle_members
from eval_pipeline.settings import Settings
from eval_pipeline.store.artifacts import LocalArtifacts
from eval_pipeline.store.ledger import ExperimentRow
from eval_pipeline.store.records import Records, open_records
from eval_pipeline.vault.redaction import Redactor

AGENT = r"""
import base64, glob, hashlib, json, os, random, sys
total, seen, kind, pick = int(sys.argv[1]), hashlib.sha256(), sys.argv[2], random.Random(1)

def said():
    texts = [open(path, encoding="utf-8", errors="replace").read() for path in sorted(glob.glob(os.path.dirname(os.__file__) + "/*.py")) if os.path.isfile(path)]
    whole = "\n".join(texts)
    def cut(most):
        begin = pick.randrange(len(whole) - most)
        return whole[begin : begin + pick.randrange(20, most)]
    n = 0
    while True:
        n += 1
        call = "toolu_" + os.urandom(12).hex()
        yield {"type": "message", "role": "assistant", "text": cut(900)}
        yield {"type": "tool_call", "id": call, "name": "read_file", "arguments": {"path": cut(60), "offset": n}}
        yield {"type": "tool_result", "id": call, "content": cut(8000)}
        yield {"type": "usage", "model": "m", "input_uncached": n % 997, "cache_read": 10 * n % 99991, "output": n % 811}

def random_lines():
    for n in range(sys.maxsize):
        yield b'{"type":"message","text":"' + base64.b64encode(os.urandom(750)) + b'"}\n'
        if n < 1000:
            yield b'{"type":"usage","model":"m","input_uncached":1}\n'

lines = random_lines() if kind == "random" else (json.dumps(one).encode() + b"\n" for one in said())
calls = 0
with open("/out/transcript.jsonl", "wb") as out:
    def put(line):
        out.write(line); seen.update(line)
        return len(line)
    size = put(b'{"type":"message","text":"' + b"x" * 100_000_000 + b'"}\n')
    size += put(b'{"type":"message","text":"\x00 \\u0000 \\ud800"}\n')
    while size < total - 20000:
        line = next(lines)
        calls += line.startswith((b'{"type":"usage"', b'{"type": "usage"'))
        size += put(line)
    put(b'{"type":"mess')
open("/out/result.json", "w").write(json.dumps({"status": "ok", "answer": f"{seen.hexdigest()} {calls}"}))
"""


class Watch(threading.Thread):
    """Peaks of this process, of its readers, and of files below some folders, while it runs."""

    def __init__(self, *folders: Path) -> None:
        super().__init__(daemon=True)
        self._folders = folders
        self._end = threading.Event()
        self._own = rss_mib(os.getpid())
        self._first: dict[int, float] = {}
        self.cpu_s = 0.0
        self.engine_mib = self.worker_mib = self.disk_mib = 0.0

    def run(self) -> None:
        while not self._end.wait(0.05):
            self.engine_mib = max(self.engine_mib, rss_mib(os.getpid()) - self._own)
            for child in multiprocessing.active_children():
                if child.pid is not None and (now := rss_mib(child.pid)):
                    self.worker_mib = max(self.worker_mib, now - self._first.setdefault(child.pid, now))
            self.disk_mib = max(self.disk_mib, used_mib(*self._folders))
        self.cpu_s = time.thread_time()

    def stop(self) -> None:
        self._end.set()
        self.join()


def rss_mib(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
    except OSError:
        return 0.0


def used_mib(*folders: Path) -> float:
    """Open files without a name, of this process, count as well; a file with two names counts once."""
    every = [
        found
        for folder in folders
        for path in [*folder.rglob("*"), *_deleted_below(folder)]
        if (found := _status(path)) is not None
    ]
    return sum({(one.st_dev, one.st_ino): one.st_blocks * 512 / 2**20 for one in every}.values())


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None  # gone since


def _deleted_below(folder: Path) -> Iterator[Path]:
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.startswith(str(folder)) and target.endswith("(deleted)"):
            yield entry


@contextmanager
def books(state: Path) -> Iterator[tuple[Records, ExperimentRow]]:
    with open_records(Settings(state_dir=state, worlds_dir=state)) as records:
        run = run_lock("big", [locked_case("c0")])
        records.ledger.create_experiment(run, score_lock(run), repo="/app", baseline=None, budget_usd=None)
        yield records, records.ledger.experiment(run.experiment_id)


async def persist(name: str, backend: Backend, state: Path, n_bytes: int, text: str, secrets: dict[str, str]) -> dict[str, Any]:
    world = state / "world"
    world.mkdir(mode=0o755, exist_ok=True)
    spec = SandboxSpec(
        name=f"e-{os.urandom(12).hex()}",
        installation="bench",
        layers=[await backend.base_layer()] if name == "modal" else [],
        world=world if name == "local" else None,
        files={"/run/evals/agent.py": AGENT.encode()},
        resources=Resources(disk_mib=4096),
    )
    sandbox = await backend.get_or_create(spec)
    await sandbox.start("agent", ["/usr/bin/python3", "/run/evals/agent.py", str(n_bytes), text], env={}, workdir="/out")
    while (ended := await sandbox.state("agent")).phase is Phase.RUNNING:
        await asyncio.sleep(0.2)
    assert ended.exit_code == 0, await sandbox.logs("agent")
    store = LocalArtifacts(state / f"artifacts-{name}")
    with books(state) as (records, experiment):
        (key,) = [key for key in experiment.run.cell_keys() if key.trial == 0][:1]
        worlds = dict.fromkeys(experiment.run.worlds.values(), world)
        persister = Persister(
            store,
            records.verdicts,
            state / "tmp",
            worlds,
            {},
            redactor_of=lambda _: Redactor(secrets),
            quarantine=LocalArtifacts(state / "quarantine"),
        )
        watch = Watch(state / "tmp", state / f"artifacts-{name}" / "tmp")
        watch.start()
        began, used = time.monotonic(), cpu_s()
        async with persister.collected(sandbox, 0) as kept:
            collected_s = time.monotonic() - began
            persisted = await persister.read(kept, experiment, key)
        took_s = time.monotonic() - began
        watch.stop()
        engine_cpu_s = cpu_s() - used - watch.cpu_s
        used = engine_cpu_s + sum(process_cpu_s(one.pid) for one in multiprocessing.active_children())
        persister.close()
    await sandbox.terminate()
    await backend.aclose()
    reading = cpu_s()
    digest, calls = str(persisted.result.answer).split()
    n_stored = transcript_bytes(store, persisted.bundle, digest)
    reading = cpu_s() - reading
    assert (persisted.calls, persisted.evidence["bad_lines"]) == (int(calls), 2), persisted.evidence
    stored_bytes = store.put_file(next((state / f"artifacts-{name}").rglob(persisted.bundle))).size_bytes
    floor_cpu_s, floor_s = floor(store, persisted.bundle, state)
    return {
        "text": text,
        "bytes": n_stored,
        "secrets": len(secrets),
        "mb_s": round(n_stored / 1e6 / took_s, 1),
        "mb_s_per_cpu": round(n_stored / 1e6 / used),
        "cpu_over_floor": round(used / floor_cpu_s, 2),
        "floor_mb_s_per_cpu": round(n_stored / 1e6 / floor_cpu_s),
        "floor_mb_s": round(n_stored / 1e6 / floor_s, 1),
        "stored_ratio": round(stored_bytes / n_stored, 3),
        "calls": persisted.calls,
        "cpu_s": round(used, 2),
        "engine_cpu_s": round(engine_cpu_s, 2),
        "floor_cpu_s": round(floor_cpu_s, 2),
        "reading_cpu_s": round(reading, 2),
        "collect_s": round(collected_s, 1),
        "read_s": round(took_s - collected_s, 1),
        "engine_rss_peak_mib": round(watch.engine_mib),
        "worker_rss_peak_mib": round(watch.worker_mib),
        "temp_disk_mib": round(watch.disk_mib),
    }


def cpu_s() -> float:
    """Of this process."""
    times = os.times()
    return times.user + times.system


def process_cpu_s(pid: int | None) -> float:
    """Readers are children of a server: none of them counts for this process, not even once it has ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def floor(store: LocalArtifacts, bundle: str, state: Path) -> tuple[float, float]:
    """CPU seconds and seconds of what can't be left out."""
    plain, packed = state / "plain", state / "packed"
    with store.open(bundle) as stored, plain.open("wb") as copy:
        for member, stream in bundle_members(stored):
            if member.name == "out/transcript.jsonl" and stream is not None:
                shutil.copyfileobj(stream, copy, 1 << 20)
    began, used = time.monotonic(), cpu_s()
    seen = hashlib.sha256()
    with plain.open("rb", buffering=0) as source, packed.open("wb") as sink:
        packer = zstd.ZstdCompressor(1)
        while chunk := source.read(1 << 18):
            seen.update(chunk)
            sink.write(packer.compress(chunk))
        sink.write(packer.flush())
        sink.flush()
        os.fsync(sink.fileno())
    return cpu_s() - used, time.monotonic() - began


def transcript_bytes(store: LocalArtifacts, bundle: str, digest: str) -> int:
    """What is stored of the transcript, which must be what the agent wrote, byte for byte."""
    with store.open(bundle) as stored:
        for member, stream in bundle_members(stored):
            if member.name == "out/transcript.jsonl" and stream is not None:
                seen = hashlib.sha256()
                while chunk := stream.read(CHUNK_BYTES):
                    seen.update(chunk)
                assert seen.hexdigest() == digest, "the stored transcript is another one"
                return member.size
    raise AssertionError("no transcript is stored")


def main() -> None:
    # A reader imports its engine's main module; that of an engine holds next to nothing, this one all the rest
    multiprocessing.set_forkserver_preload(["eval_pipeline.runner.persist"])
    ensure_running()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--backend", choices=["local", "modal", "both"], default="both")
    parser.add_argument("--secrets", type=int, default=5, help="how many the sandbox was given; none of them is in its output")
    parser.add_argument("--text", choices=["random", "english"], default="random")
    options = parser.parse_args()
    secrets = {f"KEY_{i}": f"sk-bench-{i:02}-{base64.urlsafe_b64encode(os.urandom(30)).decode()}" for i in range(options.secrets)}
    n_bytes = min(options.mib << 20, (1 << 30) - 4096)  # a bundle holds 1 GiB, the result included
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="evb-", dir="/tmp") as folder:
        state = Path(folder)
        state.chmod(0o711)
        if options.backend != "modal":
            found["local"] = asyncio.run(persist("local", LocalBackend("bench", state), state, n_bytes, options.text, secrets))
        if options.backend != "local":
            with loopback_modal(state) as server:
                os.environ.update(server.env)
                found["modal"] = asyncio.run(
                    persist("modal", modal_backend("bench", "bench", state), state, n_bytes, options.text, secrets)
                )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
