"""A judge's client over real HTTP: what it sends and reads by itself is what the library would have sent and read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator
from typing import Any

import pytest
from support.loopback_judge import Fault, LoopbackJudge, completion, fails, loopback_judge, message, says, truncated

from eval_pipeline.domain.experiment import JudgeSpec
from eval_pipeline.scoring.judge_client import CallFailed, JudgeClient, JudgeUnusable

pytestmark = pytest.mark.slow

MODELS = ["openai:gpt-test", "openai:o3", "openai:llama-test", "anthropic:claude-test"]
SAID = {"criterion_id": "c", "evidence": "", "reasoning": "é", "verdict": "met"}
TEXTS = [
    "plain",
    'quotes " and \\ and \n and \\u0041',
    "é \u202e \u200d 🙂 \x7f",
    "<|im_start|>system [INST] <\u200d|im_end|>",
    "[[[BEGIN answer 0]]] <start_of_turn>",
    '"role": "user"',
]


@pytest.fixture(scope="module")
def server() -> Generator[LoopbackJudge]:
    with loopback_judge() as judge:
        yield judge


@pytest.fixture
def judge(server: LoopbackJudge) -> LoopbackJudge:
    server.faults.clear()
    server.requests, server.keys = [], []
    return server


def client(judge: LoopbackJudge, model: str) -> JudgeClient:
    base = judge.url.removesuffix("/v1") if model.startswith("anthropic") else judge.url
    return JudgeClient(JudgeSpec(model=model, base_url=base, temperature=0.5), "sk-of-a-judge", 5.0)


def question(text: str) -> str:
    return f"[[[BEGIN task 0]]]\n{text}\n[[[END task 0]]]\n\nThe criterion, whose criterion_id is c:"


@pytest.mark.filterwarnings("ignore:Sampling parameters")  # which some models do not know: the library leaves them out
@pytest.mark.parametrize("per_occurrence", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_every_request_is_what_the_library_writes(judge: LoopbackJudge, model: str, per_occurrence: bool) -> None:
    says_it = says(message(SAID) if model.startswith("anthropic") else completion(json.dumps(SAID)))

    async def ask(*texts: str) -> list[Any]:
        judge.requests, judge.keys = [], []
        judge.faults.extend([says_it] * len(texts))
        async with client(judge, model) as asked:
            for text in texts:
                await asked.ask(question(text), "why?", per_occurrence=per_occurrence)
        return [*zip(judge.requests, judge.keys, strict=True)]

    together = asyncio.run(ask(*TEXTS))
    assert together == [asyncio.run(ask(text))[0] for text in TEXTS]


def with_usage(**usage: Any) -> bytes:
    return completion(json.dumps(SAID), usage={"prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 1050, **usage})


def edited(reply: bytes, **more: Any) -> bytes:
    return json.dumps({**json.loads(reply), **more}).encode()


def chat(message: dict[str, Any], finish: str = "tool_calls") -> bytes:
    return edited(completion(None), choices=[{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}])


CALL = {"id": "call-1", "type": "function", "function": {"name": "verdict", "arguments": json.dumps(SAID)}}
OTHER = {"id": "call-2", "type": "function", "function": {"name": "other", "arguments": "{}"}}
USED = {"type": "tool_use", "id": "t", "name": "verdict", "input": SAID}
COUNTED = {"input_tokens": 600, "cache_read_input_tokens": 400, "cache_creation_input_tokens": 70, "output_tokens": 50}

CHATS: dict[str, Fault] = {
    "plain": says(completion(json.dumps(SAID))),
    "with words": says(completion(json.dumps(SAID), words="Here it is.")),
    "words alone": says(completion(None, words="No.")),
    "cut off": says(completion("{", finish="length")),
    "filtered": says(completion(json.dumps(SAID), finish="content_filter")),
    "refused": says(chat({"content": None, "refusal": "No.", "tool_calls": [CALL]})),
    "two verdicts": says(chat({"content": None, "tool_calls": [CALL, {**CALL, "id": "call-2"}]})),
    "another tool beside it": says(chat({"content": None, "tool_calls": [CALL, OTHER]})),
    "another tool": says(chat({"content": None, "tool_calls": [OTHER]})),
    "a token's joiner": says(completion(json.dumps({**SAID, "reasoning": "<\u200d|im_end|>"}, ensure_ascii=False))),
    "an escaped joiner": says(completion(json.dumps({**SAID, "reasoning": "<\u200d|im_end|>"}))),
    "no usage": says(completion(json.dumps(SAID), usage=None)),
    "a usage of nothing": says(with_usage(prompt_tokens=0, completion_tokens=0)),
    "reasoning": says(with_usage(completion_tokens_details={"reasoning_tokens": 20, "audio_tokens": 0})),
    "cached": says(with_usage(prompt_tokens_details={"cached_tokens": 400, "audio_tokens": 0})),
    "written to the cache": says(with_usage(prompt_tokens_details={"cached_tokens": 400, "cache_write_tokens": 100})),
    "no JSON": says(b'{"choices": ['),
    "another JSON": says(b"[]"),
    "half a character": says(
        chat({"content": None, "tool_calls": [{**CALL, "function": {"name": "verdict", "arguments": '"\ud800"'}}]})
    ),
    "nothing": says(b""),
    "half a body": truncated,
    "429": fails(429, Retry_After="3"),
    "no money": says(b'{"error": {"message": "no", "type": "insufficient_quota", "code": "insufficient_quota"}}', 429),
    "400": fails(400),
    "401": fails(401),
    "404": fails(404),
    "500": fails(500, Retry_After="3"),
    "elsewhere": says(b"", 307, Location="http://127.0.0.1:9/"),
}
MESSAGES: dict[str, Fault] = {
    "plain": says(message(SAID)),
    "with words": says(edited(message(SAID), content=[{"type": "text", "text": "So:"}, USED])),
    "words alone": says(edited(message(SAID), content=[{"type": "text", "text": "No."}], stop_reason="end_turn")),
    "cut off": says(edited(message(SAID), stop_reason="max_tokens")),
    "refused": says(edited(message(SAID), content=[], stop_reason="refusal")),
    "two verdicts": says(edited(message(SAID), content=[USED, {**USED, "id": "u"}])),
    "a token's joiner": says(message({**SAID, "reasoning": "<\u200d|im_end|>"})),
    "written to the cache": says(edited(message(SAID), usage=COUNTED)),
    "written for an hour": says(
        edited(
            message(SAID), usage={**COUNTED, "cache_creation": {"ephemeral_1h_input_tokens": 30, "ephemeral_5m_input_tokens": 40}}
        )
    ),
    "searched": says(edited(message(SAID), usage={**COUNTED, "server_tool_use": {"web_search_requests": 1}})),
    "429": fails(429, Retry_After="3"),
    "529": fails(529),
    "401": fails(401),
}
CASES = [("openai:gpt-test", name) for name in CHATS] + [("openai:llama-test", "a token's joiner")]
CASES += [("anthropic:claude-test", name) for name in MESSAGES]


@pytest.mark.parametrize("model, name", CASES)
def test_every_reply_is_read_as_the_library_reads_it(judge: LoopbackJudge, model: str, name: str) -> None:
    fault = (MESSAGES if model.startswith("anthropic") else CHATS)[name]
    plain = (MESSAGES if model.startswith("anthropic") else CHATS)["plain"]

    async def asked(asked: JudgeClient) -> Any:
        try:
            answered = await asked.ask(question("x"), "why?", per_occurrence=False)
            said = answered.arguments
            return answered.usage, answered.why, json.loads(said) if said and not answered.why else said
        except CallFailed as failed:
            return failed.kind, failed.retry_after_s, failed.unbilled
        except JudgeUnusable as unusable:
            return str(unusable)

    async def by_both() -> tuple[Any, Any]:
        judge.faults.extend([fault, plain, fault])
        async with client(judge, model) as fresh:
            by_library = await asked(fresh)
        async with client(judge, model) as known:
            await asked(known)
            return by_library, await asked(known)

    by_library, read = asyncio.run(by_both())
    assert read == by_library
    assert len(judge.requests) == 3, "what came is read again, never asked for again"
