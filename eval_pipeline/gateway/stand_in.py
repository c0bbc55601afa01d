"""A stand-in for a language model, behind the shape of OpenAI's chat completions.

It answers from its prompt and nothing else. Given tools it searches for the question's own words, reads what the results rank
best, and quotes the sentences that overlap with the question (extraction.py). What a tool is for follows from its name: it
contains `search`, `read` or `write`; its arguments are the required ones of its schema, in that order.

Tokens are ceil(characters / 4) of the JSON of a message. Cached are the tools and messages of the call before: all messages ahead
of the last assistant message. Time: CALL_S a call, plus uncached input and output at the rates below; the caller waits `delay_s`.
With temperature 0 a request has one answer; above 0 `seed` moves scores by up to 15 per cent times the temperature.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from eval_pipeline.gateway.extraction import Jitter, Source, compose, content_words, report, table

MODEL = "stand-in"
CALL_S, INPUT_TOKENS_PER_S, OUTPUT_TOKENS_PER_S = 0.03, 20_000.0, 1_500.0
MAX_QUERIES, READS_PER_TURN, MAX_READS = 3, 3, 12
_FILE = re.compile(r"\b[\w-]+\.(?:md|txt|docx|xlsx|csv)\b")
_TABLES = (".xlsx", ".csv")

Json = dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """payload: the JSON to send with `status`. delay_s: how long a model of this speed would have taken."""

    status: int
    payload: Json
    delay_s: float


@dataclass(frozen=True)
class _Call:
    tool: str
    arguments: Json
    result: Any


class _Shape(BaseModel):
    """A part of a request: strict in what is used here, indifferent to what is not."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


class _Function(_Shape):
    name: str
    arguments: str


class _ToolCall(_Shape):
    id: str
    function: _Function


class _Part(_Shape):
    text: str = ""


class _Message(_Shape):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _answers_a_call(self) -> _Message:
        if self.role == "tool" and self.tool_call_id is None:
            raise ValueError("a message of the role 'tool' needs tool_call_id")
        return self

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content or [])


class _Parameters(_Shape):
    required: list[str] = []


class _Offer(_Shape):
    name: str
    parameters: _Parameters = _Parameters()


class _Tool(_Shape):
    function: _Offer


class _Request(_Shape):
    model: str
    messages: Annotated[list[_Message], Field(min_length=1)]
    tools: list[_Tool] | None = None
    tool_choice: Any = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    seed: int | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stream: Literal[False] | None = None

    def offered(self) -> dict[str, list[str]]:
        """Name -> required arguments of the tools that may be called."""
        tools = [] if self.tool_choice == "none" else self.tools or []
        return {tool.function.name: tool.function.parameters.required for tool in tools}


def respond(body: Any) -> Reply:
    """Answer one chat.completions request. A malformed one gets status 400 and an error in OpenAI's shape."""
    try:
        request = _Request.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        param = ".".join(str(part) for part in first["loc"]) or None
        detail = {"message": f"{param or 'body'}: {first['msg']}", "type": "invalid_request_error", "param": param, "code": None}
        return Reply(400, {"error": detail}, 0.0)
    temperature = 1.0 if request.temperature is None else request.temperature
    message = _encodable(_next_message(request.messages, request.offered(), _jitter(request.seed or 0, temperature)))
    reason = "tool_calls" if "tool_calls" in message else "stop"
    most = request.max_completion_tokens or request.max_tokens
    if most is not None and tokens(message["content"]) > most:
        message, reason = message | {"content": message["content"][: 4 * most]}, "length"
    return _reply(body, message, reason)


def _reply(body: Json, message: Json, reason: str) -> Reply:
    prompt, cached = prompt_tokens(body["messages"], body.get("tools"))
    output = tokens(message)
    payload = {
        "id": "chatcmpl-" + hashlib.sha256(_text(body).encode("utf-8", "surrogatepass")).hexdigest()[:24],
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }
    return Reply(200, payload, CALL_S + (prompt - cached) / INPUT_TOKENS_PER_S + output / OUTPUT_TOKENS_PER_S)


def tokens(value: Any) -> int:
    return math.ceil(len(_text(value)) / 4)


def prompt_tokens(messages: Sequence[Json], tools: Any) -> tuple[int, int]:
    """All tokens of a prompt, and how many of them the call before had sent already."""
    counts = [tokens(message) for message in messages]
    offered = tokens(tools) if tools else 0
    assistant = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    cached = offered + sum(counts[: assistant[-1]]) if assistant and assistant[-1] > 0 else 0
    return offered + sum(counts), cached


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _encodable(message: Json) -> Json:
    """Half a surrogate pair can come in through JSON but can't go out in UTF-8."""
    return json.loads(_text(message).encode("utf-8", "replace"))


def _jitter(seed: int, temperature: float) -> Jitter:
    def factor(text: str) -> float:
        if temperature <= 0:
            return 1.0
        drawn = int.from_bytes(hashlib.sha256(f"{seed}\0{text}".encode("utf-8", "surrogatepass")).digest()[:8], "big") / 2**64
        return 1.0 + 0.15 * min(temperature, 2.0) * (2 * drawn - 1)

    return factor


