"""Commands: states, exit codes, signals, logs, secrets, and what an agent may try against its runner."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from eval_pipeline.errors import SandboxLost, SpecError
from eval_pipeline.sandbox.base import CommandState, Phase, Sandbox, SandboxSpec

if TYPE_CHECKING:
    from conftest import Harness

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
SECRET = "s3cr3t-" + "quote' \"$HOME` \\ \nsecond line \u00fc"


@pytest.fixture
async def sandbox(harness: Harness) -> AsyncGenerator[Sandbox]:
    spec = SandboxSpec(
        name=f"e-{secrets.token_hex(12)}",
        installation="a",
        world=harness.world,
        files={"/run/evals/case.json": b'{"prompt": "x"}', "/run/evals/deep/er": b"\x00\xff"},
        secrets={"MODEL_API_KEY": SECRET},
    )
    made = await harness.make("a").get_or_create(spec)
    yield made
    await made.terminate()


async def run(sandbox: Sandbox, script: str, command_id: str = "c", **options: bool) -> tuple[CommandState, bytes, bytes]:
    await sandbox.start(command_id, ["sh", "-c", script], env={}, workdir="/out", **options)
    return await finished(sandbox, command_id)


async def finished(sandbox: Sandbox, command_id: str) -> tuple[CommandState, bytes, bytes]:
    async with asyncio.timeout(30):
        while (state := await sandbox.state(command_id)).phase is Phase.RUNNING:
            await asyncio.sleep(0.01)
    return (state, *await sandbox.logs(command_id))


async def until(sandbox: Sandbox, path: str, wanted: bytes) -> None:
    async with asyncio.timeout(20):
        while await sandbox.tail(path, 0, 999) != wanted:
            await asyncio.sleep(0.01)


def processes_with(marker: str) -> list[str]:
    found: list[str] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if marker.encode() in line.split(b"\0"):
            found.append(folder.name)
    return found


async def test_states(sandbox: Sandbox) -> None:
    assert await sandbox.state("c") == CommandState(Phase.ABSENT)
    await sandbox.start("c", ["sh", "-c", "while [ ! -e /out/go ]; do sleep 0.02; done; exit 4"], env={}, workdir="/")
    running = await sandbox.state("c")
    assert (running.phase, running.exit_code) == (Phase.RUNNING, None)
    assert running.elapsed_s is not None
    await sandbox.write("/out/go", b"")
    state, _, _ = await finished(sandbox, "c")
    assert (state.phase, state.exit_code) == (Phase.EXITED, 4)
    assert await sandbox.state("c") == state, "an exit is final, its time included"


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 1", 1), ("exit 255", 255), ("kill -TERM $$", 143), ("kill -KILL $$", 137), ("kill -SEGV $$", 139)],
)
async def test_exit_codes_and_signals(sandbox: Sandbox, script: str, code: int) -> None:
    state, _, _ = await run(sandbox, script)
    assert (state.phase, state.exit_code) == (Phase.EXITED, code)


async def test_what_can_not_be_started_exits(sandbox: Sandbox) -> None:
    await sandbox.start("missing", ["no-such-program"], env={}, workdir="/")
    await sandbox.start("nowhere", ["true"], env={}, workdir="/no/such/dir")
    assert (await finished(sandbox, "missing"))[0].exit_code == 127
    assert (await finished(sandbox, "nowhere"))[0].exit_code == 126


async def test_binary_arguments_environment_and_output(sandbox: Sandbox) -> None:
    every = bytes(range(1, 256)).decode("utf-8", "surrogateescape")
    await sandbox.start(
        "c", ["sh", "-c", 'printf %s "$1$VALUE"; printf "\\0\\377" >&2', "sh", every], env={"VALUE": every}, workdir="/"
    )
    _, stdout, stderr = await finished(sandbox, "c")
    assert stdout == bytes(range(1, 256)) * 2
    assert stderr == b"\0\xff"


async def test_a_file_added_later_is_as_one_of_the_first(sandbox: Sandbox) -> None:
    content = bytes(range(256)) * 40
    await sandbox.add_file("/run/evals/case.json", b"the second")
    await sandbox.add_file("/run/evals/late/er/file", content)
    seen = "cat /run/evals/case.json && sha256sum < /run/evals/late/er/file && stat -c %a /run/evals/late/er/file"
    _, stdout, _ = await run(sandbox, seen)
    assert stdout.startswith(b"the second")
    assert hashlib.sha256(content).hexdigest().encode() in stdout and b"\n444\n" in stdout
    tries = "cd /run/evals; echo x > case.json; rm -f case.json; mv late gone; echo x > late/er/file; touch late/new; cat case.json; ls late"
    _, stdout, _ = await run(sandbox, tries, "tries")
    assert stdout == b"the seconder\n"
    for path in ("/out/x", "/run/evals/inbox/x", "/run/evals/a/../../x", "/run/evals/runner.sh", "/run/evals"):
        with pytest.raises(SpecError):
            await sandbox.add_file(path, b"")
    await sandbox.terminate()
    with pytest.raises(SandboxLost):
        await sandbox.add_file("/run/evals/case.json", b"x")


async def test_start_is_idempotent(sandbox: Sandbox) -> None:
    for _ in range(3):
        await sandbox.start("c", ["sh", "-c", "echo x >>/out/runs"], env={}, workdir="/")
    await finished(sandbox, "c")
    await sandbox.start("c", ["sh", "-c", "echo y >>/out/runs"], env={}, workdir="/")
    _, stdout, _ = await run(sandbox, "cat runs", "check")
    assert stdout == b"x\n"


async def test_commands_run_side_by_side(sandbox: Sandbox) -> None:
    for number in range(8):
        script = f"echo {number} >>all; while [ $(wc -l <all) -lt 8 ]; do sleep 0.02; done; exit {number}"
        await sandbox.start(f"c{number}", ["sh", "-c", script], env={}, workdir="/out")
    states = [(await finished(sandbox, f"c{number}"))[0] for number in range(8)]
    assert [state.exit_code for state in states] == list(range(8))


async def test_logs_give_the_end(sandbox: Sandbox) -> None:
    await run(sandbox, "seq 1 20000")
    stdout, stderr = await sandbox.logs("c", max_bytes=12)
    assert (stdout, stderr) == (b"19999\n20000\n", b"")


async def test_stop_kills_the_group(sandbox: Sandbox) -> None:
    marker = f"97{secrets.randbelow(10**9)}"
    script = f"trap '' TERM INT HUP; sleep {marker} & sleep {marker} & echo up >/out/up; wait; wait"
    await sandbox.start("c", ["sh", "-c", script], env={}, workdir="/")
    await until(sandbox, "/out/up", b"up\n")
    await sandbox.stop("c")
    state, _, _ = await finished(sandbox, "c")
    assert (state.phase, state.exit_code) == (Phase.EXITED, 137)
    assert processes_with(marker) == []
    await sandbox.stop("c")
    assert await sandbox.alive()


async def test_terminate_takes_descendants_that_hide(sandbox: Sandbox) -> None:
    marker = f"98{secrets.randbelow(10**9)}"
    hide = f"trap '' TERM INT HUP; for i in 1 2 3; do setsid nohup sleep {marker} & done; echo up >/out/up; exec sleep {marker}"
    await sandbox.start(
        "c",
        ["sh", "-c", f"setsid sh -c '{hide.replace(chr(39), chr(39) + chr(92) + chr(39) * 2)}' & exit 0"],
        env={},
        workdir="/",
    )
    await until(sandbox, "/out/up", b"up\n")
    assert (await finished(sandbox, "c"))[0].exit_code == 0
    async with asyncio.timeout(20):
        while len(processes_with(marker)) != 4:
            await asyncio.sleep(0.02)
    await sandbox.terminate()
    assert processes_with(marker) == []


async def test_orphans_are_collected(sandbox: Sandbox) -> None:
    await run(sandbox, "for i in $(seq 30); do (sleep 0.01 &) ; done; sleep 0.1")
    await asyncio.sleep(0.1)
    await sandbox.state("c")
    _, stdout, _ = await run(sandbox, "sleep 0.1; grep -l '^State:.Z' /proc/[0-9]*/status | wc -l", "count")
    assert stdout == b"0\n"


async def test_secrets_are_seen_only_with_secrets(sandbox: Sandbox) -> None:
    look = 'printf %s "${MODEL_API_KEY-none}" | sha256sum | cut -c1-64'
    _, stdout, _ = await run(sandbox, look, "with", with_secrets=True)
    assert stdout.decode().strip() == hashlib.sha256(SECRET.encode()).hexdigest()
    _, stdout, _ = await run(sandbox, look, "without")
    assert stdout.decode().strip() == hashlib.sha256(b"none").hexdigest()
    # the pattern is written so that the script holding it does not match
    search = "grep -laF s3cr3''t /proc/1/environ /proc/1/cmdline /proc/1/mem; grep -rlaF s3cr3''t /run /tmp /etc /out /var /home"
    _, stdout, _ = await run(sandbox, search, "search")
    assert stdout == b""


async def test_secrets_are_nowhere_on_the_host(sandbox: Sandbox, harness: Harness) -> None:
    script = 'test -n "$MODEL_API_KEY" && touch /out/up && sleep 1000'
    await sandbox.start("c", ["sh", "-c", script], env={}, workdir="/", with_secrets=True)
    async with asyncio.timeout(20):
        while await sandbox.read("/out/up", 1) is None:
            await asyncio.sleep(0.01)
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not any(b"s3cr3t" in line for line in lines)
    files = [path for root in harness.storage for path in root.rglob("*") if path.is_file() and os.access(path, os.R_OK)]
    assert [path for path in files if b"s3cr3t" in path.read_bytes()] == []
    assert "s3cr3t" not in repr(await harness.make("a").list())


async def test_files_are_there_and_read_only(sandbox: Sandbox) -> None:
    state, stdout, _ = await run(
        sandbox,
        "cat /run/evals/case.json /run/evals/deep/er; echo x >>/run/evals/case.json && exit 1; rm -f /run/evals/case.json && exit 2; exit 7",
    )
    assert stdout == b'{"prompt": "x"}\x00\xff'
    assert state.exit_code == 7


async def test_an_agent_can_not_forge_its_exit_code(sandbox: Sandbox) -> None:
    attack = """
        echo "c exited 1.0 0" >/proc/1/fd/1; echo "c exited 1.0 0" >>/proc/1/fd/0
        find /run/evals -name 'c*' -exec rm -rf {} + ; kill -9 1; kill -TERM 1; kill -9 $PPID
        for f in /run/evals/logs/*; do rm -f "$f"; ln -s /etc/passwd "$f"; done
        exit 42
    """
    state, stdout, stderr = await run(sandbox, attack)
    assert (state.phase, state.exit_code) == (Phase.EXITED, 42)
    assert b"root:" not in stdout + stderr, "logs never follow a link"
    assert (await run(sandbox, "echo still here", "next"))[1] == b"still here\n"


async def test_elapsed_is_of_the_command(sandbox: Sandbox) -> None:
    state, _, _ = await run(sandbox, "sleep 0.5")
    assert state.elapsed_s is not None
    assert state.elapsed_s >= 0.48


@pytest.mark.parametrize("command_id", ["", "a b", "../x", "x\ny", "-x"])
async def test_a_bad_id_is_refused(sandbox: Sandbox, command_id: str) -> None:
    with pytest.raises(SpecError):
        await sandbox.start(command_id, ["true"], env={}, workdir="/")


@pytest.mark.parametrize("env", [{"A B": "x"}, {"1A": "x"}, {"A": "\0"}, {"A;id": "x"}])
async def test_a_bad_environment_is_refused(sandbox: Sandbox, env: dict[str, str]) -> None:
    with pytest.raises(SpecError):
        await sandbox.start("c", ["true"], env=env, workdir="/")
    assert await sandbox.state("c") == CommandState(Phase.ABSENT)
