"""A port inside a Modal sandbox, led to this machine's loopback: one command in the sandbox a connection, and no tunnel anybody could find."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from eval_pipeline.errors import SandboxError
from eval_pipeline.sandbox import modal_scripts as scripts
from eval_pipeline.sandbox.port_relay import LENGTH, STILL_HERE

if TYPE_CHECKING:
    from eval_pipeline.sandbox.modal_machine import Machine, Talk

_CHUNK = 1 << 18
_HERE_EVERY_S = 20.0
_HANG_UP_S = 5.0
_SOURCE = Path(__file__).resolve().with_name("port_relay.py")

# As the user. Whether a port of this sandbox can be led anywhere
CAN_RELAY = f"PATH={scripts.PATH}; command -v python3 >/dev/null"


async def line(machine: Machine, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until both sides have said all, or one of them is gone."""
    argv = (*scripts.AS_USER, "python3", "-I", "-c", _SOURCE.read_text(), str(port))
    try:
        talk = await machine.talk(argv, env=scripts.ENVIRONMENT)
        try:
            async with asyncio.TaskGroup() as group:
                here = group.create_task(_still_here(talk))
                both = [group.create_task(_up(reader, talk)), group.create_task(_down(talk, writer))]
                await asyncio.wait(both)
                here.cancel()
        finally:
            async with asyncio.timeout(_HANG_UP_S):
                await talk.end()
    except* (OSError, SandboxError):  # nobody listens there (yet), or somebody went away: the caller sees his connection cut
        writer.transport.abort()


async def _still_here(talk: Talk) -> None:
    while True:
        await asyncio.sleep(_HERE_EVERY_S)
        await talk.say(LENGTH.pack(STILL_HERE))


async def _up(reader: asyncio.StreamReader, talk: Talk) -> None:
    while chunk := await reader.read(_CHUNK):
        await talk.say(LENGTH.pack(len(chunk)) + chunk)
    await talk.say(LENGTH.pack(0))


async def _down(talk: Talk, writer: asyncio.StreamWriter) -> None:
    async for chunk in _frames(talk):
        writer.write(chunk)
        await writer.drain()
    writer.write_eof()


async def _frames(talk: Talk) -> AsyncIterator[bytes]:
    """Their contents, in whatever pieces. Raises ConnectionError when the relay ends without a last word."""
    held = bytearray()
    async for chunk in talk.heard():
        held += chunk
        while len(held) >= LENGTH.size:
            (size,) = LENGTH.unpack_from(held)
            if size == 0:
                return
            if len(held) < LENGTH.size + size:
                break
            yield bytes(held[LENGTH.size : LENGTH.size + size])
            del held[: LENGTH.size + size]
    raise ConnectionError("the connection inside is gone")
