"""The model gateway: sandboxes call it as they would the provider, with a token of their own; the real key stays here.

It listens on a loopback port; sandboxes reach it through their proxy as `model-gateway`, those that are allowed to.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import re
import secrets
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, cast

from aiohttp import ClientError, web

from eval_pipeline.domain.usage import MODEL_MAX_CHARS, Usage
from eval_pipeline.errors import SpecError
from eval_pipeline.gateway.addresses import Endpoint
from eval_pipeline.gateway.model_log import Access, Call, ModelLog, Refusal
from eval_pipeline.gateway.model_provider import Answer, Providers
from eval_pipeline.gateway.model_shapes import (
    SHAPES,
    Json,
    Shape,
    StreamReader,
    error_body,
    given_key,
    key_headers,
    prepared,
    usage_of,
)
from eval_pipeline.gateway.paths import Paths
from eval_pipeline.scoring.prices import PriceBook
from eval_pipeline.vault.values import Values

MAX_BODY_BYTES = 64 * 2**20
DRAIN_S = 300.0  # of an answer whose caller has gone: its end tells what it costs
_ABOUT = "evals model gateway: "
_NOT_PASSED = re.compile(
    r"(host|connection|keep-alive|te|trailer|upgrade|transfer-encoding|content-length|accept-encoding|cookie|forwarded"
    r"|authorization|x-api-key|api-key|proxy-.*|x-forwarded-.*)"
)
_PASSED_BACK = re.compile(
    r"(content-type|request-id|x-request-id|retry-after|retry-after-ms|openai-.*|anthropic-.*|x-ratelimit-.*)"
)
_log = logging.getLogger("gateway")


class _Refused(Exception):
    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


@dataclass(frozen=True)
class _Asked:
    """One call that may go out. hide_usage: the caller did not ask for the usage that ends its stream."""

    sandbox: str
    access: Access
    shape: Shape
    model: str
    body: Json
    hide_usage: bool


class ModelServer:
    """Serves on a loopback port of its own until `close`. stand_in: where the host's stand-in model listens, started when asked."""

    def __init__(self, paths: Paths, values: Values, stand_in: Callable[[], Endpoint]) -> None:
        self._paths = paths
        self._values = values
        self._stand_in = stand_in
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._logs: dict[str, ModelLog] = {}
        self._waiting: dict[str, int] = defaultdict(int)
        self._starting = asyncio.get_running_loop().create_task(self._start())

    @property
    def endpoint(self) -> Endpoint:
        host, port = self._socket.getsockname()
        return host, port

    async def _start(self) -> None:
        self._providers = Providers()
        application = web.Application(client_max_size=MAX_BODY_BYTES)
        for shape in SHAPES:
            application.router.add_post(f"/{shape.provider}{shape.path}", self._handler(shape))
        application.router.add_route("*", "/{path:.*}", _unknown)
        self._runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.SockSite(self._runner, self._socket).start()

    async def close(self) -> None:
        await self._starting
        await self._runner.cleanup()
        await self._providers.close()

    def forget(self, sandbox: str) -> None:
        self._logs.pop(sandbox, None)

    def _handler(self, shape: Shape) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                asked = await self._asked(request, shape)
            except _Refused as refused:
                body = error_body(shape.provider, refused.kind, _ABOUT + str(refused))
                return web.json_response(body, status=refused.status)
            return await self._call(request, asked)

        return handle

    async def _asked(self, request: web.Request, shape: Shape) -> _Asked:
        """Raises _Refused."""
        name, access = self._caller(given_key(request.headers))
        try:
            body = json.loads(await request.read())
        except (ValueError, RecursionError):
            raise _Refused(400, "invalid_request_error", "the body is no JSON") from None
        model = cast(Json, body).get("model") if isinstance(body, dict) else None
        if not isinstance(model, str) or not 0 < len(model) <= MODEL_MAX_CHARS or not model.isprintable():
            raise _Refused(400, "invalid_request_error", "`model` must name a model")
        if shape.provider not in access.upstreams:
            known = ", ".join(access.upstreams)
            raise _Refused(404, "not_found_error", f"the app has no key of {shape.provider}; it has of: {known}")
        self._check_limits(name, access)
        sent, hide_usage = prepared(shape, cast(Json, body))
        return _Asked(name, access, shape, model, sent, hide_usage)

    def _caller(self, token: str) -> tuple[str, Access]:
        name = token.rpartition(".")[0].removeprefix("evals-")
        try:
            access = Access.load(self._paths.model_access_of(name))
        except SpecError:
            access = None
        shown = hashlib.sha256(token.encode()).hexdigest()
        if access is None or not hmac.compare_digest(shown, access.token_sha256):
            raise _Refused(401, "authentication_error", "this is not the token of a sandbox that may ask models")
        return name, access

    def _check_limits(self, name: str, access: Access) -> None:
        log = self._log_of(name)
        if log.floods:
            raise _Refused(403, "permission_error", "too many malformed calls came from this sandbox")
        why = _reached(access, log)
        if why is not None:
            log.refused(why)
            limits = {"cost": f"{access.cost_usd} USD", "tokens": f"{access.tokens} tokens", "turns": f"{access.turns} calls"}
            raise _Refused(402, "budget_exceeded", f"this cell may use no more: its limit of {limits[why]} is reached")

    def _log_of(self, name: str) -> ModelLog:
        if name not in self._logs:
            self._logs[name] = ModelLog(self._paths.model_log_of(name))
        self._logs[name].read()
        return self._logs[name]

    async def _call(self, request: web.Request, asked: _Asked) -> web.StreamResponse:
        upstream = asked.access.upstreams[asked.shape.provider]
        key = self._values.get(upstream.secret, upstream.version) if upstream.secret and upstream.version else None
        headers = {name: value for name, value in request.headers.items() if not _NOT_PASSED.fullmatch(name.lower())}
        headers |= {"Accept-Encoding": "identity"} | ({} if key is None else key_headers(asked.shape.provider, key))
        url = (upstream.base_url or self._stand_in_url()) + asked.shape.path
        log, call_id, began = self._log_of(asked.sandbox), secrets.token_hex(8), time.monotonic()
        log.began(call_id, asked.shape.provider, asked.model, datetime.now(UTC))
        passing = _Passing(asked, (key or "").encode())
        try:
            async with self._providers.call(url, json.dumps(asked.body).encode(), headers) as answer:
                return await passing.on(request, answer)
        finally:
            log.ended(passing.call(call_id, time.monotonic() - began))

    def _stand_in_url(self) -> str:
        host, port = self._stand_in()
        return f"http://{host}:{port}/v1"


