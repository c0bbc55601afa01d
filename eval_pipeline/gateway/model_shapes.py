"""What the providers' APIs look like: where a call goes, where its answer tells the usage, how an error is worded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from eval_pipeline.analysis.stat_cost import Convention, disjoint_tokens
from eval_pipeline.domain.usage import Usage

Provider = Literal["openai", "anthropic"]
Json = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """Of one kind of call. path: below the provider's base URL; below ours it follows `/<provider>` in just the same way."""

    provider: Provider
    path: str
    name: Literal["chat", "responses", "messages"]

    @property
    def convention(self) -> Convention:
        return "anthropic" if self.provider == "anthropic" else "openai"


SHAPES = (
    Shape("openai", "/chat/completions", "chat"),
    Shape("openai", "/responses", "responses"),
    Shape("anthropic", "/v1/messages", "messages"),
)


def key_headers(provider: Provider, key: str) -> dict[str, str]:
    return {"x-api-key": key} if provider == "anthropic" else {"Authorization": f"Bearer {key}"}


def given_key(headers: Mapping[str, str]) -> str:
    """What the caller shows as its key, in either provider's way; empty when it shows none."""
    return headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ").strip()


def error_body(provider: Provider, kind: str, message: str) -> Json:
    """An error as the provider's own clients read it."""
    if provider == "anthropic":
        return {"type": "error", "error": {"type": kind, "message": message}}
    return {"error": {"message": message, "type": kind, "param": None, "code": kind}}


def usage_of(shape: Shape, model: str, told: Any) -> Usage | None:
    """In disjoint classes. None when the answer tells none, or counts that contradict each other."""
    if not isinstance(told, Mapping) or not told:
        return None
    told = dict(cast(Mapping[str, Any], told))
    if shape.name == "responses":
        told = _as_chat(told)
    try:
        tokens = disjoint_tokens(told, shape.convention)
        details = told.get("completion_tokens_details")
        reasoning = cast(Json, details).get("reasoning_tokens") or 0 if isinstance(details, Mapping) else 0
        return Usage(model=model, input_uncached=tokens.pop("input"), reasoning=reasoning, **tokens)
    except ValueError:
        return None


def _as_chat(told: Json) -> Json:
    """The newer API counts the same under other names."""
    names = {"input_tokens": "prompt_tokens", "output_tokens": "completion_tokens"}
    names |= {f"{old}_details": f"{new}_details" for old, new in names.items()}
    return {new: told.get(old) for old, new in names.items()}


def prepared(shape: Shape, body: Json) -> tuple[Json, bool]:
    """The body to send on, and whether its stream ends with a usage that the caller did not ask for."""
    if shape.name != "chat" or not body.get("stream"):
        return body, False
    options = body.get("stream_options")
    options = dict(cast(Json, options)) if isinstance(options, Mapping) else {}
    if options.get("include_usage"):
        return body, False
    return {**body, "stream_options": {**options, "include_usage": True}}, True


@dataclass
class StreamReader:
    """Reads a stream's events as they pass. whole: its last event was there. failed: the error that came instead of the rest.

    hide_usage: the event that holds nothing but the usage is kept back.
    """

    shape: Shape
    hide_usage: bool = False
    whole: bool = False
    failed: str | None = None
    told: Json = field(default_factory=dict[str, Any])
    _rest: bytes = b""
    _held: bytes = b""

    def feed(self, data: bytes) -> bytes:
        """What to pass on now: whole events."""
        data = self._held + data
        data, self._held = (data[:-1], data[-1:]) if data.endswith(b"\r") else (data, b"")  # half a line's end, maybe
        self._rest += data.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in data else data
        *events, self._rest = self._rest.split(b"\n\n")
        return b"".join(event + b"\n\n" for event in events if self._passes(event))

    def rest(self) -> bytes:
        """What came after the last whole event."""
        return self._rest + self._held

    def _passes(self, event: bytes) -> bool:
        data = b"\n".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))
        if data == b"[DONE]":
            self.whole = True
            return True
        try:
            parsed = json.loads(data) if data else None
        except ValueError:
            return True
        if not isinstance(parsed, dict):
            return True
        return self._read(cast(Json, parsed))

    def _read(self, event: Json) -> bool:
        if event.get("type") == "error" or isinstance(event.get("error"), dict):
            self.failed = json.dumps(event.get("error"))[:300]
        match self.shape.name:
            case "chat":
                self._note(event.get("usage"))
                return not (self.hide_usage and event.get("usage") and not event.get("choices"))
            case "responses":
                if event.get("type") in ("response.completed", "response.incomplete", "response.failed"):
                    self.whole = True
                    self._note(_inner(event, "response").get("usage"))
            case "messages":
                self._note(_inner(event, "message").get("usage"))
                self._note(event.get("usage"))
                self.whole = self.whole or event.get("type") == "message_stop"
        return True

    def _note(self, usage: Any) -> None:
        """Later counts are of all that came before: they take the place of earlier ones."""
        if isinstance(usage, dict):
            self.told |= {name: value for name, value in cast(Json, usage).items() if value is not None}


def _inner(event: Json, name: str) -> Json:
    found = event.get(name)
    return cast(Json, found) if isinstance(found, dict) else {}
