"""What the backend rests on, seen with the unmodified Modal client: its behaviour, and the loopback server's in Modal's place."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import modal
import modal.exception
import pytest
from modal_proto import api_pb2
from modal_server.images import Images
from modal_server.machine import Machine
from support.modal_loopback import LoopbackModal

from eval_pipeline.sandbox.local.places import prepare

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
FOR_EVER = ("sh", "-c", "while :; do sleep 1000 & wait $!; done")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def app(modal_server: LoopbackModal) -> AsyncGenerator[modal.App]:
    made = await modal.App.lookup.aio(f"t-{secrets.token_hex(6)}", create_if_missing=True)
    yield made
    modal_server.order()
    async for left in modal.Sandbox.list.aio(app_id=made.app_id):
        await left.terminate.aio(wait=True)


def image() -> modal.Image:
    return modal.Image.from_registry("debian:12")


async def create(app: modal.App, *argv: str, **options: Any) -> modal.Sandbox:
    return await modal.Sandbox.create.aio(*(argv or FOR_EVER), **{"app": app, "image": image(), "timeout": 600} | options)


async def output(sandbox: modal.Sandbox, *argv: str, **options: Any) -> tuple[int, bytes, bytes]:
    process = await sandbox.exec.aio(*argv, **{"text": False, "timeout": 30} | options)
    out, err, code = await asyncio.gather(process.stdout.read.aio(), process.stderr.read.aio(), process.wait.aio())
    return code, out, err


async def names(app: modal.App, **tags: str) -> list[str]:
    return [found.object_id async for found in modal.Sandbox.list.aio(app_id=app.app_id, tags=tags)]


async def test_a_name_is_one_running_sandbox(app: modal.App) -> None:
    first = await create(app, name="e-1")
    with pytest.raises(modal.exception.AlreadyExistsError):
        await create(app, name="e-1")
    assert (await modal.Sandbox.from_name.aio(app.name or "", "e-1")).object_id == first.object_id
    await first.terminate.aio(wait=True)
    with pytest.raises(modal.exception.NotFoundError):
        await modal.Sandbox.from_name.aio(app.name or "", "e-1")
    ended = await modal.Sandbox.from_name.aio(app.name or "", "e-1", include_terminated=True)
    assert ended.object_id == first.object_id
    assert (await create(app, name="e-1")).object_id != first.object_id


@pytest.mark.parametrize("options", [{"name": "a" * 65}, {"name": "a/b"}, {"timeout": 86401}, {"runtime": "docker"}])
async def test_what_no_sandbox_may_have_is_refused(app: modal.App, options: dict[str, Any]) -> None:
    with pytest.raises(modal.exception.InvalidError):
        await create(app, **options)
    assert await names(app) == []


async def test_more_than_a_hundred_domains_are_refused(app: modal.App) -> None:
    with pytest.raises(modal.exception.InvalidError):
        await create(app, outbound_domain_allowlist=[f"h{number}.example.com" for number in range(101)])


async def test_the_list_is_of_running_ones_and_tags_are_replaced(app: modal.App) -> None:
    tagged, other = await create(app, tags={"a": "1", "b": "2"}), await create(app)
    assert await names(app, a="1") == [tagged.object_id]
    await tagged.set_tags.aio({"c": "3"})
    assert await tagged.get_tags.aio() == {"c": "3"}
    await other.terminate.aio(wait=True)
    assert await names(app) == [tagged.object_id]


async def test_a_cancelled_create_leaves_a_sandbox_alive(app: modal.App, modal_server: LoopbackModal) -> None:
    """Why the backend shields it."""
    await image().build.aio(app)
    modal_server.order({"method": "SandboxCreateV2", "kind": "late", "delay_s": 1.0})
    task = asyncio.create_task(create(app, name="leaked"))
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(await names(app)) == 1


async def test_output_is_bytes_and_exits_are_codes(app: modal.App) -> None:
    sandbox = await create(app)
    assert await output(sandbox, "sh", "-c", "printf '\\0\\377'; printf err >&2; exit 3") == (3, b"\0\xff", b"err")
    assert (await output(sandbox, "sh", "-c", "kill -TERM $$"))[0] == 143
    with pytest.raises(UnicodeDecodeError):
        await output(sandbox, "printf", "\\377", text=True)
    process = await sandbox.exec.aio("cat", text=False, timeout=30)
    process.stdin.write(b"\0\xffin")
    process.stdin.write_eof()
    await process.stdin.drain.aio()
    assert await process.stdout.read.aio() == b"\0\xffin"


async def test_codes_of_a_sandbox_do_not_tell_how_it_ended(app: modal.App) -> None:
    timed_out, told, own = await create(app, timeout=1), await create(app), await create(app, "sh", "-c", "exit 137")
    await told.terminate.aio(wait=True)
    async with asyncio.timeout(20):
        while None in (codes := [await one.poll.aio() for one in (timed_out, told, own)]):
            await asyncio.sleep(0.1)
    assert codes == [124, 137, 137]
    with pytest.raises(modal.exception.SandboxTerminatedError):
        await told.wait.aio()
    await own.wait.aio()


async def test_a_secret_merges_and_can_not_lose_a_key(app: modal.App) -> None:
    name = f"s-{secrets.token_hex(4)}"
    await modal.Secret.objects.create.aio(name, {"A": "1", "B": "1"})
    secret = modal.Secret.from_name(name)
    old = await create(app, secrets=[secret])
    await secret.update.aio({"A": "2", "C": "2"})
    await modal.Secret.objects.create.aio(name, {"A": "ignored"}, allow_existing=True)
    look = ("sh", "-c", "echo $A$B$C")
    assert await output(await create(app), *look, secrets=[modal.Secret.from_name(name)]) == (0, b"212\n", b"")
    assert (await output(old, *look))[1] == b"\n", "an exec knows what it is given"
    before = secret.object_id
    await modal.Secret.objects.delete.aio(name)
    await modal.Secret.objects.create.aio(name, {"A": "3"})
    again = modal.Secret.from_name(name)
    assert await output(old, *look, secrets=[again]) == (0, b"3\n", b"")
    assert again.object_id != before


async def test_a_volume_keeps_blocks_and_is_mounted_below_a_path(
    app: modal.App, tmp_path: Path, modal_server: LoopbackModal
) -> None:
    data = os.urandom((8 << 20) - 9) + bytes(9) + os.urandom((9 << 20) - 3) + bytes(3)
    (tmp_path / "large").write_bytes(data)
    volume = modal.Volume.from_name(f"v-{secrets.token_hex(4)}", create_if_missing=True, version=2)
    before = modal_server.state()["block_puts"]
    for force in (False, True):
        async with volume.batch_upload.aio(force=force) as batch:
            batch.put_file(tmp_path / "large", "/worlds/1/large")
    assert modal_server.state()["block_puts"] - before == 3, "17 MiB are three blocks, sent once"
    with pytest.raises(FileExistsError):
        async with volume.batch_upload.aio() as batch:
            batch.put_file(tmp_path / "large", "/worlds/1/large")
    assert b"".join([chunk async for chunk in volume.read_file.aio("worlds/1/large")]) == data
    assert [entry.size for entry in await volume.listdir.aio("/worlds", recursive=True) if entry.type.name == "FILE"] == [
        17 << 20
    ]
    mounted = volume.with_mount_options(read_only=True, sub_path="worlds/1")
    sandbox = await create(app, volumes={"/world": mounted})
    code, out, _ = await output(sandbox, "sh", "-c", "ls /world; echo x >/world/x")
    assert (code != 0, out) == (True, b"large\n")


async def test_a_snapshot_is_an_image_until_it_expires(app: modal.App) -> None:
    sandbox = await create(app)
    await output(sandbox, "sh", "-c", "echo one >/etc/own; rm /etc/hosts")
    kept = await sandbox.snapshot_filesystem.aio(ttl=600)
    brief = await sandbox.snapshot_filesystem.aio(ttl=1)
    await kept.publish.aio("own:1")
    for found in (modal.Image.from_id(kept.object_id), modal.Image.from_name("own:1")):
        look = await output(await create(app, image=found), "sh", "-c", "cat /etc/own; ls /etc/hosts")
        assert look[1] == b"one\n"
    await asyncio.sleep(1.2)
    with pytest.raises(modal.exception.NotFoundError):
        await create(app, image=modal.Image.from_id(brief.object_id))


async def test_a_rate_limit_is_raised_at_once_unless_a_policy_says_wait(app: modal.App, modal_server: LoopbackModal) -> None:
    await image().build.aio(app)
    modal_server.order({"method": "SandboxCreateV2", "kind": "exhausted"})
    with pytest.raises(modal.exception.ResourceExhaustedError):
        await create(app)
    modal_server.order({"method": "SandboxCreateV2", "kind": "throttled", "times": 3})
    await create(app)
    assert modal_server.state()["faults"][0]["happened"] == 3


async def test_a_lost_worker_takes_everything_along(app: modal.App, modal_server: LoopbackModal) -> None:
    sandbox = await create(app, name="lost")
    await sandbox.filesystem.write_bytes.aio(b"x", "/tmp/x")
    modal_server.lose("lost")
    with pytest.raises(modal.exception.NotFoundError):
        await sandbox.filesystem.read_bytes.aio("/tmp/x")
    assert await sandbox.poll.aio() is not None


async def test_what_has_ended_is_not_ended_again_by_its_number(state_dir: Path) -> None:
    """When the server stops it ends every machine that it ever had; the kernel gave their numbers to others meanwhile."""
    (state_dir / "base").mkdir()
    host = Images(state_dir / "images", prepare(state_dir / "host"), None).host
    machine = Machine(state_dir / "machine", host, [state_dir / "base"])
    await machine.start(["true"], {}, 60)
    await machine.ended.wait()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stranger:
        machine._pid = stranger.pid  # pyright: ignore[reportPrivateUsage]
        await machine.kill(api_pb2.GenericResult.GENERIC_STATUS_TERMINATED)
        said, _ = stranger.communicate(b"alive")
    assert said == b"alive"


async def test_a_file_is_read_written_and_looked_at(app: modal.App) -> None:
    sandbox = await create(app)
    files = sandbox.filesystem  # refers to its sandbox weakly
    await files.write_bytes.aio(b"\0\xff", "/tmp/deep/er")
    assert await files.read_bytes.aio("/tmp/deep/er") == b"\0\xff"
    assert [entry.name for entry in await files.list_files.aio("/tmp")] == ["deep"]
    assert (await files.stat.aio("/tmp/deep/er")).size == 2
    await files.make_directory.aio("/tmp/a/b")
    with pytest.raises(modal.exception.SandboxFilesystemDirectoryNotEmptyError):
        await files.remove.aio("/tmp/a")
    await files.remove.aio("/tmp/a", recursive=True)
    with pytest.raises(modal.exception.SandboxFilesystemNotFoundError):
        await files.read_bytes.aio("/tmp/a")