class _Passing:
    """One answer on its way to the caller. What it tells about itself is noted, and the key never goes along."""

    def __init__(self, asked: _Asked, key: bytes) -> None:
        self._asked = asked
        self._key = key
        self._answer = Answer(status=None, tries=1, error="the gateway ended over it", lost=True)
        self._usage: Usage | None = None
        self._served: str | None = None

    async def on(self, request: web.Request, answer: Answer) -> web.StreamResponse:
        self._answer = answer
        if answer.response is None:
            body = error_body(self._asked.shape.provider, "api_error", f"{_ABOUT}the provider {answer.error}")
            return web.json_response(body, status=502)
        headers = {name: value for name, value in answer.response.headers.items() if _PASSED_BACK.fullmatch(name.lower())}
        if answer.body is None:
            return await self._stream(request, headers)
        if answer.status == 200:
            self._note(answer.body)
        return web.Response(status=answer.response.status, body=self._without_key(answer.body), headers=headers)

    def _note(self, body: bytes) -> None:
        try:
            parsed = json.loads(body)
        except ValueError:
            return
        if isinstance(parsed, dict):
            found = cast(Json, parsed)
            self._usage = usage_of(self._asked.shape, self._asked.model, found.get("usage"))
            self._served = str(found.get("model"))[:MODEL_MAX_CHARS] if found.get("model") else None

    async def _stream(self, request: web.Request, headers: Mapping[str, str]) -> web.StreamResponse:
        assert self._answer.response is not None
        back = web.StreamResponse(headers=dict(headers))
        reader, there = StreamReader(self._asked.shape, self._asked.hide_usage), True
        await back.prepare(request)
        try:
            async with asyncio.timeout(None) as limit:
                async for chunk in self._answer.response.content.iter_any():
                    passed = self._without_key(reader.feed(chunk))
                    if there and passed:
                        there = await _written(back, passed)
                        if not there:
                            limit.reschedule(asyncio.get_running_loop().time() + DRAIN_S)
        except (ClientError, OSError, TimeoutError) as error:
            self._answer.error = f"its stream broke off: {str(error) or type(error).__name__}"
        self._usage = usage_of(self._asked.shape, self._asked.model, reader.told)
        if reader.failed is not None:
            self._answer.fault, self._answer.error = "provider", f"ended its stream with an error: {reader.failed}"
        elif not reader.whole:
            self._answer.fault, self._answer.error = "cut", self._answer.error or "its stream had no end"
        if there and reader.rest():
            there = await _written(back, self._without_key(reader.rest()))
        if self._answer.fault == "cut" and request.transport is not None:
            request.transport.close()  # without its last chunk, so that the caller sees it broken, too
        elif there:
            await back.write_eof()
        return back

    def _without_key(self, data: bytes) -> bytes:
        return data.replace(self._key, b"[key]") if self._key else data

    def call(self, call_id: str, took_s: float) -> Call:
        answer = self._answer
        return Call(
            id=call_id,
            provider=self._asked.shape.provider,
            model=self._asked.model,
            served=self._served,
            status=answer.status,
            tries=answer.tries,
            duration_s=round(took_s, 4),
            fault=answer.fault,
            error=answer.error,
            usage=None if self._usage is None else self._usage.model_dump(),
            billed=answer.status == 200 or answer.lost,
        )


async def _written(back: web.StreamResponse, data: bytes) -> bool:
    """False: the caller has gone."""
    try:
        await back.write(data)
    except (OSError, ClientError):
        return False
    return True


def _reached(access: Access, log: ModelLog) -> Refusal | None:
    if access.turns is not None and log.calls + log.under_way >= access.turns:
        return "turns"
    if access.tokens is not None and sum(usage.tokens for usage in log.usages) >= access.tokens:
        return "tokens"
    if access.cost_usd is not None:
        spent = PriceBook.from_rows(access.prices, "prices").known_cost(log.usages, datetime.now(UTC).date())
        return "cost" if spent >= Decimal(str(access.cost_usd)) else None
    return None


async def _unknown(request: web.Request) -> web.Response:
    provider = "anthropic" if request.path.startswith("/anthropic") else "openai"
    known = ", ".join(f"POST /{shape.provider}{shape.path}" for shape in SHAPES)
    message = f"{_ABOUT}{request.method} {request.path} is not passed on; known: {known}"
    return web.json_response(error_body(provider, "not_found_error", message), status=404)
