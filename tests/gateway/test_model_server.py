"""The model gateway between a caller and a provider, both over real HTTP."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.providers import OPENAI_USAGE, Provider

from eval_pipeline.gateway.model_log import Access, ModelLog, Upstream
from eval_pipeline.gateway.model_provider import MAX_CALLS
from eval_pipeline.gateway.model_server import ModelServer
from eval_pipeline.gateway.paths import Paths
from eval_pipeline.vault.values import Values

# Imports the clients of two providers
pytestmark = pytest.mark.slow

KEY = "sk-real-4d1f0c3a"
TOKEN = "evals-box.token-of-this-cell"
PRICES = [
    {
        "provider": "p",
        "model": "gpt-x",
        "effective_from": "2020-01-01",
        "input_uncached": "1000",
        "cache_read": "100",
        "cache_write_5m": "0",
        "cache_write_1h": "0",
        "output": "2000",
        "source": "test",
    }
]
CHAT: dict[str, Any] = {"model": "gpt-x", "messages": [{"role": "user", "content": "hello"}]}


def token_of(number: int) -> str:
    return TOKEN if number == 0 else f"evals-box{number}.token-of-another-cell"


@dataclass
class Way:
    """The gateway as one sandbox sees it."""

    url: str
    paths: Paths
    log: ModelLog
    session: aiohttp.ClientSession
    server: ModelServer

    async def post(self, path: str, body: Any, token: str = TOKEN) -> tuple[int, str, dict[str, str]]:
        headers = {"Authorization": f"Bearer {token}"}
        async with self.session.post(self.url + path, json=body, headers=headers) as response:
            return response.status, await response.text(), {name.lower(): value for name, value in response.headers.items()}


@pytest.fixture
def way(state_dir: Path) -> Any:
    @asynccontextmanager
    async def opened(provider_url: str, boxes: int = 1, server: Mapping[str, Any] = {}, **limits: Any) -> AsyncGenerator[Way]:
        paths, values = Paths.of(state_dir), Values(state_dir)
        with values.exclusive():
            version = values.put("THE_KEY", KEY)
        upstreams = {
            "openai": Upstream(base_url=f"{provider_url}/v1", secret="THE_KEY", version=version),
            "anthropic": Upstream(base_url=provider_url, secret="THE_KEY", version=version),
        }
        for token in map(token_of, range(boxes)):
            access = Access(token_sha256=hashlib.sha256(token.encode()).hexdigest(), upstreams=upstreams, prices=PRICES, **limits)
            access.save(paths.model_access_of(token.removeprefix("evals-").partition(".")[0]))
        models = ModelServer(paths, values, lambda: ("127.0.0.1", 1), **server)
        host, port = models.endpoint
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            yield Way(f"http://{host}:{port}", paths, ModelLog(paths.model_log_of("box")), session, models)
        await models.close()

    return opened


def counts(log: ModelLog) -> list[dict[str, Any]]:
    log.read()
    assert log.under_way == 0
    return [usage.model_dump() for usage in log.usages]


OPENAI_COUNTS = {
    "input_uncached": 600,
    "cache_read": 400,
    "cache_write_5m": 0,
    "cache_write_1h": 0,
    "output": 50,
    "reasoning": 20,
}
ANTHROPIC_COUNTS = {
    "input_uncached": 300,
    "cache_read": 200,
    "cache_write_5m": 60,
    "cache_write_1h": 40,
    "output": 70,
    "reasoning": 0,
}


@pytest.mark.parametrize("stream", [False, True])
def test_openais_own_client_is_measured_and_its_key_swapped(way: Any, stream: bool) -> None:
    import openai  # takes a second: not where tests are only collected

    async def go() -> None:
        with Provider() as provider:
            async with (
                way(provider.url) as at,
                openai.AsyncOpenAI(api_key=TOKEN, base_url=f"{at.url}/openai", max_retries=0) as client,
            ):
                reply: Any = await client.chat.completions.create(**CHAT, stream=stream)
                if stream:
                    chunks = [chunk async for chunk in reply]
                    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "one two three"
                    assert all(chunk.usage is None for chunk in chunks)  # it had not asked for it
                else:
                    assert reply.choices[0].message.content == "one two three"
                assert counts(at.log) == [{"model": "gpt-x", **OPENAI_COUNTS, "calls": 1}]
            assert provider.seen[0].headers["authorization"] == f"Bearer {KEY}"
            assert TOKEN not in json.dumps([provider.seen[0].headers, provider.seen[0].body])

    asyncio.run(go())


@pytest.mark.parametrize("stream", [False, True])
def test_anthropics_own_client_is_measured_and_its_key_swapped(way: Any, stream: bool) -> None:
    import anthropic  # takes two seconds: not where tests are only collected

    async def go() -> None:
        with Provider() as provider:
            async with way(provider.url) as at:
                client = anthropic.AsyncAnthropic(api_key=TOKEN, base_url=f"{at.url}/anthropic", max_retries=0)
                reply: Any = await client.messages.create(
                    model="claude-x", max_tokens=9, messages=[{"role": "user", "content": "hello"}], stream=stream
                )
                if stream:
                    kinds = [event.type async for event in reply]
                    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
                else:
                    assert reply.content[0].text == "one two"
                await client.close()
                assert counts(at.log) == [{"model": "claude-x", **ANTHROPIC_COUNTS, "calls": 1}]
            assert provider.seen[0].headers["x-api-key"] == KEY
            assert "anthropic-version" in provider.seen[0].headers

    asyncio.run(go())


@pytest.mark.parametrize("stream", [False, True])
def test_responses_are_measured_in_the_same_classes(way: Any, stream: bool) -> None:
    async def go() -> None:
        with Provider() as provider:
            async with way(provider.url) as at:
                status, body, _ = await at.post("/openai/responses", {"model": "gpt-x", "input": "hello", "stream": stream})
                assert status == 200 and "completed" in body
                assert counts(at.log) == [{"model": "gpt-x", **OPENAI_COUNTS, "calls": 1}]

    asyncio.run(go())


def test_a_caller_that_asks_for_the_usage_of_its_stream_gets_it(way: Any) -> None:
    async def go() -> None:
        with Provider() as provider:
            async with way(provider.url) as at:
                asking = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
                assert json.dumps(OPENAI_USAGE) in (await at.post("/openai/chat/completions", asking))[1]
                assert json.dumps(OPENAI_USAGE) not in (await at.post("/openai/chat/completions", {**CHAT, "stream": True}))[1]
                assert counts(at.log)[0]["calls"] == 2

    asyncio.run(go())


def test_what_a_provider_says_passes_is_cured_and_costs_once(way: Any) -> None:
    async def go() -> None:
        with Provider(script=[(429, {"retry-after": "0"}), (500, {"retry-after-ms": "1"}), "cut"]) as provider:
            async with way(provider.url) as at:
                status, _, _ = await at.post("/openai/chat/completions", CHAT)
                assert (status, len(provider.seen)) == (200, 4)
                assert counts(at.log) == [{"model": "gpt-x", **OPENAI_COUNTS, "calls": 1}]
                assert (at.log.faults, at.log.retried, at.log.unmeasured) == ([], 3, 1)  # what broke off may be billed

    asyncio.run(go())


def test_what_can_not_be_cured_is_the_providers_fault_and_its_own_answer(way: Any) -> None:
    async def go() -> None:
        with Provider(script=[(503, {"retry-after": "0"})] * 4) as provider:
            async with way(provider.url) as at:
                status, body, headers = await at.post("/openai/chat/completions", CHAT)
                assert (status, len(provider.seen), headers["retry-after"]) == (503, 4, "0")
                assert KEY not in body and "[key]" in body  # the provider had quoted it
                assert counts(at.log) == []
                assert [(one.fault, one.status, one.tries) for one in at.log.faults] == [("provider", 503, 4)]

    asyncio.run(go())


def test_a_provider_that_wants_an_hour_is_not_waited_for(way: Any) -> None:
    async def go() -> None:
        with Provider(script=[(429, {"retry-after": "3600"})]) as provider:
            async with way(provider.url) as at:
                assert (await at.post("/openai/chat/completions", CHAT))[0] == 429
                at.log.read()
                assert (len(provider.seen), [one.fault for one in at.log.faults]) == (1, ["rate_limit"])

    asyncio.run(go())


def test_an_agents_own_mistake_is_no_fault_and_not_tried_again(way: Any) -> None:
    async def go() -> None:
        with Provider(script=[(400, {})]) as provider:
            async with way(provider.url) as at:
                assert (await at.post("/openai/chat/completions", CHAT))[0] == 400
                at.log.read()
                assert (len(provider.seen), at.log.faults, at.log.calls) == (1, [], 0)

    asyncio.run(go())


def test_nobody_there_is_told_in_the_providers_shape(way: Any) -> None:
    async def go() -> None:
        async with way("http://127.0.0.1:1") as at:
            status, body, _ = await at.post("/anthropic/v1/messages", {"model": "claude-x", "messages": []})
            assert (status, json.loads(body)["type"]) == (502, "error")
            at.log.read()
            assert [one.fault for one in at.log.faults] == ["unreachable"]

    asyncio.run(go())


@pytest.mark.parametrize("shape", ["/openai/chat/completions", "/anthropic/v1/messages"])
def test_a_stream_that_breaks_off_breaks_off_for_the_caller_and_its_usage_is_not_whole(way: Any, shape: str) -> None:
    async def go() -> None:
        with Provider(script=["cut"]) as provider:
            async with way(provider.url) as at:
                with pytest.raises(aiohttp.ClientPayloadError):
                    await at.post(shape, {**CHAT, "stream": True})
                while True:
                    at.log.read()
                    if not at.log.under_way:
                        break
                    await asyncio.sleep(0.01)
                assert ([one.fault for one in at.log.faults], at.log.unmeasured, at.log.calls) == (["cut"], 1, 1)

    asyncio.run(go())


def test_a_caller_that_leaves_does_not_get_away_without_the_rest_of_its_bill(way: Any) -> None:
    async def go() -> None:
        with Provider() as provider:
            async with way(provider.url) as at:
                headers = {"x-api-key": TOKEN}
                body = {"model": "claude-x", "messages": [], "stream": True}
                async with at.session.post(f"{at.url}/anthropic/v1/messages", json=body, headers=headers) as response:
                    await response.content.readany()
                    response.close()
                while not at.log.calls:
                    await asyncio.sleep(0.01)
                    at.log.read()
                assert counts(at.log) == [{"model": "claude-x", **ANTHROPIC_COUNTS, "calls": 1}]

    asyncio.run(go())


def test_the_budget_stops_the_next_call(way: Any) -> None:
    """One call costs 0.6 + 0.04 + 0.1 dollars."""

    async def go() -> None:
        with Provider() as provider:
            async with way(provider.url, cost_usd=1.0) as at:
                statuses = [(await at.post("/openai/chat/completions", CHAT))[0] for _ in range(4)]
                assert statuses == [200, 200, 402, 402]
                _, body, _ = await at.post("/anthropic/v1/messages", CHAT)
                assert json.loads(body) == {
                    "type": "error",
                    "error": {
                        "type": "budget_exceeded",
                        "message": "evals model gateway: this cell may use no more: its limit of 1.0 USD is reached",
                    },
                }
                at.log.read()
                assert (at.log.refusals, at.log.calls, len(provider.seen)) == ({"cost"}, 2, 2)
            async with way(provider.url, cost_usd=1.0) as again:  # another process knows what was spent
                assert (await again.post("/openai/chat/completions", CHAT))[0] == 402

    asyncio.run(go())


def test_turns_are_counted_while_they_are_under_way(way: Any) -> None:
    async def go() -> None:
        with Provider(delay_s=0.2) as provider:
            async with way(provider.url, turns=3) as at:
                replies = await asyncio.gather(*(at.post("/openai/chat/completions", CHAT) for _ in range(6)))
                assert sorted(status for status, _, _ in replies) == [200, 200, 200, 402, 402, 402]

    asyncio.run(go())


@pytest.mark.parametrize("token", ["", KEY, "evals-box.another", "evals-other.token-of-this-cell", "evals-../box.x"])
def test_without_the_token_nobody_is_asked(way: Any, token: str) -> None:
    async def go() -> None:
        with Provider() as provider:
            async with way(provider.url) as at:
                assert (await at.post("/openai/chat/completions", CHAT, token))[0] == 401
                assert provider.seen == []

    asyncio.run(go())


@pytest.mark.parametrize("token", [b"evals-box.\xff\xfe", b"evals-\xff.x", b"\xf0\x9f\x92\xa9"])
def test_a_token_that_is_no_text_is_none(way: Any, token: bytes) -> None:
    async def go() -> None:
        with Provider() as provider:
            async with way(provider.url) as at:
                reader, writer = await asyncio.open_connection(*at.server.endpoint)
                body = json.dumps(CHAT).encode()
                head = b"POST /openai/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer " + token
                writer.write(head + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                assert (await reader.read()).startswith(b"HTTP/1.1 401 ")
                writer.close()
                assert provider.seen == []

    asyncio.run(go())


@pytest.mark.parametrize("path", ["/openai/files", "/", "/openai/chat/completions/../../../admin"])
def test_other_paths_do_not_reach_the_provider_with_its_key(way: Any, path: str) -> None:
    async def go() -> None:
        with Provider() as provider:
            async with way(provider.url) as at:
                assert (await at.post(path, CHAT))[0] == 404
                assert provider.seen == []

    asyncio.run(go())


def test_all_sandboxes_together_ask_a_provider_no_more_than_so_much_at_once(way: Any) -> None:
    async def go() -> None:
        with Provider(delay_s=0.3) as provider:
            async with way(provider.url, boxes=10) as at:
                calls = [at.post("/openai/chat/completions", CHAT, token_of(number)) for number in range(10) for _ in range(4)]
                await asyncio.gather(*calls)
                assert provider.most == MAX_CALLS

    asyncio.run(go())
