"""What a client of the proxy asks for: CONNECT, or plain HTTP with an absolute URI. Everything else is refused.

A plain request is read and written anew, one a connection, so that its origin can't read it in another way than we did.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from urllib.parse import urlsplit

import h11

from eval_pipeline.errors import SpecError
from eval_pipeline.gateway.addresses import Endpoint, parse_endpoint
from eval_pipeline.gateway.evidence import Verdict

MAX_HEAD_BYTES = 32768
HEAD_TIMEOUT_S = 10.0
TLS_PORT = 443
_CHUNK = 65536
_HOP_BY_HOP = {b"connection", b"host", b"keep-alive", b"te", b"trailer", b"upgrade"}
_REASONS = {400: "Bad Request", 403: "Forbidden", 408: "Request Timeout", 431: "Request Header Fields Too Large"}
_REASONS |= {501: "Not Implemented", 502: "Bad Gateway", 503: "Service Unavailable"}


class Refused(Exception):
    """An answer to the client instead of a connection. endpoint: None when the request named none."""

    def __init__(self, status: int, error: str, verdict: Verdict = Verdict.DENIED, *, endpoint: Endpoint | None = None) -> None:
        super().__init__(error)
        self.status, self.error, self.verdict, self.endpoint = status, error, verdict, endpoint

    def answer(self) -> bytes:
        body = f"egress proxy: {self.error}\n".encode()
        head = f"HTTP/1.1 {self.status} {_REASONS.get(self.status, 'Refused')}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


@dataclass(frozen=True)
class Plain:
    """A request for the origin: without a body yet, with one Host, and with nothing that is said between two hops."""

    head: h11.Request


@dataclass(frozen=True)
class Asked:
    """plain None: a tunnel."""

    endpoint: Endpoint
    plain: Plain | None


class Client:
    """One client's connection, up to and including its one request."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._parser = h11.Connection(our_role=h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)

    async def request(self) -> h11.Request:
        """Raises Refused for what is no request in time."""
        try:
            async with asyncio.timeout(HEAD_TIMEOUT_S):
                event = await self._event()
        except TimeoutError:
            raise Refused(408, f"no complete head within {HEAD_TIMEOUT_S:.0f} s") from None
        if not isinstance(event, h11.Request):
            raise Refused(400, "closed before a complete head")
        return event

    async def body(self) -> AsyncGenerator[bytes]:
        """Raises Refused when it isn't framed as its head says."""
        while isinstance(event := await self._event(), h11.Data):
            yield bytes(event.data)
        if not isinstance(event, h11.EndOfMessage):
            raise Refused(400, "closed before the end of the body")

    def rest(self) -> bytes:
        """What was read beyond the request."""
        return bytes(self._parser.trailing_data[0])

    async def _event(self) -> h11.Event | type[h11.PAUSED]:
        try:
            while (event := self._parser.next_event()) is h11.NEED_DATA:
                self._parser.receive_data(await self._reader.read(_CHUNK))
        except h11.RemoteProtocolError as error:
            raise Refused(error.error_status_hint, f"no proxy request: {str(error)[:200]}") from None
        return event  # pyright: ignore[reportReturnType]  # NEED_DATA does not leave the loop


def asked(request: h11.Request) -> Asked:
    """Where a request wants to go. Raises Refused for what is ambiguous or none for a proxy."""
    framings = [name for name, _ in request.headers if name in (b"content-length", b"transfer-encoding")]
    if len(framings) > 1 or (framings and request.method == b"CONNECT"):
        raise Refused(400, f"the length of the body is said in {len(framings)} ways for {request.method.decode()}")
    if request.http_version not in (b"1.0", b"1.1"):
        raise Refused(400, f"no proxy request: HTTP/{request.http_version.decode()}")
    target = request.target.decode()
    return Asked(_named(target), None) if request.method == b"CONNECT" else _plain(request, target)


def _named(text: str) -> Endpoint:
    try:
        return parse_endpoint(text)
    except SpecError:
        raise Refused(400, f"no proxy request: {text[:200]!r} is no host:port") from None


def _plain(request: h11.Request, target: str) -> Asked:
    try:
        url = urlsplit(target)
        host, port = url.hostname, url.port or 80
    except ValueError:
        host, port, url = None, 0, urlsplit("")
    if url.scheme != "http" or not host or "@" in url.netloc:
        raise Refused(400, f"no proxy request: {target[:200]!r} is no http://host[:port]/ address")
    endpoint = _named(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    if port == TLS_PORT:
        raise Refused(403, f"plain HTTP to {host}:{port}: it is reached through CONNECT and TLS alone", endpoint=endpoint)
    for value in (value.decode(errors="replace") for name, value in request.headers if name == b"host"):
        if _host_of(value) != endpoint:
            raise Refused(400, f"the Host header names {value[:200]!r}, the address {host}:{port}", endpoint=endpoint)
    return Asked(endpoint, Plain(_for_origin(request, url.netloc, (url.path or "/") + (f"?{url.query}" if url.query else ""))))


def _host_of(header: str) -> Endpoint | None:
    bare = header.rpartition("]")[2] if header.startswith("[") else header
    try:
        return parse_endpoint(header if ":" in bare else f"{header}:80")
    except SpecError:
        return None


def _for_origin(request: h11.Request, netloc: str, target: str) -> h11.Request:
    listed = [token.strip() for name, value in request.headers if name == b"connection" for token in value.lower().split(b",")]
    kept = [
        (raw, value)
        for raw, value in request.headers.raw_items()
        if (name := raw.lower()) not in _HOP_BY_HOP and name not in listed and not name.startswith(b"proxy-")
    ]
    headers = [(b"Host", netloc.encode()), (b"Connection", b"close"), *kept]
    return h11.Request(method=request.method, target=target.encode(), headers=headers)
