"""A port of this machine's loopback that leads somewhere for as long as somebody asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from eval_pipeline.errors import SpecError
from eval_pipeline.sandbox.base import Address

HOST = "127.0.0.1"
Line = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@asynccontextmanager
async def led_here(line: Line, at: int | None) -> AsyncGenerator[Address]:
    """Each connection to the address is handed to `line`; all of them end with the context. Raises SpecError for a port that is taken."""
    lines: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(line(reader, writer))
        lines.add(task)
        task.add_done_callback(lambda ended: _hang_up(ended, writer))
        task.add_done_callback(lines.discard)

    server = await _listen(accept, at)
    try:
        yield Address(HOST, server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in lines:
            task.cancel()
        await asyncio.gather(*lines, return_exceptions=True)


def _hang_up(line: asyncio.Task[None], writer: asyncio.StreamWriter) -> None:
    """A cancelled one may never have begun."""
    if line.cancelled():
        writer.transport.abort()
    writer.close()


async def _listen(accept: Callable[[asyncio.StreamReader, asyncio.StreamWriter], None], at: int | None) -> asyncio.Server:
    try:
        return await asyncio.start_server(accept, HOST, at or 0)
    except OSError as error:
        raise SpecError(
            f"port {at} can't be used on this machine: {error.strerror}", hint="name another one, or none: any free one is taken"
        ) from error
