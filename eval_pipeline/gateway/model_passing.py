"""An answer of a provider on its way to the sandbox that asked."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from aiohttp import ClientError, web

from eval_pipeline.domain.usage import MODEL_MAX_CHARS, Usage
from eval_pipeline.gateway.model_limits import Caller
from eval_pipeline.gateway.model_log import Access, Call
from eval_pipeline.gateway.model_provider import Answer
from eval_pipeline.gateway.model_shapes import Json, Shape, StreamReader, error_body, usage_of

DRAIN_S = 300.0  # of an answer whose caller has gone: its end tells what it costs
WRITE_S = 30.0  # a caller that takes nothing for so long is gone
ABOUT = "evals model gateway: "
_PASSED_BACK = re.compile(
    r"(content-type|request-id|x-request-id|retry-after|retry-after-ms|x-ratelimit-.*"
    r"|openai-(?!organization|project).*|anthropic-(?!organization).*)"
)


@dataclass(frozen=True)
class Asked:
    """One call that may go out. hide_usage: the caller did not ask for the usage that ends its stream."""

    token: str
    caller: Caller
    access: Access
    shape: Shape
    body: bytes
    most: Usage
    hide_usage: bool

    @property
    def model(self) -> str:
        return self.most.model


class Passing:
    """One answer on its way to the caller. What it tells about itself is noted, and the key never goes along."""

    def __init__(self, asked: Asked, key: bytes, write_s: float) -> None:
        self.sent = False
        self._write_s = write_s
        self._asked = asked
        self._key = key
        self._answer = Answer(status=None, tries=1, error="the gateway ended over it", lost=True)
        self._usage: Usage | None = None
        self._served: str | None = None

    async def on(self, request: web.Request, answer: Answer) -> web.StreamResponse:
        self._answer = answer
        if answer.response is None:
            body = error_body(self._asked.shape.provider, "api_error", f"{ABOUT}the provider {answer.error}")
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
                        there = await self._written(request, back, passed)
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
            there = await self._written(request, back, self._without_key(reader.rest()))
        if self._answer.fault == "cut" and request.transport is not None:
            request.transport.close()  # without its last chunk, so that the caller sees it broken, too
        elif there:
            await back.write_eof()
        return back

    async def _written(self, request: web.Request, back: web.StreamResponse, data: bytes) -> bool:
        """False: the caller has gone, or behaves like it."""
        try:
            async with asyncio.timeout(self._write_s):
                await back.write(data)
        except (OSError, ClientError, TimeoutError):
            if request.transport is not None:
                request.transport.abort()
            return False
        return True

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
            lost_tries=answer.lost_tries,
        )
