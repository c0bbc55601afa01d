"""A handle on one Modal sandbox. What it knows of a command is what the runner inside wrote."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

from eval_pipeline.errors import SandboxError, SandboxLost
from eval_pipeline.sandbox import modal_bundle as bundle
from eval_pipeline.sandbox import modal_engine, modal_ports
from eval_pipeline.sandbox import modal_scripts as scripts
from eval_pipeline.sandbox.base import OUTPUT_DIR, RUN_DIR, Address, Collected, CommandState, Limit, Phase
from eval_pipeline.sandbox.leading import led_here
from eval_pipeline.sandbox.local import script
from eval_pipeline.sandbox.modal_scripts import AS_USER, ROOT_ENVIRONMENT

if TYPE_CHECKING:
    import modal

    from eval_pipeline.sandbox.modal_machine import Done, Machine

COLLECT_TIMEOUT_S = 900.0
_NO_SUCH_FILE = 4
_NO_SUCH_FOLDER = 5
_SIGNALS = 128
_PAUSES_S = (0.2, 1.0, 3.0)
T = TypeVar("T")


class ModalSandbox:
    """with_secrets: the values are held here alone, and travel with the one command that is given them; unless the Secret that `named`
    makes is there, which holds the same.
    """

    def __init__(
        self,
        machine: Machine,
        secrets: Mapping[str, str],
        on_end: Callable[[str], None] = lambda _: None,
        named: Callable[[], modal.Secret] | None = None,
    ) -> None:
        self.machine = machine
        self._secrets = dict(secrets)
        self._named = named
        self._on_end = on_end
        self._exits: dict[str, CommandState] = {}
        self._ahead_s: float | None = None
        self._gone = False

    @property
    def name(self) -> str:
        return self.machine.name

    async def patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """For what can be said twice: a service that stutters must not cost an attempt. Raises SandboxLost at once when it has ended."""
        for pause_s in _PAUSES_S:
            try:
                return await work()
            except SandboxError as error:
                if self._gone or await self._ended():
                    raise self._lost() from error
                await asyncio.sleep(pause_s)
        return await work()

    async def _ended(self) -> bool:
        with suppress(SandboxError):
            self._gone = self._gone or await self.machine.ended()
        return self._gone

    def _lost(self) -> SandboxLost:
        return SandboxLost(f"the sandbox {self.name} is gone")

    async def as_root(self, text: str, *words: str, stdin: bytes = b"", secrets: Mapping[str, str] | None = None) -> Done:
        """Run one of our scripts. Only such as can be run again."""
        if self._gone:
            raise self._lost()
        argv = ("sh", "-c", text, *words)
        named = self._named if secrets else None
        return await self.patiently(
            lambda: self.machine.exec(argv, env=ROOT_ENVIRONMENT, stdin=stdin, secrets=secrets, named=named and named())
        )

    async def _as_user(self, text: str, *words: str, stdin: bytes = b"") -> Done:
        if self._gone:
            raise self._lost()
        argv = (*AS_USER, "sh", "-c", text, *words)
        return await self.patiently(lambda: self.machine.exec(argv, env=ROOT_ENVIRONMENT, stdin=stdin))

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
        script.check_id(command_id)
        run = scripts.RUN_WITH_ENGINE if with_engine else scripts.RUN_AS_USER
        given = {**scripts.ENVIRONMENT, **(modal_engine.ENVIRONMENT if with_engine else {}), **env}
        content = script.command_script(argv, given, workdir, False, run=run)
        done = await self.as_root(
            scripts.START, command_id, str(len(content)), stdin=content, secrets=self._secrets if with_secrets else None
        )
        if done.code != 0:
            raise SandboxError(f"{command_id} could not be started in {self.name}: {done.complaint}")

    async def state(self, command_id: str) -> CommandState:
        script.check_id(command_id)
        if (known := self._exits.get(command_id)) is not None:
            return known
        if self._gone:
            return CommandState(Phase.LOST)
        try:
            journal = await self.patiently(lambda: self.machine.read(f"{RUN_DIR}/logs/{command_id}.journal"))
        except SandboxLost:
            return CommandState(Phase.LOST)
        record = scripts.read_journal(journal or b"")
        if record.started is None:
            return CommandState(Phase.ABSENT)
        if record.exited is not None:
            ended = CommandState(Phase.EXITED, record.code, max(0.0, record.exited - record.started))
            return self._exits.setdefault(command_id, ended)
        return CommandState(Phase.RUNNING, None, max(0.0, await self._uptime_s() - record.started))

    async def _uptime_s(self) -> float:
        """Asked once: the two clocks run at the same pace."""
        if self._ahead_s is None:
            told = await self.patiently(lambda: self.machine.read("/proc/uptime"))
            if told is None:
                raise SandboxError(f"{self.name} has no /proc/uptime")
            self._ahead_s = float(told.split()[0]) - time.monotonic()
        return time.monotonic() + self._ahead_s

    async def stop(self, command_id: str) -> None:
        with suppress(SandboxLost):
            await self.as_root(scripts.STOP, script.check_id(command_id))

    async def logs(self, command_id: str, max_bytes: int = 65536) -> tuple[bytes, bytes]:
        done = await self.as_root(scripts.LOGS, script.check_id(command_id), str(max_bytes))
        return done.stdout, done.stderr

    async def write(self, path: str, data: bytes) -> None:
        done = await self._as_user(scripts.FILES, "write", _below_out(path), str(len(data)), stdin=data)
        if done.code != 0:
            raise SandboxError(f"{path} in {self.name} can't be written: {done.complaint}")

    async def add_file(self, path: str, data: bytes) -> None:
        done = await self.as_root(scripts.ADD_FILE, script.check_file(path), str(len(data)), stdin=data)
        if done.code != 0:
            raise SandboxError(f"{path} can't be put into {self.name}: {done.complaint}")

    async def read(self, path: str, max_bytes: int) -> bytes | None:
        data = await self._content(path, 0, max_bytes + 1)
        if data is not None and len(data) > max_bytes:
            raise SandboxError(f"{path} in {self.name} is larger than {max_bytes} bytes")
        return data

    async def tail(self, path: str, offset: int, max_bytes: int) -> bytes:
        return await self._content(path, offset, max_bytes) or b""

    async def _content(self, path: str, offset: int, max_bytes: int) -> bytes | None:
        """None as well when who reads is ended meanwhile: by a program of the same user, or for want of memory."""
        done = await self._as_user(scripts.FILES, "read", _below_out(path), str(max_bytes), str(offset))
        if done.code == _NO_SUCH_FILE or done.code > _SIGNALS:
            return None
        if done.code != 0:
            raise SandboxError(f"{path} in {self.name} can't be read: {done.complaint}")
        return done.stdout

    async def collect(self, dest: Path) -> Collected:
        """A stopped program can have itself woken, to end or deceive what reads: where that goes wrong, what is left of them ends first."""
        try:
            return await self._collect(dest, "STOP")
        except SandboxLost:
            raise
        except SandboxError:
            return await self._collect(dest, "KILL")
        finally:
            with suppress(SandboxError):
                await self._as_user(scripts.GO_ON)

    async def _collect(self, dest: Path, signal: str) -> Collected:
        words = (scripts.LIST, str(2 * bundle.MAX_ENTRIES + 2), str(bundle.MAX_DEPTH), signal)
        listing = await self.as_root(scripts.STILL_LIST, *words)
        if listing.code not in (0, _NO_SUCH_FOLDER):
            raise SandboxError(f"the output of {self.name} can't be listed: {listing.complaint}")
        choice = await asyncio.to_thread(bundle.choose, listing.stdout)
        if listing.code != 0:
            choice.skip(b"./", "its folder is gone")
        logs = await self.as_root(scripts.LOG_NAMES)
        # Beside the bundle: elsewhere the disk may be memory
        near = dest.parent
        with tempfile.TemporaryFile(dir=near) as out_tar, tempfile.TemporaryFile(dir=near) as log_tar:
            for target, prefix, folder, names in (
                (out_tar, AS_USER, OUTPUT_DIR, choice.names),
                (log_tar, (), f"{RUN_DIR}/logs", logs.stdout),
            ):
                await self._fetch(target, (*prefix, "sh", "-c", scripts.PACK, folder), names)
            return await asyncio.to_thread(bundle.write, dest, choice, out_tar, log_tar)

    async def _fetch(self, target: IO[bytes], argv: Sequence[str], names: bytes) -> None:
        """A file that goes or shrinks meanwhile is no fault: tar says so with 1 or 2, and the bundle names what is missing."""

        async def once() -> None:
            target.seek(0)
            target.truncate()
            done = await self.machine.exec(
                argv,
                env=ROOT_ENVIRONMENT,
                stdin=names,
                to=target,
                max_bytes=2 * bundle.MAX_BYTES,
                timeout_s=COLLECT_TIMEOUT_S,
            )
            if done.code > 2:
                raise SandboxError(f"the output of {self.name} can't be fetched: {done.complaint}")

        if names:
            await self.patiently(once)

    @asynccontextmanager
    async def forward(self, port: int, at: int | None = None) -> AsyncGenerator[Address]:
        if (await self._as_user(modal_ports.CAN_RELAY)).code != 0:
            raise SandboxError(f"port {port} of {self.name} can't be led here", hint="that needs a python3 in the app's image")
        async with led_here(lambda reader, writer: modal_ports.line(self.machine, port, reader, writer), at) as address:
            yield address

    async def limits_hit(self) -> Sequence[Limit]:
        return ()

    async def alive(self) -> bool:
        return not self._gone and not await self.patiently(self.machine.ended)

    async def terminate(self) -> None:
        if not self._gone:
            for pause_s in (*_PAUSES_S, None):
                try:
                    await self.machine.terminate()
                    if await self.machine.ended():
                        break
                except SandboxError:
                    if pause_s is None:
                        raise
                if pause_s is None:
                    raise SandboxError(f"the sandbox {self.name} was told to end and still runs")
                await asyncio.sleep(pause_s)
        self._gone = True
        self._on_end(self.name)
        with suppress(SandboxError):
            await self.machine.detach()


def _below_out(path: str) -> str:
    below = path.removeprefix(f"{OUTPUT_DIR}/")
    if not path.startswith(f"{OUTPUT_DIR}/") or {"", ".", ".."} & set(below.split("/")):
        raise SandboxError(f"{path!r} is no plain path below {OUTPUT_DIR}")
    return below
