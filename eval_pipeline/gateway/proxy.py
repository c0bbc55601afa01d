"""The allowlist proxy of one sandbox: CONNECT, and plain HTTP with an absolute URI.

The name is compared with the list, resolved once, and only an address resolved then is dialled. What travels inside an allowed
TLS connection is not seen: domain fronting is not stopped.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import urlsplit

from eval_pipeline.errors import SpecError
from eval_pipeline.gateway.addresses import Endpoint, is_public, parse_endpoint, resolve
from eval_pipeline.gateway.evidence import EgressEvent, EvidenceLog, Verdict

MAX_HEAD_BYTES = 32768
MAX_CONNECTIONS = 256
HEAD_TIMEOUT_S = 10.0
DIAL_TIMEOUT_S = 10.0
HALF_CLOSED_TIMEOUT_S = 600.0
_HOP_BY_HOP = (b"proxy-", b"connection:", b"keep-alive:", b"host:")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """allowed: the exact endpoints. local: those of them that may have a private address. served: ours, by where they listen."""

    allowed: frozenset[Endpoint]
    local: frozenset[Endpoint] = frozenset()
    served: Mapping[Endpoint, Endpoint] = field(default_factory=dict[Endpoint, Endpoint])


class _Refused(Exception):
    """An answer to the client instead of a connection."""

    def __init__(self, status: str, verdict: Verdict, error: str) -> None:
        super().__init__(error)
        self.status, self.verdict, self.error = status, verdict, error


@dataclass
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    endpoint: Endpoint | None = None
    up: int = 0
    down: int = 0


class Proxy:
    """Serves `listener` until `close`, which ends every connection."""

    def __init__(self, listener: socket.socket, policy: Policy, evidence: EvidenceLog) -> None:
        self._listener = listener
        self._policy = policy
        self._evidence = evidence
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, sock=self._listener, limit=MAX_HEAD_BYTES)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._evidence.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(_Connection(reader, writer)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: _Connection) -> None:
        at, begin = datetime.now(UTC), time.monotonic()
        verdict, error = Verdict.ALLOWED, None
        try:
            await self._handle(connection)
        except _Refused as refused:
            verdict, error = refused.verdict, refused.error
            await _answer(connection.writer, refused.status, error)
        except OSError as broken:
            error = f"broke: {broken}"
        except asyncio.CancelledError:
            error = "closed by the gateway"
            raise
        finally:
            connection.writer.close()
            host, port = connection.endpoint or (None, None)
            took = round(time.monotonic() - begin, 3)
            counts = {"bytes_up": connection.up, "bytes_down": connection.down}
            self._evidence.append(
                EgressEvent(at=at, verdict=verdict, host=host, port=port, error=error, duration_s=took, **counts)
            )

    async def _handle(self, connection: _Connection) -> None:
        if len(self._tasks) > MAX_CONNECTIONS:
            raise _Refused("503 Service Unavailable", Verdict.DENIED, f"more than {MAX_CONNECTIONS} connections at once")
        head = await _read_head(connection.reader)
        endpoint, forwarded = parse_head(head)
        connection.endpoint = endpoint
        if endpoint not in self._policy.allowed:
            raise _Refused("403 Forbidden", Verdict.DENIED, f"{endpoint[0]}:{endpoint[1]} is not in the egress list")
        reader, writer = await self._dial(endpoint)
        try:
            if forwarded is None:
                connection.writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                writer.write(forwarded)
                connection.up += len(forwarded)
            await _relay(connection, reader, writer)
        finally:
            writer.close()

    async def _dial(self, endpoint: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if endpoint in self._policy.served:
            return await asyncio.open_connection(*self._policy.served[endpoint])
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                addresses = await resolve(endpoint)
        except (OSError, UnicodeError, TimeoutError) as error:
            raise _Refused("502 Bad Gateway", Verdict.DIAL_FAILED, f"resolving failed: {error or 'timed out'}") from error
        if endpoint not in self._policy.local and not all(map(is_public, addresses)):
            raise _Refused("403 Forbidden", Verdict.DENIED, f"{endpoint[0]} has the private address {', '.join(addresses)}")
        failure = "no address"
        for address in addresses:
            try:
                async with asyncio.timeout(DIAL_TIMEOUT_S):
                    return await asyncio.open_connection(address, endpoint[1])
            except (OSError, TimeoutError) as error:
                failure = f"dialling {address} failed: {error if str(error) else 'timed out'}"
        raise _Refused("502 Bad Gateway", Verdict.DIAL_FAILED, failure)


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    try:
        async with asyncio.timeout(HEAD_TIMEOUT_S):
            return await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise _Refused("431 Request Header Fields Too Large", Verdict.DENIED, f"a head above {MAX_HEAD_BYTES} bytes") from None
    except TimeoutError:
        raise _Refused("408 Request Timeout", Verdict.DENIED, f"no complete head within {HEAD_TIMEOUT_S:.0f} s") from None
    except asyncio.IncompleteReadError:
        raise _Refused("400 Bad Request", Verdict.DENIED, "closed before a complete head") from None


def parse_head(head: bytes) -> tuple[Endpoint, bytes | None]:
    """Where a request wants to go, and for plain HTTP the head to send there. Raises _Refused."""
    line, _, rest = head.partition(b"\r\n")
    try:
        method, target, version = line.decode("ascii").split(" ")
        if version not in ("HTTP/1.0", "HTTP/1.1"):
            raise ValueError(version)
        if method == "CONNECT":
            return parse_endpoint(target), None
        url = urlsplit(target)
        if url.scheme != "http" or not url.hostname or "@" in url.netloc:
            raise ValueError(target)
        host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
        endpoint = parse_endpoint(f"{host}:{url.port or 80}")
    except (ValueError, SpecError):
        raise _Refused("400 Bad Request", Verdict.DENIED, f"no proxy request: {line[:200]!r}") from None
    # One request a connection: a second one would pass unread
    kept = [header for header in rest.split(b"\r\n") if header and not header.lower().startswith(_HOP_BY_HOP)]
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    first = [f"{method} {path} HTTP/1.1".encode(), f"Host: {url.netloc}".encode(), b"Connection: close"]
    return endpoint, b"\r\n".join([*first, *kept]) + b"\r\n\r\n"


async def _answer(writer: asyncio.StreamWriter, status: str, error: str) -> None:
    body = f"egress proxy: {error}\n".encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    try:
        async with asyncio.timeout(HEAD_TIMEOUT_S):
            await writer.drain()
    except (OSError, TimeoutError):
        return  # a client that doesn't read its refusal gets none


async def _relay(connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Both directions, each until its end of file; the other one may go on for HALF_CLOSED_TIMEOUT_S. Raises OSError."""

    async def up() -> None:
        while data := await connection.reader.read(65536):
            connection.up += len(data)
            writer.write(data)
            await writer.drain()
        writer.write_eof()

    async def down() -> None:
        while data := await reader.read(65536):
            connection.down += len(data)
            connection.writer.write(data)
            await connection.writer.drain()
        connection.writer.write_eof()

    tasks = [asyncio.create_task(up()), asyncio.create_task(down())]
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
