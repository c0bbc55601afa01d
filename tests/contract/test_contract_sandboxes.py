"""Names, adoption, tags, installations, ends."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from eval_pipeline.errors import ForeignSandbox, SandboxLost, SpecError
from eval_pipeline.sandbox.base import CommandState, Phase, Sandbox, SandboxSpec

if TYPE_CHECKING:
    from conftest import Harness

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
REPOSITORY = Path(__file__).resolve().parents[2]


def new_name() -> str:
    return f"e-{secrets.token_hex(12)}"


async def ended(sandbox: Sandbox, command_id: str) -> CommandState:
    async with asyncio.timeout(30):
        while (state := await sandbox.state(command_id)).phase is Phase.RUNNING:
            await asyncio.sleep(0.01)
    return state


async def test_the_same_name_is_the_same_machine(harness: Harness) -> None:
    backend, spec = harness.make("a"), SandboxSpec(name=new_name(), installation="a")
    first = await backend.get_or_create(spec)
    await first.write("/out/note", b"from the first handle")
    second = await harness.make("a").get_or_create(spec)
    assert await second.read("/out/note", 100) == b"from the first handle"
    assert len(await backend.list()) == 1


async def test_creators_at_once_get_one_machine(harness: Harness) -> None:
    spec = SandboxSpec(name=new_name(), installation="a")
    made = await asyncio.gather(*(harness.make("a").get_or_create(spec) for _ in range(6)))
    await made[0].write("/out/note", b"1")
    assert [await sandbox.read("/out/note", 9) for sandbox in made] == [b"1"] * 6


async def test_another_installation_can_not_adopt(harness: Harness) -> None:
    name = new_name()
    await harness.make("a").get_or_create(SandboxSpec(name=name, installation="a"))
    with pytest.raises(ForeignSandbox):
        await harness.make("b").get_or_create(SandboxSpec(name=name, installation="b"))


async def test_two_installations_live_side_by_side(harness: Harness) -> None:
    names = {owner: new_name() for owner in ("a", "b")}
    for owner, name in names.items():
        await harness.make(owner).get_or_create(SandboxSpec(name=name, installation=owner, tags={"cell": f"of-{owner}"}))
    infos = {info.name: info for info in await harness.make("a").list()}
    assert {name: infos[name].installation for name in names.values()} == {names["a"]: "a", names["b"]: "b"}
    assert infos[names["b"]].tags == {"cell": "of-b"}
    assert all(info.alive for info in infos.values())


async def test_find_answers_for_what_exists(harness: Harness) -> None:
    backend, name = harness.make("a"), new_name()
    assert await backend.find(name) is None
    await backend.get_or_create(SandboxSpec(name=name, installation="a"))
    found = await harness.make("b").find(name)
    assert found is not None
    assert await found.alive()


async def test_terminate_twice_leaves_nothing(harness: Harness) -> None:
    backend = harness.make("a")
    sandbox = await backend.get_or_create(SandboxSpec(name=new_name(), installation="a"))
    await sandbox.start("c", ["sleep", "1000"], env={}, workdir="/")
    await sandbox.terminate()
    await sandbox.terminate()
    assert not await sandbox.alive()
    assert await backend.find(sandbox.name) is None
    assert await backend.list() == []
    assert harness.leftovers() == []
    assert (await sandbox.state("c")).phase is Phase.LOST


async def test_a_killed_sandbox_is_lost_and_its_evidence_stays(harness: Harness, tmp_path: Path) -> None:
    backend = harness.make("a")
    sandbox = await backend.get_or_create(SandboxSpec(name=new_name(), installation="a"))
    await sandbox.start("done", ["sh", "-c", "echo said; echo kept >/out/file; exit 5"], env={}, workdir="/")
    await ended(sandbox, "done")
    await sandbox.start("hanging", ["sh", "-c", "echo up >/out/up; sleep 1000"], env={}, workdir="/")
    async with asyncio.timeout(20):
        while await sandbox.read("/out/up", 9) != b"up\n":
            await asyncio.sleep(0.01)
    harness.kill(sandbox)
    async with asyncio.timeout(10):
        while await sandbox.alive():
            await asyncio.sleep(0.01)
    hanging = await sandbox.state("hanging")
    assert (hanging.phase, hanging.exit_code, hanging.elapsed_s) == (Phase.LOST, None, None)
    assert (await sandbox.state("done")).exit_code == 5
    with pytest.raises(SandboxLost):
        await sandbox.start("more", ["true"], env={}, workdir="/")
    if "evidence" in backend.missing:
        with pytest.raises(SandboxLost):
            await sandbox.read("/out/file", 99)
        assert await backend.list() == []
    else:
        assert await sandbox.read("/out/file", 99) == b"kept\n"
        assert (await sandbox.logs("done"))[0] == b"said\n"
        assert [info.alive for info in await backend.list()] == [False]
        assert (await sandbox.collect(tmp_path / "bundle.tar")).n_files == 6
    adopted = await backend.get_or_create(SandboxSpec(name=sandbox.name, installation="a"))
    assert not await adopted.alive(), "a lost sandbox is never brought back under its name"


_CREATOR = """
import asyncio, sys, time
from eval_pipeline.sandbox.base import SandboxSpec
async def main():
    sandbox = await make("a").get_or_create(SandboxSpec(name=sys.argv[1], installation="a", tags={"cell": "x"}))
    await sandbox.start("agent", ["sh", "-c", "echo begun >/out/log; sleep 1; echo ended >>/out/log; exit 9"], env={}, workdir="/out")
    print("started", flush=True)
    time.sleep(1000)
