"""Providers of models on loopback, over real HTTP: they answer as they are told to, and write down what they were sent."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

OPENAI_USAGE = {
    "prompt_tokens": 1000,
    "completion_tokens": 50,
    "total_tokens": 1050,
    "prompt_tokens_details": {"cached_tokens": 400},
    "completion_tokens_details": {"reasoning_tokens": 20},
}
ANTHROPIC_USAGE = {
    "input_tokens": 300,
    "cache_read_input_tokens": 200,
    "cache_creation_input_tokens": 100,
    "cache_creation": {"ephemeral_5m_input_tokens": 60, "ephemeral_1h_input_tokens": 40},
    "output_tokens": 70,
}


@dataclass
class Seen:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class Provider:
    """Runs in a thread of its own. script: what the next calls get, first to last: a status with headers, `cut`, or `hang`; then
    every call succeeds. most: how many calls it had at once."""

    script: list[Any] = field(default_factory=list[Any])
    seen: list[Seen] = field(default_factory=list[Seen])
    delay_s: float = 0.0
    now: int = 0
    most: int = 0
    port: int = 0

    def __enter__(self) -> Provider:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _run(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        application = web.Application(client_max_size=2**30)
        application.router.add_post("/v1/chat/completions", self._answering(_chat))
        application.router.add_post("/v1/responses", self._answering(_responses))
        application.router.add_post("/v1/messages", self._answering(_messages))
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        self._ready.set()
        await self._end.wait()
        await runner.cleanup()

    def _answering(self, events: Callable[[dict[str, Any]], list[str]]) -> Any:
        async def answer(request: web.Request) -> web.StreamResponse:
            body = await request.json()
            self.seen.append(Seen(request.path, {name.lower(): value for name, value in request.headers.items()}, body))
            step = self.script.pop(0) if self.script else None
            self.now += 1
            self.most = max(self.most, self.now)
            try:
                await asyncio.sleep(self.delay_s)
                return await _answered(request, body, step, events(body))
            finally:
                self.now -= 1

        return answer


async def _answered(request: web.Request, body: dict[str, Any], step: Any, events: list[str]) -> web.StreamResponse:
    if isinstance(step, tuple):
        status, headers = step
        said = {"error": {"message": f"as told, for {request.headers.get('authorization')}", "type": "x"}}
        return web.json_response(said, status=status, headers=headers)
    if not body.get("stream"):
        if step == "cut":
            broken = web.StreamResponse(headers={"Content-Length": "1000", "Content-Type": "application/json"})
            await broken.prepare(request)
            await broken.write(b'{"id": ')
            assert request.transport is not None
            request.transport.close()
            return broken
        return web.Response(body=events[-1], content_type="application/json")
    stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await stream.prepare(request)
    for number, event in enumerate(events[:-1]):
        if step == "cut" and number == len(events) // 2:
            assert request.transport is not None
            request.transport.close()
            return stream
        await stream.write(event.encode())
        await asyncio.sleep(0.01)
    return stream


def _chat(body: dict[str, Any]) -> list[str]:
    chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": {"content": word}}]} for word in ("one ", "two ", "three")]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    if (body.get("stream_options") or {}).get("include_usage"):
        chunks.append({"choices": [], "usage": OPENAI_USAGE})
    message = {"role": "assistant", "content": "one two three"}
    whole = {"model": f"{body['model']}-2026", "choices": [{"index": 0, "message": message}], "usage": OPENAI_USAGE}
    return [*(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks), "data: [DONE]\n\n", json.dumps(whole)]


def _responses(body: dict[str, Any]) -> list[str]:
    usage: dict[str, Any] = {
        name.replace("prompt", "input").replace("completion", "output"): count for name, count in OPENAI_USAGE.items()
    }
    whole = {"id": "r1", "status": "completed", "model": body["model"], "usage": usage}
    events = [{"type": "response.created"}, {"type": "response.output_text.delta", "delta": "one"}]
    events.append({"type": "response.completed", "response": whole})  # type: ignore[dict-item]
    return [*(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events), json.dumps(whole)]


def _messages(body: dict[str, Any]) -> list[str]:
    start = {**ANTHROPIC_USAGE, "output_tokens": 1}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {"model": body["model"], "usage": start}}]
    events += [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}} for word in ("one ", "two")
    ]
    events += [{"type": "message_delta", "delta": {}, "usage": {"output_tokens": 70}}, {"type": "message_stop"}]
    whole = {
        "type": "message",
        "model": body["model"],
        "content": [{"type": "text", "text": "one two"}],
        "usage": ANTHROPIC_USAGE,
    }
    return [*(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events), json.dumps(whole)]