def _next_message(messages: Sequence[_Message], tools: dict[str, list[str]], jitter: Jitter) -> Json:
    """Search once, read until there is nothing left to read, write the file that is asked for, answer."""
    question = next((m.text for m in reversed(messages) if m.role == "user"), "")
    calls = _calls(messages)
    search, read, write = (_tool_for(tools, purpose) for purpose in ("search", "read", "write"))
    if search and not _used(calls, search):
        return _tool_message(len(messages), [(search, [query]) for query in _queries(question)], tools)
    if read and (paths := _unread(calls, read)):
        return _tool_message(len(messages), [(read, [path]) for path in paths], tools)
    sources = _sources(calls)
    file = _FILE.search(question)
    if write and file and not _used(calls, write):
        content = (table if file.group().endswith(_TABLES) else report)(question, sources, jitter)
        return _tool_message(len(messages), [(write, [file.group(), content])], tools)
    written = f"I have written {file.group()}.\n" if file and any("write" in call.tool for call in calls) else ""
    return {"role": "assistant", "content": written + compose(question, sources, jitter), "refusal": None}


def _tool_message(salt: int, calls: Sequence[tuple[str, list[str]]], tools: dict[str, list[str]]) -> Json:
    made = [
        {
            "id": f"call_{salt}_{index}",
            "type": "function",
            "function": {"name": name, "arguments": _text(dict(zip(tools[name], values, strict=False)))},
        }
        for index, (name, values) in enumerate(calls)
    ]
    return {"role": "assistant", "content": None, "refusal": None, "tool_calls": made}


def _queries(question: str) -> list[str]:
    """The whole question's words, then each sentence's."""
    sentences = [question, *re.split(r"(?<=[.?!:])\s+", question)]
    queries = [" ".join(content_words(sentence)) for sentence in sentences if len(content_words(sentence)) >= 2]
    return list(dict.fromkeys(queries))[:MAX_QUERIES] or [question]


def _tool_for(tools: dict[str, list[str]], purpose: str) -> str | None:
    return next((name for name in tools if purpose in name.lower() and tools[name]), None)


def _used(calls: Sequence[_Call], tool: str) -> bool:
    return any(call.tool == tool for call in calls)


def _unread(calls: Sequence[_Call], read: str) -> list[str]:
    """The next documents to read, by the sum of 1 / rank over the searches; none once a read was refused."""
    reads = [call for call in calls if call.tool == read]
    done = {str(value) for call in reads for value in call.arguments.values()}
    if any(_is_error(call.result) for call in reads):
        return []
    worth: dict[str, float] = {}
    for hits in (_hits(call.result) for call in calls if "search" in call.tool.lower()):
        for position, (name, _) in enumerate(hits):
            worth[name] = worth.get(name, 0.0) + 1 / (1 + position)
    ranked = sorted((name for name in worth if name not in done), key=lambda name: (-worth[name], name))
    return ranked[: max(0, min(READS_PER_TURN, MAX_READS - len(done)))]


def _sources(calls: Sequence[_Call]) -> list[Source]:
    """What was read; without any reading, the passages that the searches returned."""
    read = [Source(name, text) for call in calls if "read" in call.tool.lower() for name, text in _documents(call)]
    found = [Source(name, text) for call in calls if "search" in call.tool.lower() for name, text in _hits(call.result)]
    return list(dict.fromkeys(read or found))


def _documents(call: _Call) -> list[tuple[str, str]]:
    if _is_error(call.result):
        return []
    if isinstance(call.result, dict):
        return _named_text(cast("Json", call.result))
    return [(next(map(str, call.arguments.values()), call.tool), str(call.result))]


def _hits(result: Any) -> list[tuple[str, str]]:
    """(name, passage) of every item in the first list of a search result."""
    values = list(cast("Json", result).values()) if isinstance(result, dict) else [result]
    items = next((cast("list[Any]", value) for value in values if isinstance(value, list)), list[Any]())
    return [pair for item in items if isinstance(item, dict) for pair in _named_text(cast("Json", item))]


def _named_text(item: Json) -> list[tuple[str, str]]:
    name = next((item[key] for key in ("path", "document", "id", "name", "title") if isinstance(item.get(key), str)), None)
    text = next((item[key] for key in ("text", "content", "passage", "snippet") if isinstance(item.get(key), str)), "")
    return [] if name is None else [(name, text)]


def _is_error(result: Any) -> bool:
    return isinstance(result, dict) and "error" in result


def _calls(messages: Sequence[_Message]) -> list[_Call]:
    """The tool calls since the last question that have a result, in order."""
    start = max((index for index, message in enumerate(messages) if message.role == "user"), default=0)
    results = {message.tool_call_id: message.text for message in messages[start:] if message.role == "tool"}
    made = [call for message in messages[start:] for call in message.tool_calls or []]
    return [
        _Call(call.function.name, _parsed_object(call.function.arguments), _parsed(results[call.id]))
        for call in made
        if call.id in results
    ]


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _parsed_object(text: str) -> Json:
    parsed = _parsed(text)
    return cast("Json", parsed) if isinstance(parsed, dict) else {}
