"""A handle on one local sandbox. It holds no state: everything is read from the sandbox's directory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from eval_pipeline.errors import SandboxError, SandboxLost, SpecError
from eval_pipeline.sandbox.base import OUTPUT_DIR, Address, Collected, CommandState, Limit, Phase
from eval_pipeline.sandbox.local import bundle, disk, launch, limits, ports, script, smallfiles
from eval_pipeline.sandbox.local.places import MEMORY_ROOT, Places
from eval_pipeline.sandbox.local.safefs import open_beneath, read_at, remove_tree, write_beneath

T = TypeVar("T")


@dataclass
class _Record:
    """One command in the journal; uptimes in seconds."""

    started: float | None = None
    exited: float | None = None
    code: int | None = None


class LocalSandbox:
    def __init__(
        self,
        home: Path,
        *,
        tags: Mapping[str, str],
        places: Places,
        disk_mib: int,
        release: Callable[[str], Awaitable[None]] | None,
    ) -> None:
        self.home = home
        self.tags = tags
        self._places = places
        self._release = release
        self._in_memory = home.is_relative_to(MEMORY_ROOT)
        self._watch = disk.Watch(home / "disk", disk_mib)

    @property
    def name(self) -> str:
        return self.home.name

    async def start(
        self,
        command_id: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        workdir: str,
        with_secrets: bool = False,
        with_engine: bool = False,
    ) -> None:
        if with_engine:
            raise SpecError(
                f"{command_id} asks for a container engine, and {self.name} has none: it shares this machine's kernel"
            )
        content = script.command_script(argv, env, workdir, with_secrets)
        await self._briefly(self._start, script.check_id(command_id), content)

    async def _briefly(self, work: Callable[..., T], *args: Any) -> T:
        """In memory a few small files take less time than a thread's turn does; on a disk they may take any time."""
        if self._in_memory:
            return work(*args)
        return await asyncio.to_thread(work, *args)

    def _start(self, command_id: str, content: bytes) -> None:
        inbox = self.home / "run" / "inbox"
        partial = inbox / f".{os.getpid()}.{os.urandom(4).hex()}"
        try:
            partial.write_bytes(content)
            partial.chmod(0o444)
            with suppress(FileExistsError):
                partial.with_name(command_id).hardlink_to(partial)  # the first one stands
            partial.unlink()
        except FileNotFoundError:
            raise self._lost() from None
        if not launch.ring(self.home, f"start {command_id}\n".encode()) and self._record(command_id).code is None:
            raise self._lost()

    def _lost(self) -> SandboxLost:
        return SandboxLost(f"the sandbox {self.name} is gone: {launch.last_words(self.home) or 'nothing was recorded'}")

    async def state(self, command_id: str) -> CommandState:
        if measure := self._watch.is_due():
            return await asyncio.to_thread(self._state, script.check_id(command_id), measure)
        return await self._briefly(self._state, script.check_id(command_id), measure)

    def _state(self, command_id: str, measure: bool) -> CommandState:
        if not (self.home / "run" / "inbox" / command_id).exists():
            return CommandState(Phase.ABSENT if self.home.exists() else Phase.LOST)
        # Rings again: for a start whose caller died before it rang, and so that no child's end stays unnoticed
        alive = launch.ring(self.home, f"start {command_id}\n".encode()) and launch.alive(self.home)
        if alive and measure and self._watch.over():
            (self.home / "over-disk").touch()
            launch.kill(self.home)
            alive = False
        record = self._record(command_id)
        if record.exited is not None and record.started is not None:
            return CommandState(Phase.EXITED, record.code, max(0.0, record.exited - record.started))
        if not alive:
            return CommandState(Phase.LOST)
        return CommandState(Phase.RUNNING, None, 0.0 if record.started is None else max(0.0, _uptime_s() - record.started))

    def _record(self, command_id: str) -> _Record:
        record = _Record()
        try:
            lines = smallfiles.read(f"{self.home}/journal").splitlines()
        except FileNotFoundError:
            return record
        for words in (line.split() for line in lines):
            if len(words) == 3 and words[:2] == [command_id, "started"]:
                record.started = float(words[2])
            elif len(words) == 4 and words[:2] == [command_id, "exited"]:
                record.exited, record.code = float(words[2]), int(words[3])
        return record

    async def stop(self, command_id: str) -> None:
        await self._briefly(launch.ring, self.home, f"stop {script.check_id(command_id)}\n".encode())

    async def logs(self, command_id: str, max_bytes: int = 65536) -> tuple[bytes, bytes]:
        names = (f"{script.check_id(command_id)}.{stream}" for stream in ("stdout", "stderr"))
        stdout, stderr = [await asyncio.to_thread(_last, self.home / "disk" / "logs", name, max_bytes) for name in names]
        return stdout, stderr

    async def write(self, path: str, data: bytes) -> None:
        identity = self._places.identity
        try:
            await asyncio.to_thread(
                write_beneath, self.home / "disk" / "out", _below_out(path), data, (identity.uid, identity.gid)
            )
        except OSError as error:
            raise SandboxError(f"{path} in {self.name} can't be written: {error.strerror}") from error

    async def add_file(self, path: str, data: bytes) -> None:
        await asyncio.to_thread(self._add_file, script.check_file(path), data)

    def _add_file(self, below: str, data: bytes) -> None:
        """Nothing inside can write there: the directory is bound read-only."""
        target = self.home / "run" / below
        partial = self.home / "run" / "inbox" / f".{os.getpid()}.{os.urandom(4).hex()}"
        try:
            partial.write_bytes(data)
            partial.chmod(0o444)
            for folder in reversed(list(target.relative_to(self.home / "run").parents)[:-1]):
                (self.home / "run" / folder).mkdir(mode=0o755, exist_ok=True)
            partial.rename(target)
        except FileNotFoundError:
            raise self._lost() from None
        if not launch.alive(self.home):
            raise self._lost()

    async def read(self, path: str, max_bytes: int) -> bytes | None:
        data = await asyncio.to_thread(_slice, self.home / "disk" / "out", _below_out(path), 0, max_bytes + 1)
        if data is not None and len(data) > max_bytes:
            raise SandboxError(f"{path} in {self.name} is larger than {max_bytes} bytes")
        return data

    async def tail(self, path: str, offset: int, max_bytes: int) -> bytes:
        return await asyncio.to_thread(_slice, self.home / "disk" / "out", _below_out(path), offset, max_bytes) or b""

    async def collect(self, dest: Path) -> Collected:
        try:
            return await asyncio.to_thread(bundle.pack, self.home / "disk" / "out", self.home / "disk" / "logs", dest)
        except OSError as error:
            if not self.home.exists():
                raise self._lost() from error
            raise SandboxError(f"the output of {self.name} can't be packed as {dest}: {error.strerror or error}") from error

    @asynccontextmanager
    async def forward(self, port: int, at: int | None = None) -> AsyncGenerator[Address]:
        inmate = launch.inmate(self.home)
        if inmate is None or not await self.alive():
            raise self._lost()
        async with ports.forwarded(inmate, self.name, port, at) as address:
            yield address

    async def alive(self) -> bool:
        return await self._briefly(launch.alive, self.home)

    async def limits_hit(self) -> Sequence[Limit]:
        return await self._briefly(self._limits_hit)

    def _limits_hit(self) -> list[Limit]:
        over = (self.home / "over-disk").exists() or disk.full(self.home / "disk")
        return [*limits.hit(limits.recorded(self.home / "groups")), *([Limit.DISK] if over else [])]

    async def terminate(self) -> None:
        await asyncio.to_thread(self._terminate)
        if self._release is not None:
            await self._release(self.name)

    def _terminate(self) -> None:
        launch.kill(self.home)
        disk.unmount(self.home / "disk")  # before its control group, which counts what lies in it
        limits.remove(limits.recorded(self.home / "groups"))
        with suppress(FileNotFoundError):
            (self.home / "disk" / "k" / "work").chmod(0o700)
        remove_tree(self.home)
        if self._places.scratch_is_memory:
            with suppress(OSError):  # others are still there, or it is gone
                self._places.scratch.rmdir()


def _below_out(path: str) -> list[str]:
    parts = path.removeprefix(f"{OUTPUT_DIR}/").split("/")
    if not path.startswith(f"{OUTPUT_DIR}/") or {"", ".", ".."} & set(parts):
        raise SandboxError(f"{path!r} is no plain path below {OUTPUT_DIR}")
    return parts


def _slice(root: Path, parts: Sequence[str], offset: int, max_bytes: int) -> bytes | None:
    fd = open_beneath(root, parts)
    if fd is None:
        return None
    try:
        return read_at(fd, offset, max_bytes)
    finally:
        os.close(fd)


def _last(root: Path, name: str, max_bytes: int) -> bytes:
    fd = open_beneath(root, [name])
    if fd is None:
        return b""
    try:
        return read_at(fd, max(0, os.fstat(fd).st_size - max_bytes), max_bytes)
    finally:
        os.close(fd)


def _uptime_s() -> float:
    return float(smallfiles.read("/proc/uptime").split()[0])
