"""Disk, memory and processes end at the sandbox's own limits, which then say so; its neighbours notice nothing."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from eval_pipeline.sandbox.base import Backend, Limit, Phase, Resources, Sandbox, SandboxSpec

if TYPE_CHECKING:
    from conftest import Harness

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def make(backend: Backend, **resources: int) -> Sandbox:
    spec = SandboxSpec(name=f"e-{secrets.token_hex(12)}", installation="a", resources=Resources(**resources))
    return await backend.get_or_create(spec)


async def run(sandbox: Sandbox, script: str, command_id: str = "c") -> tuple[int | None, bytes, bytes]:
    await sandbox.start(command_id, ["sh", "-c", script], env={}, workdir="/out")
    async with asyncio.timeout(60):
        while (state := await sandbox.state(command_id)).phase is Phase.RUNNING:
            await asyncio.sleep(0.01)
    return (state.exit_code, *await sandbox.logs(command_id))


def needs(backend: Backend, *limits: str) -> None:
    if lacking := set(limits) & backend.missing.keys():
        pytest.skip(f"not held here: {', '.join(lacking)}")


async def test_all_that_is_written_counts_in_sum(harness: Harness, tmp_path: Path) -> None:
    backend = harness.make("a")
    needs(backend, "disk")
    sandbox = await make(backend, disk_mib=20)
    places = "/out/a /tmp/a /dev/shm/a /etc/a"
    code, _, stderr = await run(sandbox, f"for f in {places}; do head -c 4000000 /dev/zero >$f || exit 9; done")
    assert (code, await sandbox.limits_hit()) == (0, []), stderr
    code, _, stderr = await run(sandbox, "head -c 6000000 /dev/zero", "more")
    assert (code, stderr) != (0, b"")
    assert await sandbox.limits_hit() == [Limit.DISK]
    assert (await sandbox.state("more")).exit_code == code, "the record of an exit needs none of the sandbox's disk"
    assert (await sandbox.collect(tmp_path / "b.tar")).size_bytes > 4_000_000
    assert (await run(sandbox, "rm /tmp/a && echo again", "after"))[1] == b"again\n"
    assert await sandbox.limits_hit() == []


async def test_names_without_content_count_too(harness: Harness) -> None:
    backend = harness.make("a")
    needs(backend, "disk")
    sandbox = await make(backend, disk_mib=2)
    code, _, stderr = await run(sandbox, "i=0; while [ $i -lt 5000 ]; do : >f$i || exit 9; i=$((i+1)); done")
    assert code not in (0, None), stderr
    assert await sandbox.limits_hit() == [Limit.DISK]


async def test_nothing_can_be_written_beside_the_capped_places(harness: Harness) -> None:
    spec = SandboxSpec(name=f"e-{secrets.token_hex(12)}", installation="a", world=harness.world)
    sandbox = await harness.make("a").get_or_create(spec)
    script = "for d in /dev /dev/pts /proc /sys /run /run/evals /world /usr /tmp /dev/shm /run/evals/logs; do (: >$d/x) 2>/dev/null && echo $d; done"
    _, stdout, _ = await run(sandbox, script + "; echo x >/dev/null && echo null")
    assert set(stdout.decode().split()) - {"/run", "/tmp", "/dev/shm", "/run/evals/logs"} == {"null"}


HOG = "/usr/bin/python3 -c 'x = bytearray(400 << 20)'"


async def test_memory_is_told_apart_from_a_kill(harness: Harness) -> None:
    backend = harness.make("a")
    needs(backend, "memory")
    hungry, killed, neighbour = [await make(backend, memory_mib=64, disk_mib=16) for _ in range(3)]
    await neighbour.start("c", ["sh", "-c", "while [ ! -e go ]; do sleep 0.02; done"], env={}, workdir="/out")
    assert (await run(hungry, HOG))[0] == 137
    assert (await run(killed, "kill -9 $$"))[0] == 137
    assert [await sandbox.limits_hit() for sandbox in (hungry, killed, neighbour)] == [[Limit.MEMORY], [], []]
    await neighbour.write("/out/go", b"")
    assert (await run(neighbour, "echo fine", "next"))[1] == b"fine\n"
    harness.kill(hungry)
    async with asyncio.timeout(20):
        while await hungry.alive():
            await asyncio.sleep(0.01)
    assert await hungry.limits_hit() == [Limit.MEMORY], "a lost sandbox still tells"


@pytest.mark.slow
async def test_a_fork_bomb_stays_inside(harness: Harness) -> None:
    backend = harness.make("a")
    needs(backend, "pids")
    bomb, neighbour = await make(backend), await make(backend)
    await bomb.start("c", ["sh", "-c", "f() { f | f & sleep 30; }; f"], env={}, workdir="/out")
    async with asyncio.timeout(60):
        while await bomb.limits_hit() != [Limit.PIDS]:
            await asyncio.sleep(0.05)
    assert (await run(neighbour, "echo fine"))[1] == b"fine\n"
    assert await neighbour.limits_hit() == []
    await bomb.terminate()
    assert not await bomb.alive()
