"""What nothing inside may do: write to layers, world or host, reach a network, or trick the host through files."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import socket
import tarfile
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from eval_pipeline.errors import SandboxError
from eval_pipeline.sandbox.base import Phase, Sandbox, SandboxSpec

if TYPE_CHECKING:
    from conftest import Harness

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
async def sandbox(harness: Harness) -> AsyncGenerator[Sandbox]:
    spec = SandboxSpec(name=f"e-{secrets.token_hex(12)}", installation="a", world=harness.world)
    made = await harness.make("a").get_or_create(spec)
    yield made
    await made.terminate()


async def run(sandbox: Sandbox, script: str, command_id: str = "c") -> tuple[int | None, bytes, bytes]:
    await sandbox.start(command_id, ["sh", "-c", script], env={}, workdir="/out")
    async with asyncio.timeout(60):
        while (state := await sandbox.state(command_id)).phase is Phase.RUNNING:
            await asyncio.sleep(0.01)
    return (state.exit_code, *await sandbox.logs(command_id))


async def test_the_world_is_read_only(sandbox: Sandbox, harness: Harness) -> None:
    code, stdout, _ = await run(
        sandbox, "cat /world/contract.txt; echo x >/world/contract.txt; echo x >/world/new; rm -f /world/contract.txt"
    )
    assert stdout == b"the matter"
    assert code != 0
    assert [path.name for path in harness.world.iterdir()] == ["contract.txt"]
    assert (harness.world / "contract.txt").read_text() == "the matter"


async def test_layers_stack_and_are_never_written(harness: Harness) -> None:
    backend = harness.make("a")
    refs: list[str] = []
    for number, script in enumerate(
        ("mkdir /app; echo one >/app/a; echo one >/app/b; ln -s a /app/l", "echo two >/app/b; rm /app/l")
    ):
        spec = SandboxSpec(name=f"e-{secrets.token_hex(12)}", installation="a", tags=harness.build_tags, layers=refs)
        builder = await backend.get_or_create(spec)
        assert (await run(builder, script))[0] == 0
        refs.append(await backend.commit(builder, f"layer-{number}"))
    assert [backend.layer("layer-0"), backend.layer("layer-1"), backend.layer("layer-2")] == [*refs, None]
    before = [tree_digest(path) for ref in refs for path in harness.content(ref)]
    user = await backend.get_or_create(SandboxSpec(name=f"e-{secrets.token_hex(12)}", installation="a", layers=refs))
    code, stdout, _ = await run(
        user,
        "cat /app/a /app/b; ls /app; ln /app/a /out/h; ln /app/a /h; echo h >>/h; echo x >/app/a; rm /app/b; mkdir /app/new; cat /app/a",
    )
    assert (code, stdout) == (0, b"one\ntwo\na\nb\nx\n")
    assert [tree_digest(path) for ref in refs for path in harness.content(ref)] == before


async def test_a_commit_is_idempotent_and_ends_the_sandbox(harness: Harness) -> None:
    backend = harness.make("a")
    refs: list[str] = []
    for text in ("first", "second"):
        spec = SandboxSpec(name=f"e-{secrets.token_hex(12)}", installation="a", tags=harness.build_tags)
        builder = await backend.get_or_create(spec)
        await run(builder, f"echo {text} >/etc/which; sleep 1000 &")
        refs.append(await backend.commit(builder, "same"))
        assert not await builder.alive()
    assert refs[0] == refs[1]
    user = await backend.get_or_create(SandboxSpec(name=f"e-{secrets.token_hex(12)}", installation="a", layers=refs[:1]))
    assert (await run(user, "cat /etc/which"))[1] == b"first\n"


def tree_digest(root: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        digest.update(f"{path} {path.lstat().st_mode} {path.lstat().st_mtime_ns}".encode() + content)
    return digest.hexdigest()


async def test_there_is_no_way_out(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as host:
        accepted: list[object] = []
        host.settimeout(0.2)

        def accept() -> None:
            while not stopped.is_set():
                try:
                    connection, _ = host.accept()
                except TimeoutError:
                    continue
                accepted.append(connection)
                connection.close()

        stopped = threading.Event()
        listener = threading.Thread(target=accept)
        listener.start()
        try:
            port = host.getsockname()[1]
            script = f"""
                command -v curl >/dev/null || exit 90
                curl -sS -m 2 http://127.0.0.1:{port}/ && exit 1
                curl -sS -m 2 http://192.0.2.1/ && exit 2
                curl -sS -m 2 'http://[2001:db8::1]/' && exit 3
                curl -sS -m 2 http://example.com/ && exit 4
                getent ahosts example.com && exit 5
                exit 77
            """
            code, stdout, stderr = await run(sandbox, script)
        finally:
            stopped.set()
            listener.join()
    assert (code, stdout) == (77, b""), stderr
    assert accepted == []


@pytest.mark.parametrize("path", ["/etc/passwd", "/out", "/out/../etc/passwd", "out/x", "/out//x", "/run/evals/case.json"])
async def test_only_out_is_read_and_written(sandbox: Sandbox, path: str) -> None:
    with pytest.raises(SandboxError):
        await sandbox.read(path, 10)
    with pytest.raises(SandboxError):
        await sandbox.write(path, b"x")


async def test_links_and_fifos_are_not_followed(sandbox: Sandbox, tmp_path: Path) -> None:
    bait = tmp_path / "bait"
    bait.write_text("the host's")
    script = f"ln -s {bait} link; ln -s {tmp_path} dir; mkfifo fifo; mkdir real; echo ok >real/file; ln -s real alias; ln -s /etc/passwd log"
    assert (await run(sandbox, script))[0] == 0
    for path in ("/out/link", "/out/dir/bait", "/out/fifo", "/out/real", "/out/alias/file", "/out/none", "/out/real/file/x"):
        assert await sandbox.read(path, 100) is None, path
        assert await sandbox.tail(path, 0, 100) == b"", path
    assert await sandbox.read("/out/real/file", 100) == b"ok\n"
    with pytest.raises(SandboxError):
        await sandbox.write("/out/dir/bait", b"stolen")
    await sandbox.write("/out/link", b"mine")
    assert bait.read_text() == "the host's"
    assert await sandbox.read("/out/link", 100) == b"mine"


async def test_read_tail_and_write(sandbox: Sandbox) -> None:
    await sandbox.write("/out/deep/er/file", b"0123456789")
    assert await sandbox.read("/out/deep/er/file", 10) == b"0123456789"
    with pytest.raises(SandboxError, match="larger than 9"):
        await sandbox.read("/out/deep/er/file", 9)
    assert await sandbox.tail("/out/deep/er/file", 8, 100) == b"89"
    assert await sandbox.tail("/out/deep/er/file", 2, 3) == b"234"
    assert await sandbox.tail("/out/deep/er/file", 10, 100) == b""
    code, stdout, _ = await run(sandbox, "cat deep/er/file && echo more >>deep/er/file && touch deep/new")
    assert (code, stdout) == (0, b"0123456789")
    assert await sandbox.tail("/out/deep/er/file", 10, 100) == b"more\n"


@pytest.mark.slow
async def test_a_large_file_is_collected_whole(sandbox: Sandbox, tmp_path: Path) -> None:
    code, stdout, _ = await run(sandbox, "head -c 50000000 /dev/urandom >big; sha256sum big | cut -c1-64")
    assert code == 0
    assert await sandbox.tail("/out/big", 49_999_990, 100) != b""
    collected = await sandbox.collect(tmp_path / "bundle.tar")
    assert collected.size_bytes == 50_000_000 + 65
    with tarfile.open(tmp_path / "bundle.tar") as tar:
        content = tar.extractfile("out/big")
        assert content is not None
        assert hashlib.sha256(content.read()).hexdigest() == stdout.decode().strip()


async def test_hostile_names_and_kinds_are_collected_or_named(sandbox: Sandbox, tmp_path: Path) -> None:
    script = r"""
        printf 1 >"$(printf 'new\nline')"; printf 2 >"$(printf 'not-utf8-\377\376')"; printf 3 >"$(printf '\342\200\256rtl')"
        printf 4 >"$(head -c 255 /dev/zero | tr '\0' n)"; mkfifo fifo; ln -s /etc/passwd link; ln -s /out loop; mkdir -p empty/dir
        printf 5 >-rf; truncate -s 5T sparse; printf 6 >prog; chmod 755 prog
        d=.; i=0; while [ $i -lt 100 ]; do d=$d/d; i=$((i+1)); done; mkdir -p $d; echo deep >$d/file
    """
    code, _, stderr = await run(sandbox, f"ulimit -f; {script}")
    collected = await sandbox.collect(tmp_path / "bundle.tar")
    with tarfile.open(tmp_path / "bundle.tar") as tar:
        members = {member.name: member for member in tar.getmembers()}
        names = {os.fsencode(name) for name in members}
    wanted = [
        b"out/new\nline",
        b"out/not-utf8-\xff\xfe",
        b"out/\xe2\x80\xaertl",
        b"out/" + b"n" * 255,
        b"out/-rf",
        b"out/empty/dir",
    ]
    assert [name for name in wanted if name not in names] == [], (code, stderr)
    assert members["out/prog"].mode == 0o755
    assert all(member.isreg() or member.isdir() for member in members.values())
    assert all((member.mtime, member.uid, member.gid) == (0, 0, 0) for member in members.values())
    assert {"fifo", "link", "loop"} <= collected.skipped.keys()
    assert any("deeper" in reason for reason in collected.skipped.values())
    first = (tmp_path / "bundle.tar").read_bytes()
    await sandbox.collect(tmp_path / "again.tar")
    assert (tmp_path / "again.tar").read_bytes() == first


async def test_links_into_the_world_are_collected_below_the_state_only(sandbox: Sandbox, tmp_path: Path) -> None:
    script = """
        mkdir -p state/documents; ln -s /world/contract.txt state/documents/contract.txt; ln -s /world/gone state/gone
        ln -s /world/contract.txt outside; ln -s /world/../etc/passwd state/up; ln -s /etc/passwd state/host; ln -s /world state/all
        ln -s ../../world/contract.txt state/relative; ln -s /world/contract.txt/ state/folder
    """
    code, _, stderr = await run(sandbox, script)
    assert code == 0, stderr
    collected = await sandbox.collect(tmp_path / "bundle.tar")
    with tarfile.open(tmp_path / "bundle.tar") as tar:
        links = {member.name: member.linkname for member in tar if not (member.isreg() or member.isdir())}
        told = tar.extractfile("skipped.json")
        assert told is not None
        assert json.loads(told.read()) == collected.skipped
    assert links == {"out/state/documents/contract.txt": "/world/contract.txt", "out/state/gone": "/world/gone"}
    assert {"outside", *(f"state/{name}" for name in ("up", "host", "all", "relative", "folder"))} <= collected.skipped.keys()


@pytest.mark.slow
async def test_a_tree_no_one_can_enter_is_removed(sandbox: Sandbox, harness: Harness) -> None:
    script = "mkdir -p a/b; echo x >a/b/c; chmod 0 a/b a; d=deep; i=0; while [ $i -lt 1500 ]; do mkdir d; cd d; i=$((i+1)); done"
    assert (await run(sandbox, script))[0] == 0
    await sandbox.terminate()
    assert harness.leftovers() == []
