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
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast

from aiohttp import web

from eval_pipeline.domain.usage import MODEL_MAX_CHARS
from eval_pipeline.errors import SpecError
from eval_pipeline.gateway.addresses import Endpoint
from eval_pipeline.gateway.model_limits import Caller, dearest, has_price
from eval_pipeline.gateway.model_log import Access, ModelLog
from eval_pipeline.gateway.model_passing import ABOUT, WRITE_S, Asked, Passing
from eval_pipeline.gateway.model_provider import Providers
from eval_pipeline.gateway.model_rules import MAX_VALUES, forbidden, known_betas, most, too_many_values
from eval_pipeline.gateway.model_shapes import (
    SHAPES,
    Json,
    Shape,
    error_body,
    given_key,
    key_headers,
    prepared,
)
from eval_pipeline.gateway.paths import Paths
from eval_pipeline.vault.held import HeldRedactor
from eval_pipeline.vault.redaction import Redactor
from eval_pipeline.vault.values import Values

MAX_BODY_BYTES = 8 * 2**20
_NOT_PASSED = re.compile(
    r"(host|connection|keep-alive|te|trailer|upgrade|transfer-encoding|content-length|content-encoding|accept-encoding|expect|cookie|forwarded"
    r"|authorization|x-api-key|api-key|openai-organization|openai-project|proxy-.*|x-forwarded-.*)"
)
_log = logging.getLogger("gateway")


class _Refused(Exception):
    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


class ModelServer:
    """Serves on a loopback port of its own until `close`. stand_in: where the host's stand-in model listens, started when asked."""

    def __init__(
        self,
        paths: Paths,
        values: Values,
        stand_in: Callable[[], Endpoint],
        *,
        write_s: float = WRITE_S,
        providers: Callable[[], Providers] = Providers,
        redactor: Callable[[], Redactor] | None = None,
    ) -> None:
        self._paths = paths
        self._values = values
        self._redactor = redactor or HeldRedactor(values)
        self._stand_in = stand_in
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._write_s = write_s
        self._make_providers = providers
        self._callers: dict[str, Caller] = {}
        self._starting = asyncio.get_running_loop().create_task(self._start())

    @property
    def endpoint(self) -> Endpoint:
        host, port = self._socket.getsockname()
        return host, port

    async def _start(self) -> None:
        self._providers = self._make_providers()
        application = web.Application(client_max_size=MAX_BODY_BYTES)
        for shape in SHAPES:
            application.router.add_post(f"/{shape.provider}{shape.path}", self._handler(shape))
        application.router.add_route("*", "/{path:.*}", _unknown)
        self._runner = web.AppRunner(
            application, access_log=None, handle_signals=False, shutdown_timeout=1.0, auto_decompress=False
        )
        await self._runner.setup()
        await web.SockSite(self._runner, self._socket).start()

    async def close(self) -> None:
        await self._starting
        await self._runner.cleanup()
        await self._providers.close()

    def forget(self, sandbox: str) -> None:
        """The sandbox is gone: what has not gone out never will; what has is read to its end."""
        caller = self._callers.pop(sandbox, None)
        if caller is not None:
            caller.cancel_waiting()

    def _handler(self, shape: Shape) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                return await self._call(request, await self._asked(request, shape))
            except _Refused as refused:
                body = error_body(shape.provider, refused.kind, ABOUT + str(refused))
                return web.json_response(body, status=refused.status)

        return handle

    async def _asked(self, request: web.Request, shape: Shape) -> Asked:
        """Raises _Refused."""
        token = given_key(request.headers)
        name, access = self._access(token)
        body = await _body(request)
        model = body.get("model")
        if not isinstance(model, str) or not 0 < len(model) <= MODEL_MAX_CHARS or not model.isprintable():
            raise _Refused(400, "invalid_request_error", "`model` must name a model")
        if shape.provider not in access.upstreams:
            known = ", ".join(access.upstreams)
            raise _Refused(404, "not_found_error", f"the app has no key of {shape.provider}; it has of: {known}")
        if (why := forbidden(shape, body)) is not None:
            raise _Refused(400, "invalid_request_error", why)
        caller = self._callers.setdefault(name, Caller(ModelLog(self._paths.model_log_of(name), self._redactor)))
        _check(caller, access, model)
        sent, hide_usage = prepared(shape, body)
        data = json.dumps(sent).encode()
        return Asked(token, caller, access, shape, data, dearest(access, most(model, body, len(data))), hide_usage)

    def _access(self, token: str) -> tuple[str, Access]:
        name = token.rpartition(".")[0].removeprefix("evals-")
        try:
            access = Access.load(self._paths.model_access_of(name))
        except SpecError:
            access = None
        shown = hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
        if access is None or not hmac.compare_digest(shown, access.token_sha256):
            raise _Refused(401, "authentication_error", "this is not the token of a sandbox that may ask models")
        return name, access

    async def _call(self, request: web.Request, asked: Asked) -> web.StreamResponse:
        upstream = asked.access.upstreams[asked.shape.provider]
        key = self._values.get(upstream.secret, upstream.version) if upstream.secret and upstream.version else None
        headers = {name: value for name, value in request.headers.items() if not _NOT_PASSED.fullmatch(name.lower())}
        headers = known_betas(headers)
        headers |= {"Accept-Encoding": "identity"} | ({} if key is None else key_headers(asked.shape.provider, key))
        url = (upstream.base_url or self._stand_in_url()) + asked.shape.path
        caller, call_id, began = asked.caller, secrets.token_hex(8), time.monotonic()
        passing = Passing(asked, (key or "").encode(), self._write_s)

        def may(own: str | None = None) -> Access:
            """Time has passed since it was asked: the sandbox may have ended, spent what it had, or hung up."""
            _, access = self._access(asked.token)
            if request.transport is None or request.transport.is_closing():
                raise _Refused(499, "api_error", "the caller has gone")
            _check(caller, access, asked.model, own)
            return access

        def before() -> None:
            may(call_id)
            if not passing.sent:
                passing.sent = True
                caller.sent()
                caller.log.began(call_id, asked.shape.provider, asked.most, datetime.now(UTC))

        async with caller.place(call_id, asked.most, may):
            try:
                async with self._providers.call(url, asked.model, asked.body, headers, before) as answer:
                    return await passing.on(request, answer)
            finally:
                if passing.sent:
                    caller.log.ended(passing.call(call_id, time.monotonic() - began))

    def _stand_in_url(self) -> str:
        host, port = self._stand_in()
        return f"http://{host}:{port}/v1"