asyncio.run(main())
"""


async def test_a_command_outlives_its_killed_orchestrator(harness: Harness, tmp_path: Path) -> None:
    name = new_name()
    creator = subprocess.Popen(
        [sys.executable, "-c", harness.source + _CREATOR, name], stdout=subprocess.PIPE, cwd=REPOSITORY, start_new_session=True
    )
    try:
        assert creator.stdout is not None
        assert creator.stdout.readline() == b"started\n"
    finally:
        creator.kill()
        creator.wait()
        creator.stdout.close() if creator.stdout else None
    sandbox = await harness.make("a").find(name)
    assert sandbox is not None
    assert await sandbox.alive()
    assert (await sandbox.state("agent")).phase is Phase.RUNNING
    await sandbox.start("agent", ["false"], env={}, workdir="/")
    assert (await ended(sandbox, "agent")).exit_code == 9
    assert await sandbox.tail("/out/log", 6, 100) == b"ended\n"
    assert (await sandbox.collect(tmp_path / "bundle.tar")).n_files == 3
    await sandbox.terminate()
    assert harness.leftovers() == []


@pytest.mark.slow
async def test_fifty_at_once(harness: Harness) -> None:
    backend = harness.make("a")

    async def one(number: int) -> bytes:
        sandbox = await backend.get_or_create(SandboxSpec(name=new_name(), installation="a", world=harness.world))
        await sandbox.start("c", ["sh", "-c", f"echo {number} >/etc/own; cat /etc/own"], env={}, workdir="/")
        assert (await ended(sandbox, "c")).exit_code == 0
        stdout, _ = await sandbox.logs("c")
        await sandbox.terminate()
        return stdout

    assert await asyncio.gather(*map(one, range(50))) == [b"%d\n" % number for number in range(50)]
    assert harness.leftovers() == []


@pytest.mark.parametrize("name", ["", "../x", "E-1", "a" * 64, "a/b"])
async def test_a_name_that_is_none_is_refused(harness: Harness, name: str) -> None:
    with pytest.raises(SpecError):
        await harness.make("a").get_or_create(SandboxSpec(name=name, installation="a"))
    assert await harness.make("a").find(name) is None


async def test_a_sandbox_ends_by_itself_when_its_time_is_over(harness: Harness) -> None:
    backend = harness.make("a")
    sandbox = await backend.get_or_create(SandboxSpec(name=new_name(), installation="a", lifetime_s=2))
    await sandbox.start("c", ["sh", "-c", "sleep 600"], env={}, workdir="/tmp")
    other = await backend.get_or_create(SandboxSpec(name=new_name(), installation="a"))
    async with asyncio.timeout(30):
        while await sandbox.alive():
            await asyncio.sleep(0.05)
    assert (await sandbox.state("c")).phase is Phase.LOST
    assert await other.alive()
