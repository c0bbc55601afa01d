"""A port inside a sandbox, reachable on this machine's loopback for as long as somebody asks for it."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from eval_pipeline.errors import SandboxError
from eval_pipeline.sandbox.base import Address
from eval_pipeline.sandbox.leading import led_here
from eval_pipeline.sandbox.local import dialer
from eval_pipeline.sandbox.local.launch import Inmate

_CHUNK = 65536


class _Dialer:
    """The helper process, asked for one connection at a time."""

    def __init__(self, inmate: Inmate, name: str) -> None:
        self._name = name
        self._lock = asyncio.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            fd = theirs.fileno()
            arguments = [str(number) for number in (fd, inmate.pid, inmate.pid_namespace)]
            command = [sys.executable, "-m", "eval_pipeline.sandbox.local.dialer", *arguments]
            self._process = subprocess.Popen(command, pass_fds=[fd], stdin=subprocess.DEVNULL, start_new_session=True)

    async def ready(self) -> None:
        if (said := await asyncio.to_thread(self._socket.recv, dialer.REPLY_BYTES)) != dialer.READY:
            raise SandboxError(f"the ports of {self._name} can't be reached: {said.decode() or 'the helper is gone'}")

    async def connect(self, port: int) -> socket.socket:
        """Raises ConnectionError with the reason: mostly nobody listens."""
        async with self._lock:
            return await asyncio.to_thread(self._connect, port)

    def _connect(self, port: int) -> socket.socket:
        self._socket.send(dialer.PORT.pack(port))
        message, descriptors, _, _ = socket.recv_fds(self._socket, dialer.REPLY_BYTES, 1)
        if not descriptors:
            raise ConnectionError(message.decode() or "the helper is gone")
        return socket.socket(fileno=descriptors[0])

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


@asynccontextmanager
async def forwarded(inmate: Inmate, name: str, port: int, at: int | None) -> AsyncGenerator[Address]:
    """Connections to the address reach 127.0.0.1:`port` of the sandbox; all of them end with the context."""
    helper = _Dialer(inmate, name)
    try:
        await helper.ready()
        async with led_here(lambda reader, writer: _line(helper, port, reader, writer), at) as address:
            yield address
    finally:
        await asyncio.to_thread(helper.close)


async def _line(helper: _Dialer, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        inside_reader, inside_writer = await asyncio.open_connection(sock=await _dial(helper, port))
    except ConnectionError:  # nobody listens there (yet): the caller sees his connection end
        writer.transport.abort()
        return
    try:
        await asyncio.gather(_pump(reader, inside_writer), _pump(inside_reader, writer))
    except asyncio.CancelledError:
        inside_writer.transport.abort()
        raise
    finally:
        inside_writer.close()


async def _dial(helper: _Dialer, port: int) -> socket.socket:
    """Once asked for, a socket comes, whoever still wants it."""
    dialing = asyncio.ensure_future(helper.connect(port))
    try:
        return await asyncio.shield(dialing)
    except asyncio.CancelledError:
        with suppress(ConnectionError):
            (await dialing).close()
        raise


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Until the source ends; what breaks on one side ends the other."""
    try:
        while chunk := await source.read(_CHUNK):
            sink.write(chunk)
            await sink.drain()
        sink.write_eof()
    except OSError:
        sink.transport.abort()