async def _body(request: web.Request) -> Json:
    """Raises _Refused."""
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise _Refused(415, "invalid_request_error", "a body must come as it is, without a Content-Encoding")
    try:
        data = await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise _Refused(413, "request_too_large", f"a body may have {MAX_BODY_BYTES} bytes") from None
    if too_many_values(data):
        raise _Refused(413, "request_too_large", f"the objects and lists of a body may hold {MAX_VALUES} values")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise _Refused(400, "invalid_request_error", "the body is no JSON") from None
    if not isinstance(body, dict):
        raise _Refused(400, "invalid_request_error", "the body must be an object")
    return cast(Json, body)


def _check(caller: Caller, access: Access, model: str, own: str | None = None) -> None:
    """Raises _Refused. own: the id of the call that asks, where it has a place already."""
    why = caller.reached(access, own)
    if caller.log.floods:
        raise _Refused(403, "permission_error", "too many malformed calls came from this sandbox")
    if why is not None:
        caller.log.refused(why)
        limits = {"cost": f"{access.cost_usd} USD", "tokens": f"{access.tokens} tokens", "turns": f"{access.turns} calls"}
        raise _Refused(402, "budget_exceeded", f"this cell may use no more: its limit of {limits[why]} is reached")
    if access.cost_usd is not None and not has_price(access, model):
        known = f"{model} has no price in prices.yaml today, and this cell has a limit on cost (limits.cost_usd)"
        raise _Refused(402, "model_without_price", known)


async def _unknown(request: web.Request) -> web.Response:
    provider = "anthropic" if request.path.startswith("/anthropic") else "openai"
    known = ", ".join(f"POST /{shape.provider}{shape.path}" for shape in SHAPES)
    message = f"{ABOUT}{request.method} {request.path} is not passed on; known: {known}"
    return web.json_response(error_body(provider, "not_found_error", message), status=404)
