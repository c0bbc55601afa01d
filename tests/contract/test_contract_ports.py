"""Ports inside a sandbox: led out to whoever asks, for as long as he asks, and to nobody else."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import socket
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

import pytest

from eval_pipeline.errors import SandboxLost, SpecError
from eval_pipeline.sandbox.base import Address, Sandbox, SandboxSpec

if TYPE_CHECKING:
    from conftest import Harness

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
PORT = 8099

# Says how many bytes came, and their digest, once the other side has said all it has to say
SERVER = f"""
import hashlib, socket, threading
def answer(line):
    seen = hashlib.sha256(); n = 0
    while chunk := line.recv(65536):
        seen.update(chunk); n += len(chunk)
    line.sendall(f"{{n}} {{seen.hexdigest()}}".encode()); line.close()
with socket.create_server(("127.0.0.1", {PORT})) as server:
    open("/out/up", "w").close()
    while True:
        threading.Thread(target=answer, args=(server.accept()[0],)).start()
"""


@pytest.fixture
async def sandbox(harness: Harness) -> AsyncGenerator[Sandbox]:
    backend = harness.make("a")
    made = await backend.get_or_create(SandboxSpec(name=f"e-{secrets.token_hex(12)}", installation="a"))
    yield made
    await made.terminate()


async def serve(sandbox: Sandbox) -> None:
    await sandbox.start("server", ["python3", "-c", SERVER], env={}, workdir="/out")
    async with asyncio.timeout(20):
        while await sandbox.read("/out/up", 1) is None:
            await asyncio.sleep(0.02)


async def say(address: Address, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(data)
    writer.write_eof()
    try:
        return await left(reader)
    finally:
        writer.close()


async def left(reader: asyncio.StreamReader) -> bytes:
    """What still comes; nothing from a connection that was cut."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


async def test_what_is_said_on_either_side_arrives_whole(sandbox: Sandbox) -> None:
    await serve(sandbox)
    texts = [secrets.token_bytes(size) for size in (0, 1, 3_000_000)]
    async with asyncio.timeout(30), sandbox.forward(PORT) as address:
        answers = await asyncio.gather(*(say(address, text) for text in texts))
    assert answers == [f"{len(text)} {hashlib.sha256(text).hexdigest()}".encode() for text in texts]


async def test_the_way_in_ends_with_its_context(sandbox: Sandbox) -> None:
    await serve(sandbox)
    async with sandbox.forward(PORT) as address:
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(b"never finished")
        await writer.drain()
    async with asyncio.timeout(10):
        assert await left(reader) == b""  # cut, not answered
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(address.host, address.port)


async def test_a_port_that_nobody_listens_on_yet_is_no_end(sandbox: Sandbox) -> None:
    async with asyncio.timeout(30), sandbox.forward(PORT) as address:
        assert await say(address, b"x") == b""
        await serve(sandbox)
        assert (await say(address, b"x")).startswith(b"1 ")


async def test_it_leads_into_the_sandbox_and_not_to_this_machine(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as ours:
        async with sandbox.forward(ours.getsockname()[1]) as address:
            assert await say(address, b"x") == b""


async def test_a_port_that_is_taken_here_is_the_callers_mistake(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as ours:
        taken = ours.getsockname()[1]
        with pytest.raises(SpecError, match=f"port {taken} can't be used"):
            async with sandbox.forward(PORT, taken):
                raise AssertionError("two servers on one port")


async def test_a_sandbox_that_is_gone_has_no_ports(harness: Harness, sandbox: Sandbox) -> None:
    harness.kill(sandbox)
    async with asyncio.timeout(10):
        while await sandbox.alive():
            await asyncio.sleep(0.02)
    with pytest.raises(SandboxLost):
        async with sandbox.forward(PORT):
            raise AssertionError("forwarded from nowhere")
