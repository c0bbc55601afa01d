"""The allowlist proxy of one sandbox.

The name is compared with the list, resolved once, and only an address resolved then is dialled. What is refused is written down
before the client hears of it. What travels inside an allowed TLS connection is not seen: domain fronting is not stopped.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import h11

from eval_pipeline.gateway.addresses import Endpoint, is_public, resolve
from eval_pipeline.gateway.evidence import EgressEvent, EvidenceLog, Verdict
from eval_pipeline.gateway.request import HEAD_TIMEOUT_S, Client, Plain, Refused, asked
from eval_pipeline.gateway.tunnel import Greeting

MAX_CONNECTIONS = 256  # of one sandbox at once; a further one waits to be accepted
DIAL_TIMEOUT_S = 10.0
HALF_CLOSED_TIMEOUT_S = 600.0
REFUSAL_PAUSE_S = 1.0  # before an answer to one that has been refused MAX_EVENTS times
_CHUNK = 65536
_ACCEPT_PAUSE_S = 0.1
_log = logging.getLogger("gateway")

Resolve = Callable[[Endpoint], Awaitable[list[str]]]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """allowed: the exact endpoints. local: those of them that may have a private address. served: ours, by where they listen."""

    allowed: frozenset[Endpoint]
    local: frozenset[Endpoint] = frozenset()
    served: Mapping[Endpoint, Endpoint] = field(default_factory=dict[Endpoint, Endpoint])


@dataclass
class Room:
    """How many connections all proxies of a process may hold at once: each takes two descriptors."""

    left: int


@dataclass
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    begin: float = field(default_factory=time.monotonic)
    endpoint: Endpoint | None = None
    answered: bool = False
    up: int = 0
    down: int = 0

    def event(self, verdict: Verdict, error: str | None) -> EgressEvent:
        host, port = self.endpoint or (None, None)
        took, counts = round(time.monotonic() - self.begin, 3), {"bytes_up": self.up, "bytes_down": self.down}
        return EgressEvent(at=self.at, verdict=verdict, host=host, port=port, error=error, duration_s=took, **counts)


class Proxy:
    """Serves `listener` until `close`, which ends every connection."""

    def __init__(
        self, listener: socket.socket, policy: Policy, evidence: EvidenceLog, room: Room, find: Resolve = resolve
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._policy = policy
        self._evidence = evidence
        self._room = room
        self._resolve = find
        self._free = asyncio.Semaphore(MAX_CONNECTIONS)
        self._accepting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    async def close(self) -> None:
        tasks = [*self._tasks, *([self._accepting] if self._accepting is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()
        self._evidence.save()

    def save(self) -> None:
        self._evidence.save()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._free.acquire()
            try:
                accepted, _ = await loop.sock_accept(self._listener)
            except OSError as error:  # no descriptor is left, or the client is gone again
                self._free.release()
                _log.warning("a connection could not be accepted: %s", error)
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            task = loop.create_task(self._serve_one(accepted))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._free.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a connection failed", exc_info=error)

    async def _serve_one(self, accepted: socket.socket) -> None:
        self._room.left -= 1
        try:
            reader = asyncio.StreamReader(limit=_CHUNK)
            protocol = asyncio.StreamReaderProtocol(reader)
            loop = asyncio.get_running_loop()
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, accepted)
            await self._serve(_Connection(reader, asyncio.StreamWriter(transport, protocol, reader, loop)))
        finally:
            self._room.left += 1

    async def _serve(self, connection: _Connection) -> None:
        answer = b""
        try:
            await self._handle(connection)
            self._evidence.append(connection.event(Verdict.ALLOWED, None))
        except Refused as refused:
            connection.endpoint = connection.endpoint or refused.endpoint
            self._evidence.append(connection.event(refused.verdict, refused.error))
            answer = b"" if connection.answered else refused.answer()
        except OSError as broken:
            self._evidence.append(connection.event(Verdict.ALLOWED, f"broke: {broken}"))
        except asyncio.CancelledError:
            self._evidence.append(connection.event(Verdict.ALLOWED, "closed by the gateway"))
            raise
        finally:
            await _end(connection.writer, answer, REFUSAL_PAUSE_S if self._evidence.is_full(Verdict.DENIED) else 0)

    async def _handle(self, connection: _Connection) -> None:
        if self._room.left < 0:
            raise Refused(503, "the host's proxy has no room for another connection", Verdict.DIAL_FAILED)
        client = Client(connection.reader)
        wanted = asked(await client.request())
        connection.endpoint = wanted.endpoint
        if wanted.endpoint not in self._policy.allowed:
            raise Refused(403, f"{wanted.endpoint[0]}:{wanted.endpoint[1]} is not in the egress list")
        reader, writer = await self._dial(wanted.endpoint)
        try:
            if wanted.plain is None:
                connection.answered = True
                connection.writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                sending = self._tunnel(client, connection, writer)
            else:
                sending = self._forward(client, wanted.plain, connection, writer)
            await _relay(sending, _down(connection, reader))
        finally:
            writer.close()

    async def _dial(self, endpoint: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if endpoint in self._policy.served:
            return await asyncio.open_connection(*self._policy.served[endpoint])
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                addresses = await self._resolve(endpoint)
        except (OSError, UnicodeError, TimeoutError) as error:
            raise Refused(502, f"resolving failed: {str(error) or 'timed out'}", Verdict.DIAL_FAILED) from error
        if endpoint not in self._policy.local and not all(map(is_public, addresses)):
            raise Refused(403, f"{endpoint[0]} has the private address {', '.join(addresses)}")
        failure = "no address"
        for address in addresses:
            try:
                async with asyncio.timeout(DIAL_TIMEOUT_S):
                    return await asyncio.open_connection(address, endpoint[1])
            except (OSError, TimeoutError) as error:
                failure = f"dialling {address} failed: {str(error) or 'timed out'}"
        raise Refused(502, failure, Verdict.DIAL_FAILED)

    async def _tunnel(self, client: Client, connection: _Connection, writer: asyncio.StreamWriter) -> None:
        assert connection.endpoint is not None
        greeting, held, data = Greeting(connection.endpoint), b"", client.rest()
        while data or (data := await connection.reader.read(_CHUNK)):
            held += data
            if greeting.decided(data):
                break
            data = b""
        while held or (held := await connection.reader.read(_CHUNK)):
            connection.up += len(held)
            writer.write(held)
            await writer.drain()
            held = b""
        writer.write_eof()

    async def _forward(self, client: Client, plain: Plain, connection: _Connection, writer: asyncio.StreamWriter) -> None:
        origin = h11.Connection(our_role=h11.CLIENT)
        await _send(connection, writer, origin.send(plain.head))
        async for data in client.body():
            await _send(connection, writer, origin.send(h11.Data(data=data)))
        await _send(connection, writer, origin.send(h11.EndOfMessage()))
        if client.rest() or await connection.reader.read(_CHUNK):
            self._evidence.append(connection.event(Verdict.DENIED, "a second request on a connection: not passed on"))
            while await connection.reader.read(_CHUNK):
                pass


async def _send(connection: _Connection, writer: asyncio.StreamWriter, data: bytes | None) -> None:
    if data:
        connection.up += len(data)
        writer.write(data)
        await writer.drain()


async def _down(connection: _Connection, reader: asyncio.StreamReader) -> None:
    while data := await reader.read(_CHUNK):
        connection.answered = True
        connection.down += len(data)
        connection.writer.write(data)
        await connection.writer.drain()
    connection.writer.write_eof()


async def _end(writer: asyncio.StreamWriter, answer: bytes, pause_s: float) -> None:
    try:
        if answer:
            await asyncio.sleep(pause_s)
            writer.write(answer)
            async with asyncio.timeout(HEAD_TIMEOUT_S):
                await writer.drain()
    except (OSError, TimeoutError):
        return  # a client that doesn't read its refusal gets none
    finally:
        writer.close()


async def _relay(*directions: Coroutine[Any, Any, None]) -> None:
    """Both directions, each until its end of file; the other one may go on for HALF_CLOSED_TIMEOUT_S. Raises what either raised."""
    tasks = [asyncio.create_task(direction) for direction in directions]
    try:
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if pending and all(task.exception() is None for task in done):
            done, pending = await asyncio.wait(tasks, timeout=HALF_CLOSED_TIMEOUT_S, return_when=asyncio.ALL_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
