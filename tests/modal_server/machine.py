"""One sandbox as a real process tree of this machine: an overlay root, no network, and root inside is root of that root only.

The server runs as root, as the platform does: a command in a sandbox starts as uid 0 and leaves that by itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import uuid
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpclib import GRPCError, Status
from modal_proto import api_pb2
from modal_server import files
from modal_server.kernel import Kernel

HELPER = "/__modal/.bin/modal-sandbox-fs-tools"
_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETUID", "SETGID", "SETPCAP", "KILL", "SETFCAP", "MKNOD")
_ENV = {"PATH": "/opt/python/bin:/usr/local/bin:/usr/bin:/bin", "HOME": "/root"}
_KEPT_EXECS = 32
GenericStatus = api_pb2.GenericResult


@dataclass(frozen=True)
class Host:
    """binds: bwrap arguments for what a sandbox shares of this machine: its programs. engines: a VM may start containers."""

    bwrap: Path
    binds: tuple[str, ...]
    engines: bool = False


@dataclass
class Stream:
    data: bytearray = field(default_factory=bytearray)
    ended: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def feed(self, chunk: bytes) -> None:
        self.data += chunk
        self._wake()

    def end(self) -> None:
        self.ended = True
        self._wake()

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


@dataclass
class Exec:
    """code: negative for a signal, as subprocess has it; None while it runs."""

    id: str
    stdout: Stream = field(default_factory=Stream)
    stderr: Stream = field(default_factory=Stream)
    stdin: bytearray = field(default_factory=bytearray)
    stdin_closed: bool = False
    process: asyncio.subprocess.Process | None = None
    code: int | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)
    helper: str | None = None
    delivered: int = 0

    def end(self, code: int) -> None:
        if self.code is None:
            self.code = code
        self.stdout.end()
        self.stderr.end()
        self.done.set()


class Machine:
    """layers: directories, lowest first. mounts: (host directory, mount point), read-only. vm: with a kernel, as it were, of its own."""

    def __init__(
        self, folder: Path, host: Host, layers: Sequence[Path], mounts: Sequence[tuple[Path, str]] = (), *, vm: bool = False
    ) -> None:
        self._kernel = Kernel(folder.name) if vm and host.engines else None
        self.folder = folder
        self.layers = tuple(layers)
        self._host = host
        self._mounts = mounts
        self.execs: dict[str, Exec] = {}
        self.result: api_pb2.GenericResult | None = None
        self.ended = asyncio.Event()
        self.ready = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._pid = 0
        self._root = -1
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, argv: Sequence[str], env: Mapping[str, str], timeout_s: float) -> None:
        for name in ("upper", "work"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "upper").chmod(self.layers[-1].stat().st_mode & 0o7777)
        reading, writing = os.pipe()
        try:
            with (self.folder / "stderr").open("wb") as errors:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command(writing, argv or ["sleep", "infinity"]),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=errors,
                    env={**_ENV, **env},
                    pass_fds=[writing],
                )
        finally:
            os.close(writing)
        told = await asyncio.to_thread(_read_all, reading)
        self._keep(self._watch())
        if b"child-pid" in told:
            self._pid = int(json.loads(told)["child-pid"])
            await self._find_root()
            self._keep(self._end_after(timeout_s))
        self.ready.set()

    async def _find_root(self) -> None:
        """bwrap has moved into the new root once its child runs the command."""
        for _ in range(2000):
            with suppress(OSError):
                if b"bwrap" not in Path(f"/proc/{self._pid}/cmdline").read_bytes().split(b"\0")[0]:
                    self._root = os.open(f"/proc/{self._pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                    return
            if self.ended.is_set():
                return
            await asyncio.sleep(0.002)

    def _command(self, info_fd: int, argv: Sequence[str]) -> list[str]:
        command = [str(self._host.bwrap), "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net", "--as-pid-1"]
        command += ["--new-session", "--die-with-parent", "--cap-drop", "ALL"]
        if self._kernel is not None:
            command, argv = [*self._kernel.joined(), *command, *self._kernel.privileges()], [*self._kernel.booted(), *argv]
        else:
            for name in _CAPABILITIES:
                command += ["--cap-add", f"CAP_{name}"]
        for layer in self.layers:
            command += ["--overlay-src", str(layer)]
        command += ["--overlay", str(self.folder / "upper"), str(self.folder / "work"), "/", *self._host.binds]
        command += ["--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--dev", "/dev"]
        if self._kernel is not None:
            command += self._kernel.file_systems()
        for source, target in self._mounts:
            command += ["--ro-bind", str(source), target]
        return [*command, "--info-fd", str(info_fd), "--chdir", "/", "--", *argv]

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch(self) -> None:
        assert self._process is not None
        code = await self._process.wait()
        self.finish(GenericStatus.GENERIC_STATUS_SUCCESS if code == 0 else GenericStatus.GENERIC_STATUS_FAILURE, code)

    async def _end_after(self, timeout_s: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self.ended.wait(), timeout_s)
        if not self.ended.is_set():
            await self.kill(GenericStatus.GENERIC_STATUS_TIMEOUT)

    def finish(self, status: int, code: int = 0) -> None:
        if self.result is None:
            self.result = api_pb2.GenericResult(status=status, exitcode=code)  # pyright: ignore[reportArgumentType]
            for running in self.execs.values():
                running.end(-signal.SIGKILL)
        if self._root >= 0:
            os.close(self._root)
            self._root = -1
        self.ended.set()
        self.ready.set()

    async def kill(self, status: int) -> None:
        """End the tree and see it gone; its disk goes with it."""
        await self.ready.wait()
        if self.result is None:
            self.result = api_pb2.GenericResult(status=status, exitcode=0)  # pyright: ignore[reportArgumentType]
        if self._pid and not self.ended.is_set():  # afterwards the number may be any other process's of this machine
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        if self._process is not None:
            await self._process.wait()
        for running in self.execs.values():
            running.end(-signal.SIGKILL)
        self.finish(status)
        if self._kernel is not None:
            await self._kernel.end()
        removing = await asyncio.create_subprocess_exec("rm", "-rf", "--", str(self.folder))
        await removing.wait()

    def _alive(self) -> None:
        if self.result is not None or self._root < 0:
            raise GRPCError(Status.NOT_FOUND, "the task has shut down")

    async def exec(self, exec_id: str, argv: Sequence[str], env: Mapping[str, str], workdir: str, timeout_s: int) -> None:
        await self.ready.wait()
        self._alive()
        if exec_id in self.execs:
            return
        made = self.execs[exec_id] = Exec(exec_id)
        self._forget_old()
        if argv[0] == HELPER:
            made.helper = argv[1]
            if not argv[1].startswith('{"WriteFile"'):
                self._help(made)
            return
        enter = ["nsenter", "--target", str(self._pid), "--mount", "--pid", "--net", "--uts", "--ipc", "--"]
        if workdir:
            enter += ["/bin/sh", "-c", 'cd -- "$0" && exec "$@"', workdir]
        made.process = await asyncio.create_subprocess_exec(
            *enter,
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**_ENV, **env},
            start_new_session=True,
        )
        self._keep(self._follow(made, timeout_s))

    def _forget_old(self) -> None:
        ended = [known for known in self.execs.values() if known.done.is_set()]
        for known in ended[: max(0, len(ended) - _KEPT_EXECS)]:
            del self.execs[known.id]

    async def _follow(self, made: Exec, timeout_s: int) -> None:
        process = made.process
        assert process is not None

        async def pump(source: asyncio.StreamReader | None, target: Stream) -> None:
            assert source is not None
            while chunk := await source.read(1 << 18):
                target.feed(chunk)
            target.end()

        work = asyncio.gather(pump(process.stdout, made.stdout), pump(process.stderr, made.stderr), process.wait())
        try:
            async with asyncio.timeout(timeout_s or None):
                await work
        except TimeoutError:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        made.end(await process.wait())

    def _help(self, made: Exec) -> None:
        assert made.helper is not None
        code, out, err = files.run(self._root, made.helper, bytes(made.stdin))
        made.stdout.feed(out)
        made.stderr.feed(err)
        made.end(code)

    def get_exec(self, exec_id: str) -> Exec:
        found = self.execs.get(exec_id)
        if found is None:
            raise GRPCError(Status.NOT_FOUND, f"no exec {exec_id}")
        return found

    async def write_stdin(self, made: Exec, offset: int, data: bytes, eof: bool) -> None:
        fresh = data[max(0, len(made.stdin) - offset) :]
        made.stdin += fresh
        if made.helper is not None:
            if eof and not made.stdin_closed:
                made.stdin_closed = True
                self._alive()
                self._help(made)
            return
        assert made.process is not None and made.process.stdin is not None
        try:
            made.process.stdin.write(fresh)
            await made.process.stdin.drain()
            if eof:
                made.process.stdin.close()
        except (BrokenPipeError, ConnectionResetError):
            raise GRPCError(Status.FAILED_PRECONDITION, "stdin is closed") from None
        made.stdin_closed = made.stdin_closed or eof

    async def snapshot(self, target: Path) -> None:
        self._alive()
        partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        copying = await asyncio.create_subprocess_exec("cp", "-a", "--", str(self.folder / "upper"), str(partial))
        if await copying.wait():
            raise GRPCError(Status.INTERNAL, "the snapshot could not be copied")
        partial.rename(target)


def _read_all(fd: int) -> bytes:
    with os.fdopen(fd, "rb") as pipe:
        return pipe.read()
