"""A thousand sandboxes alive at once, and nothing of them afterwards, whichever way they end."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
from pathlib import Path

import pytest
from support.places import groups_named

from eval_pipeline.sandbox.base import Phase, Resources, Sandbox, SandboxSpec
from eval_pipeline.sandbox.local import launch
from eval_pipeline.sandbox.local.backend import LocalBackend
from eval_pipeline.sandbox.local.places import Places, prepare

pytestmark = [pytest.mark.anyio, pytest.mark.long]
COUNT = 1000


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def left_over(places: Places) -> list[str]:
    """From the system's own tables: processes, mounts, groups, directories."""
    processes = subprocess.run(["ps", "-A", "-ww", "-o", "args="], capture_output=True, text=True, check=True).stdout
    found = [line for line in processes.splitlines() if str(places.scratch) in line]
    found += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(places.scratch) in line]
    found += [str(path) for path in groups_named(f"evals-{places.tag}-*")]
    return found + ([str(places.scratch)] if places.scratch.exists() and places.scratch_is_memory else [])


async def test_a_thousand_live_at_once(state_dir: Path) -> None:
    backend, places = LocalBackend("a", state_dir), prepare(state_dir)
    small = Resources(cpu=1.0, memory_mib=64, disk_mib=16)

    async def begin(number: int) -> Sandbox:
        sandbox = await backend.get_or_create(SandboxSpec(name=f"e-{secrets.token_hex(12)}", installation="a", resources=small))
        script = f"echo {number} >/out/mine; while [ ! -e /out/go ]; do sleep 5; done; cat /out/mine; exit $(({number} % 50))"
        await sandbox.start("c", ["sh", "-c", script], env={}, workdir="/")
        return sandbox

    sandboxes = await asyncio.gather(*map(begin, range(COUNT)))
    assert sum(info.alive for info in await backend.list()) == COUNT
    for sandbox in sandboxes:
        await sandbox.write("/out/go", b"")

    async def finish(number: int) -> None:
        sandbox = sandboxes[number]
        async with asyncio.timeout(300):
            while (state := await sandbox.state("c")).phase is Phase.RUNNING:
                await asyncio.sleep(0.5)
        assert (state.exit_code, (await sandbox.logs("c"))[0]) == (number % 50, b"%d\n" % number)
        if number % 3 == 0:  # dead already when it is told to end
            found = launch.inmate(places.scratch / sandbox.name)
            assert found is not None
            os.kill(found.pid, signal.SIGKILL)
        await sandbox.terminate()

    await asyncio.gather(*map(finish, range(COUNT)))
    assert left_over(places) == []


async def test_the_folder_comes_and_goes_under_many_at_once(state_dir: Path) -> None:
    """The last one's end removes it while the next one's start needs it."""
    backend, places = LocalBackend("a", state_dir), prepare(state_dir)

    async def one(_: int) -> None:
        for _ in range(50):
            sandbox = await backend.get_or_create(SandboxSpec(name=f"e-{secrets.token_hex(12)}", installation="a"))
            await sandbox.terminate()

    await asyncio.gather(*map(one, range(3)))
    assert left_over(places) == []
