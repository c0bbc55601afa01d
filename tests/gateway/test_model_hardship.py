"""Sandboxes that want more of the model gateway than is theirs, and providers that fail late, all over real HTTP."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from gateway.test_model_server import ANTHROPIC_COUNTS, CHAT, PRICES, TOKEN, counts, token_of, way
from support.providers import Provider

from eval_pipeline.gateway.model_limits import CALLS_OF_ONE
from eval_pipeline.gateway.model_log import Access
from eval_pipeline.gateway.model_provider import Providers

# Imports the clients of two providers
pytestmark = pytest.mark.slow

__all__ = ["way"]
SMALL = {**CHAT, "max_tokens": 1}
CHATS = "/openai/chat/completions"


@asynccontextmanager
async def provider_that(handler: Callable[[web.Request], Any]) -> AsyncGenerator[str]:
    application = web.Application()
    application.router.add_post("/{path:.*}", handler)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


def sent(url: str, body: Any) -> socket.socket:
    """A caller that takes no answer."""
    host, port = url.removeprefix("http://").split(":")
    caller = socket.socket()
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    caller.connect((host, int(port)))
    data = json.dumps(body).encode()
    head = f"POST {CHATS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: {len(data)}\r\n\r\n"
    caller.sendall(head.encode() + data)
    return caller


async def until(found: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not found():
            await asyncio.sleep(0.01)


def test_callers_that_take_nothing_hold_up_nobody_else_and_are_billed(way: Any) -> None:
    streams = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal streams
        if not (await request.json()).get("stream"):
            return web.json_response({"model": "gpt-x", "usage": {"prompt_tokens": 1, "completion_tokens": 1}})
        streams += 1
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        for _ in range(400):
            await stream.write(b'data: {"choices":[{"delta":{"content":"' + b"x" * 20000 + b'"}}]}\n\n')
        await stream.write(b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":1}}\n\ndata: [DONE]\n\n')
        return stream

    async def go() -> None:
        async with provider_that(answer) as url, way(url, boxes=2, server={"write_s": 1.0}) as at:
            callers = [await asyncio.to_thread(sent, at.url, {**CHAT, "stream": True}) for _ in range(40)]
            await until(lambda: streams >= CALLS_OF_ONE)
            assert (await at.post(CHATS, CHAT, token_of(1)))[0] == 200
            for caller in callers[CALLS_OF_ONE:]:
                caller.close()
            await until(lambda: at.log.read() or at.log.calls >= CALLS_OF_ONE)
            assert all(usage["input_uncached"] == 7 * usage["calls"] for usage in counts(at.log))
            for caller in callers[:CALLS_OF_ONE]:
                caller.close()

    asyncio.run(go())


def test_calls_sent_all_at_once_stay_within_the_limit_but_for_one(way: Any) -> None:
    async def go() -> None:
        with Provider(delay_s=0.02) as provider:
            async with way(provider.url, cost_usd=2.0) as at:  # a call costs 0.74
                replies = await asyncio.gather(*(at.post(CHATS, CHAT) for _ in range(30)))
                assert sorted(status for status, _, _ in replies) == [200] * 3 + [402] * 27
                assert len(provider.seen) == 3

    asyncio.run(go())


def test_calls_that_fit_beside_each_other_go_at_once(way: Any) -> None:
    async def go() -> None:
        with Provider(delay_s=0.3) as provider:
            async with way(provider.url, cost_usd=50.0) as at:
                await asyncio.gather(*(at.post(CHATS, SMALL) for _ in range(8)))
                assert provider.most == CALLS_OF_ONE

    asyncio.run(go())


@pytest.mark.parametrize("end", ["forgotten", "no access", "callers gone"])
def test_a_call_that_waits_does_not_outlive_its_sandbox(way: Any, end: str) -> None:
    async def go() -> None:
        with Provider(delay_s=0.5) as provider:
            async with way(provider.url) as at:
                callers = [await asyncio.to_thread(sent, at.url, CHAT) for _ in range(20)]
                await until(lambda: len(provider.seen) == CALLS_OF_ONE)
                if end != "callers gone":
                    at.paths.model_access_of("box").unlink()
                if end == "forgotten":
                    at.server.forget("box")
                if end == "callers gone":
                    for caller in callers:
                        caller.close()
                await until(lambda: at.log.read() or at.log.calls == CALLS_OF_ONE)
                await asyncio.sleep(0.3)
                assert len(provider.seen) == CALLS_OF_ONE
                assert counts(at.log)[0]["calls"] == CALLS_OF_ONE  # what had gone out was billed
                for caller in callers:
                    caller.close()

    asyncio.run(go())


def test_a_model_without_a_price_can_not_get_round_a_limit_on_cost(way: Any) -> None:
    async def go() -> None:
        with Provider() as provider:
            async with way(provider.url, cost_usd=0.5) as at:
                status, body, _ = await at.post(CHATS, {**CHAT, "model": "gpt-x-2026"})
                assert (status, provider.seen) == (402, [])
                assert "gpt-x-2026 has no price" in json.loads(body)["error"]["message"]
            async with way(provider.url) as free:
                assert (await free.post(CHATS, {**CHAT, "model": "gpt-x-2026"}))[0] == 200

    asyncio.run(go())


def test_a_call_that_tells_no_usage_counts_as_the_most_that_it_can_use(way: Any) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"model": "gpt-x", "usage": None})

    async def go() -> None:
        async with provider_that(answer) as url, way(url, cost_usd=5.0) as at:  # 2000 dollars a million, at 1000 tokens: 2
            statuses = [(await at.post(CHATS, {**CHAT, "max_tokens": 1000}))[0] for _ in range(5)]
            assert statuses == [200, 200, 200, 402, 402]
            assert (counts(at.log), at.log.unmeasured) == ([], 3)

    asyncio.run(go())


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/openai/responses", {"background": True}),
        ("/openai/responses", {"store": True}),
        ("/openai/responses", {"previous_response_id": "resp_1"}),
        ("/openai/responses", {"service_tier": "priority"}),
        ("/openai/responses", {"tools": [{"type": "web_search"}]}),
        ("/openai/responses", {"tools": [{"type": "function", "name": "f"}, {"type": "mcp", "server_url": "https://x"}]}),
        ("/openai/responses", {"tools": [{"type": ["function"]}]}),
        ("/openai/responses", {"input": [{"content": [{"type": "input_image", "image_url": "https://x/?secret"}]}]}),
        ("/openai/responses", {"input": [{"type": "item_reference", "id": "msg_1"}]}),
        (CHATS, {"web_search_options": {"search_context_size": "low"}}),
        (CHATS, {"messages": [{"content": [{"type": "image_url", "image_url": {"url": "https://x"}}]}]}),
        (CHATS, {"messages": [{"content": [{"type": "file", "file": {"file_id": "file-1"}}]}]}),
        ("/anthropic/v1/messages", {"mcp_servers": [{"type": "url", "url": "https://x"}]}),
        ("/anthropic/v1/messages", {"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]}),
        ("/anthropic/v1/messages", {"speed": "fast"}),
        (
            "/anthropic/v1/messages",
            {"messages": [{"content": [{"type": "tool_result", "content": [{"source": {"type": "url", "url": "https://x"}}]}]}]},
        ),
    ],
)
def test_what_a_provider_would_fetch_keep_or_run_is_not_passed_on(way: Any, path: str, asked: dict[str, Any]) -> None:
    async def go() -> None:
        with Provider() as provider:
            async with way(provider.url) as at:
                status, body, _ = await at.post(path, {"model": "gpt-x", **asked})
                assert (status, provider.seen) == (400, [])
                assert json.loads(body)["error"]["type"] == "invalid_request_error"

    asyncio.run(go())


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/openai/responses", {"store": False, "background": None, "service_tier": "auto", "tools": [{"type": "function"}]}),
        (CHATS, {"messages": [{"content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]}]}),
        ("/anthropic/v1/messages", {"tools": [{"name": "f", "input_schema": {"type": "object"}}, {"type": "custom"}]}),
        (
            "/anthropic/v1/messages",
            {"messages": [{"content": [{"type": "tool_use", "id": "t", "input": {"type": "url", "url": "https://x"}}]}]},
        ),
    ],
)
def test_what_is_the_agents_own_is_passed_on(way: Any, path: str, asked: dict[str, Any]) -> None:
    async def go() -> None:
        with Provider() as provider:
            async with way(provider.url) as at:
                assert (await at.post(path, {"model": "gpt-x", **asked}))[0] == 200
                assert {name: provider.seen[0].body[name] for name in asked} == asked

    asyncio.run(go())


def test_headers_that_name_another_account_or_feature_are_dropped(way: Any) -> None:
    async def go() -> None:
        with Provider() as provider:
            async with way(provider.url) as at:
                headers = {"Authorization": f"Bearer {TOKEN}", "OpenAI-Organization": "o", "OpenAI-Project": "p"}
                headers["anthropic-beta"] = "mcp-client-2025-04-04, interleaved-thinking-2025-05-14"
                async with at.session.post(at.url + "/anthropic/v1/messages", json=CHAT, headers=headers) as reply:
                    assert reply.status == 200
                seen = provider.seen[0].headers
                assert seen["anthropic-beta"] == "interleaved-thinking-2025-05-14"
                assert not {"openai-organization", "openai-project"} & set(seen)

    asyncio.run(go())


@pytest.mark.parametrize(
    ("data", "headers", "status"),
    [
        (b'{"model": "gpt-x", "a": "' + b"x" * 2**23 + b'"}', {}, 413),
        (b'{"model": "gpt-x", "a": [' + b"[]," * 300_000 + b"1]}", {}, 413),
        (json.dumps({"model": "gpt-x", "a": dict.fromkeys(map(str, range(110_000)))}).encode(), {}, 413),
        (b'{"model": "gpt-x", "a": [' + b"1," * 110_000 + b"1]}", {}, 413),
        (b'{"model": "gpt-x", "a": [' + b'"\\\\",' * 110_000 + b"1]}", {}, 413),
        (json.dumps({"model": "gpt-x", "a": '{"b": [1, 2, "\\\\"]},' * 110_000}).encode(), {}, 200),
        (json.dumps({"model": "gpt-x", "a": [{"b": "c"}] * 30_000}).encode(), {}, 200),
        (gzip.compress(json.dumps(CHAT).encode()), {"Content-Encoding": "gzip"}, 415),
        (b"[]", {}, 400),
        (b'{"model": "gpt-x", "a": "' + b"x" * 7 * 2**20 + b'"}', {}, 200),
    ],
    ids=[
        "too large",
        "too many parts",
        "too many keys",
        "too many numbers",
        "too many texts",
        "one text",
        "many",
        "compressed",
        "no object",
        "large",
    ],
)
def test_a_body_may_be_so_large_and_comes_as_it_is(way: Any, data: bytes, headers: dict[str, str], status: int) -> None:
    async def go() -> None:
        with Provider() as provider:
            async with way(provider.url) as at:
                headers["Authorization"] = f"Bearer {TOKEN}"
                async with at.session.post(at.url + CHATS, data=io.BytesIO(data), headers=headers) as reply:
                    assert reply.status == status
                    assert status == 200 or (await reply.json())["error"]["type"] in (
                        "invalid_request_error",
                        "request_too_large",
                    )
            assert len(provider.seen) == (status == 200)

    asyncio.run(go())


def test_a_try_whose_answer_was_lost_is_no_free_one(way: Any) -> None:
    asked = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal asked
        await request.read()
        asked += 1
        if asked < 3:
            assert request.transport is not None
            request.transport.close()
        return web.json_response({"model": "gpt-x", "usage": {"prompt_tokens": 5, "completion_tokens": 1}})

    async def go() -> None:
        async with provider_that(answer) as url, way(url) as at:
            assert (await at.post(CHATS, CHAT))[0] == 200
            assert counts(at.log)[0]["input_uncached"] == 5
            assert (at.log.calls, at.log.unmeasured, at.log.retried) == (1, 2, 2)

    asyncio.run(go())


def test_a_silent_provider_is_asked_once(way: Any) -> None:
    async def go() -> None:
        with Provider(delay_s=30) as provider:
            async with way(provider.url, server={"providers": lambda: Providers(silence_s=0.3)}) as at:
                assert (await at.post(CHATS, CHAT))[0] == 502
                at.log.read()
                assert (len(provider.seen), at.log.unmeasured, [one.fault for one in at.log.faults]) == (1, 1, ["cut"])

    asyncio.run(go())


def test_a_model_that_has_had_enough_holds_up_no_other(way: Any) -> None:
    async def go() -> None:
        with Provider(script=[(429, {"retry-after": "30"})]) as provider:
            async with way(provider.url, boxes=2) as at:
                waiting = asyncio.create_task(at.post(CHATS, {**CHAT, "model": "of-another-quota"}))
                await until(lambda: provider.seen and not provider.now)
                async with asyncio.timeout(20):
                    assert (await at.post(CHATS, CHAT, token_of(1)))[0] == 200
                waiting.cancel()

    asyncio.run(go())


def test_a_line_end_in_two_chunks_parts_events_all_the_same(way: Any) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        for part in (
            b'data: {"choices":[{"delta":{"content":"a"}}]}\r\n\r',
            b'\ndata: {"choices":[],"usage":{"prompt_tokens":1000,"completion_tokens":5}}\r\n\r',
            b"\ndata: [DONE]\r\n\r\n",
        ):
            await stream.write(part)
            await asyncio.sleep(0.1)
        return stream

    async def go() -> None:
        async with provider_that(answer) as url, way(url) as at:
            _, body, _ = await at.post(CHATS, {**CHAT, "stream": True})
            assert body == 'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: [DONE]\n\n'
            assert [usage["input_uncached"] for usage in counts(at.log)] == [1000]
            assert at.log.unmeasured == 0

    asyncio.run(go())


def test_only_a_fault_of_the_last_call_is_one_at_the_end(way: Any) -> None:
    async def go() -> None:
        with Provider(script=[(429, {"retry-after": "3600"})]) as provider:
            async with way(provider.url) as at:
                await at.post(CHATS, CHAT)
                at.log.read()
                assert at.log.last_fault is not None
                await at.post("/anthropic/v1/messages", {**CHAT, "model": "claude-x"})
                assert counts(at.log) == [{"model": "claude-x", **ANTHROPIC_COUNTS, "calls": 1}]
                assert (at.log.last_fault, len(at.log.faults)) == (None, 1)

    asyncio.run(go())


def test_prices_are_asked_of_the_access_as_it_stands(way: Any) -> None:
    """The runner writes it again with the limits of the case once an agent begins."""

    async def go() -> None:
        with Provider() as provider:
            async with way(provider.url) as at:
                assert (await at.post(CHATS, CHAT))[0] == 200
                path = at.paths.model_access_of("box")
                access = Access.load(path)
                assert access is not None
                Access(token_sha256=access.token_sha256, upstreams=access.upstreams, cost_usd=0.1, prices=PRICES).save(path)
                assert (await at.post(CHATS, CHAT))[0] == 402

    asyncio.run(go())
