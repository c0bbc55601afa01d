"""One sandbox, as the Modal SDK knows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import modal
import modal.exception as sdk

from eval_pipeline.errors import SandboxError
from eval_pipeline.sandbox.modal_calls import CALL_TIMEOUT_S, GONE, lost, translated, within

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Done:
    code: int
    stdout: bytes
    stderr: bytes

    @property
    def complaint(self) -> str:
        return self.stderr[-500:].decode(errors="replace").strip() or f"exit {self.code}"


class Machine:
    def __init__(self, name: str, sandbox: modal.Sandbox) -> None:
        self.name = name
        self._sandbox = sandbox

    @property
    def id(self) -> str:
        return self._sandbox.object_id

    async def tags(self) -> dict[str, str]:
        with translated(self.name):
            return await within(self._sandbox.get_tags.aio())

    async def ended(self) -> bool:
        with translated(self.name):
            try:
                return await within(self._sandbox.poll.aio()) is not None
            except GONE:
                return True

    async def was_told_to_end(self) -> bool:
        """Of one that has ended: whether `terminate` ended it. Its exit code can't tell."""
        with translated(self.name):
            try:
                await within(self._sandbox.wait.aio())
            except sdk.SandboxTerminatedError:
                return True
            except sdk.SandboxTimeoutError:
                return False
        return False

    async def terminate(self) -> None:
        """Returns once Modal says that it has ended."""
        with translated(self.name):
            try:
                await within(self._sandbox.terminate.aio(wait=True))
            except GONE:
                return

    async def detach(self) -> None:
        await within(self._sandbox.detach.aio())

    async def exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        secrets: Mapping[str, str] | None = None,
        named: modal.Secret | None = None,
        stdin: bytes = b"",
        to: IO[bytes] | None = None,
        max_bytes: int | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Done:
        """Run to its end. named: a Secret with the same content, used instead of `secrets` where it is there. to: where stdout goes instead of into the answer, `max_bytes` at most. Raises SandboxLost."""
        given: list[modal.Secret] = []
        if secrets:
            with translated(self.name):
                given = [(named and await found_secret(named)) or modal.Secret.from_dict(dict(secrets))]
        with translated(self.name), lost(self.name):
            async with asyncio.timeout(timeout_s + 10):
                process = await self._sandbox.exec.aio(
                    *argv,
                    text=False,
                    timeout=int(timeout_s),
                    env=dict(env),
                    secrets=given,
                )
                feeding = asyncio.ensure_future(_feed(process.stdin, stdin))
                try:
                    out, err = await asyncio.gather(_drain(process.stdout, to, max_bytes), process.stderr.read.aio())
                    code = await process.wait.aio()
                    await feeding
                finally:
                    feeding.cancel()
        if code == -1:
            raise SandboxError(f"{self.name} did not answer within {timeout_s:.0f} s")
        return Done(code, out, err)

    async def talk(self, argv: Sequence[str], *, env: Mapping[str, str]) -> Talk:
        """Begin a command to speak with; it may last as long as the sandbox. Raises SandboxLost."""
        with translated(self.name), lost(self.name):
            return Talk(self.name, await within(self._sandbox.exec.aio(*argv, text=False, env=dict(env), secrets=[])))

    async def read(self, path: str) -> bytes | None:
        """A file, whole; None when there is none. Raises SandboxLost when the sandbox can't be reached."""
        with translated(self.name), lost(self.name):
            try:
                return await within(self._sandbox.filesystem.read_bytes.aio(path))
            except sdk.SandboxFilesystemNotFoundError:
                return None

    async def snapshot(self, ttl_s: int, timeout_s: int) -> str:
        """The id of an image of its file system."""
        with translated(self.name), lost(self.name):
            image = await within(self._sandbox.snapshot_filesystem.aio(timeout=timeout_s, ttl=ttl_s), timeout_s + 10)
        return image.object_id


class Talk:
    """A command that runs, its input and its output."""

    def __init__(self, name: str, process: Any) -> None:
        self._name = name
        self._process = process
        self._turn = asyncio.Lock()

    async def say(self, data: bytes) -> None:
        """Raises SandboxError when it listens no more."""
        with translated(self._name), lost(self._name):
            async with self._turn:
                try:
                    self._process.stdin.write(data)
                    await self._process.stdin.drain.aio()
                except ValueError as error:
                    raise SandboxError(f"{self._name}: the command listens no more: {error}") from error

    async def heard(self) -> AsyncIterator[bytes]:
        """What it prints, as it comes, to its end."""
        with translated(self._name), lost(self._name):
            async for chunk in self._process.stdout:
                yield chunk

    async def end(self) -> None:
        """Its input ends; of one that has ended nothing is left to say."""
        try:
            async with self._turn:
                self._process.stdin.write_eof()
                await self._process.stdin.drain.aio()
        except (sdk.Error, OSError, ValueError):
            return


async def found_secret(secret: modal.Secret) -> modal.Secret | None:
    """None when there is none of its name, or it lacks a key."""
    try:
        return await within(secret.hydrate.aio())
    except (sdk.NotFoundError, sdk.ConflictError, sdk.InvalidError):
        return None


async def _feed(stdin: Any, data: bytes) -> None:
    try:
        for start in range(0, len(data), _CHUNK):
            stdin.write(data[start : start + _CHUNK])
            await stdin.drain.aio()
        stdin.write_eof()
        await stdin.drain.aio()
    except (sdk.ConflictError, ValueError):
        return  # it ended before it had read all; its exit code tells


async def _drain(stdout: Any, to: IO[bytes] | None, max_bytes: int | None) -> bytes:
    if to is None:
        return await stdout.read.aio()
    left = max_bytes
    async for chunk in stdout:
        if left is not None and len(chunk) > left:
            raise SandboxError(f"more than {max_bytes} bytes came")
        left = None if left is None else left - len(chunk)
        await asyncio.to_thread(to.write, chunk)
    return b""
