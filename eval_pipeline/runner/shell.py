"""A shell in a sandbox, at a terminal or fed from a pipe. The sandbox's image must have a python3."""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import signal
import struct
import sys
import termios
import threading
import tty
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import eval_pipeline.sandbox
from eval_pipeline.environment.lifecycle import last_words
from eval_pipeline.errors import SandboxError
from eval_pipeline.sandbox.base import Address, Phase, Sandbox

SHELL = ("/bin/sh",)
_SERVER = Path(eval_pipeline.sandbox.__file__).with_name("shell_server.py")
_CHUNK = 65536
_START_TIMEOUT_S = 20.0
_POLL_S = 0.02
_STDIN, STDOUT, STDERR = 0, 1, 2

_Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, kw_only=True)
class ShellEnd:
    """exit_code: 128+n for signal n; None when the sandbox, or the shell's server in it, went away first."""

    exit_code: int | None


async def run_shell(
    sandbox: Sandbox, *, env: Mapping[str, str], workdir: str, command: Sequence[str] = SHELL, output: int = STDOUT
) -> ShellEnd:
    """Our standard input and error are the shell's until it ends, and `output` is what it prints to.

    It has a terminal where we have one on both sides. Raises SandboxError when no shell can be started.
    """
    at_terminal = os.isatty(_STDIN) and output == STDOUT and os.isatty(STDOUT)
    token, command_id = secrets.token_hex(16), f"shell.{secrets.token_hex(4)}"
    argv = ["python3", "-c", _SERVER.read_text(), token, "tty" if at_terminal else "pipe", *command]
    terminal = {"TERM": os.environ.get("TERM", "dumb")} if at_terminal else {}
    await sandbox.start(command_id, argv, env={**env, **terminal}, workdir=workdir)
    try:
        port = await _port(sandbox, command_id)
        async with sandbox.forward(port) as address, _lines(address, token, "dc" if at_terminal else "dec") as lines:
            return await (_at_terminal(lines) if at_terminal else _on_pipes(lines, output))
    finally:
        await sandbox.stop(command_id)


async def _port(sandbox: Sandbox, command_id: str) -> int:
    deadline = asyncio.get_running_loop().time() + _START_TIMEOUT_S
    while (await sandbox.state(command_id)).phase is Phase.RUNNING and asyncio.get_running_loop().time() < deadline:
        said, _ = await sandbox.logs(command_id)
        if said.endswith(b"\n"):
            return int(said)
        await asyncio.sleep(_POLL_S)
    raise SandboxError(
        f"no shell could be started in {sandbox.name}: {await last_words(sandbox, command_id)}",
        hint="a shell needs a python3 in the app's image",
    )


@asynccontextmanager
async def _lines(address: Address, token: str, letters: str) -> AsyncGenerator[dict[str, _Line]]:
    async with AsyncExitStack() as stack:
        lines: dict[str, _Line] = {}
        for letter in letters:
            reader, writer = await asyncio.open_connection(address.host, address.port)
            stack.callback(writer.close)
            writer.write(f"{token}{letter}".encode())
            lines[letter] = reader, writer
        yield lines


async def _on_pipes(lines: dict[str, _Line], output: int) -> ShellEnd:
    outputs = [_copy(lines["d"][0], output), _copy(lines["e"][0], STDERR)]
    return await _until_end(lines, outputs)


async def _at_terminal(lines: dict[str, _Line]) -> ShellEnd:
    loop = asyncio.get_running_loop()
    tell_size = lambda: lines["c"][1].write(_window_size())  # noqa: E731
    loop.add_signal_handler(signal.SIGWINCH, tell_size)
    tell_size()
    try:
        with _raw_terminal():
            return await _until_end(lines, [_copy(lines["d"][0], STDOUT)])
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)


async def _until_end(lines: dict[str, _Line], outputs: Sequence[Coroutine[Any, Any, None]]) -> ShellEnd:
    feeding = asyncio.ensure_future(_feed(lines["d"][1]))
    try:
        await asyncio.gather(*outputs)
        said = await lines["c"][0].read(16)
    except ConnectionError:
        said = b""
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
    return ShellEnd(exit_code=int(said) if said else None)


async def _copy(source: asyncio.StreamReader, target: int) -> None:
    while chunk := await source.read(_CHUNK):
        while chunk:
            chunk = chunk[os.write(target, chunk) :]


async def _feed(sink: asyncio.StreamWriter) -> None:
    queue: asyncio.Queue[bytes] = asyncio.Queue()
    _read_stdin(asyncio.get_running_loop(), queue.put_nowait)
    with suppress(ConnectionError):  # the shell ended with input left
        while chunk := await queue.get():
            sink.write(chunk)
            await sink.drain()
        sink.write_eof()


def _read_stdin(loop: asyncio.AbstractEventLoop, take: Callable[[bytes], None]) -> None:
    """In a thread: it may be a file, a pipe or a terminal, and nothing can end a read of it that waits."""

    def read() -> None:
        with suppress(RuntimeError):  # the loop is over, and so is the shell
            while chunk := os.read(_STDIN, _CHUNK):
                loop.call_soon_threadsafe(take, chunk)
            loop.call_soon_threadsafe(take, b"")

    threading.Thread(target=read, daemon=True).start()


def _window_size() -> bytes:
    rows, columns, _, _ = struct.unpack("HHHH", fcntl.ioctl(STDOUT, termios.TIOCGWINSZ, b"\0" * 8))
    return f"{rows} {columns}\n".encode()


@contextmanager
def _raw_terminal() -> Generator[None]:
    before = termios.tcgetattr(_STDIN)
    sys.stdout.flush()
    try:
        tty.setraw(_STDIN, termios.TCSADRAIN)  # what was typed ahead stays
        yield
    finally:
        termios.tcsetattr(_STDIN, termios.TCSADRAIN, before)
