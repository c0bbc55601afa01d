"""Conversations in what OpenTelemetry exports, by its conventions for generative AI.

Read are spans and log records, as OTLP's JSON and as SDKs print them: the attributes `gen_ai.input.messages` and
`gen_ai.output.messages`, and the older events `gen_ai.user.message`, `gen_ai.assistant.message`, `gen_ai.choice` and the like.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

_LISTS = ("gen_ai.system_instructions", "gen_ai.input.messages", "gen_ai.output.messages")
_EVENTS = {f"gen_ai.{role}.message": role for role in ("system", "user", "assistant", "tool")} | {"gen_ai.choice": "assistant"}


def otel_conversations(documents: list[Any]) -> list[list[Any]]:
    """Messages ({role, content or parts}) of each span, and of the log records of each span."""
    records = [record for document in documents for record in _records(document)]
    found = [_of_lists(_attributes(record)) for record in records]
    events: dict[Any, list[Any]] = {}
    for record in records:
        span = record.get("spanId", record.get("span_id"))
        if (message := _of_event(record)) is not None:
            events.setdefault(span, []).append(message)
    return [conversation for conversation in [*found, *events.values()] if conversation]


def _records(document: Any, span: Any = None) -> Iterator[dict[str, Any]]:
    """Spans, their events and log records, however they are nested. An event belongs to its span."""
    if isinstance(document, list):
        for one in document:
            yield from _records(one, span)
    if not isinstance(document, dict):
        return
    here = (
        document.get(
            "spanId",
            document.get(
                "span_id", (document.get("context") or {}).get("span_id") if isinstance(document.get("context"), dict) else None
            ),
        )
        or span
    )
    if "attributes" in document or "body" in document:
        yield {**document, "spanId": here}
    for key in ("resourceSpans", "resourceLogs", "scopeSpans", "scopeLogs", "spans", "logRecords", "events", "data"):
        yield from _records(document.get(key), here if key == "events" else span)


def _attributes(record: dict[str, Any]) -> dict[str, Any]:
    given = record.get("attributes")
    if isinstance(given, list):
        return {one["key"]: _value(one.get("value")) for one in given if isinstance(one, dict) and "key" in one}
    return given if isinstance(given, dict) else {}


def _value(value: Any) -> Any:
    """An OTLP AnyValue as it is in JSON; anything else as it stands."""
    if not isinstance(value, dict) or len(value) != 1:
        return value
    ((kind, inner),) = value.items()
    if kind == "arrayValue":
        return [_value(one) for one in inner.get("values", [])]
    if kind == "kvlistValue":
        return {one["key"]: _value(one.get("value")) for one in inner.get("values", [])}
    return inner if kind in ("stringValue", "boolValue", "intValue", "doubleValue", "bytesValue") else value


def _of_lists(attributes: dict[str, Any]) -> list[Any]:
    system, asked, answered = (_parsed(attributes.get(name)) for name in _LISTS)
    said = [*(asked if isinstance(asked, list) else []), *(answered if isinstance(answered, list) else [])]
    return [*([{"role": "system", "parts": system}] if system and said else []), *said]


def _of_event(record: dict[str, Any]) -> dict[str, Any] | None:
    attributes = _attributes(record)
    name = record.get("eventName") or record.get("event_name") or attributes.get("event.name") or record.get("name")
    role = _EVENTS.get(name) if isinstance(name, str) else None
    if role is None:
        return None
    body = _parsed(_value(record.get("body")))
    told = body if isinstance(body, dict) else attributes
    inner = _parsed(told.get("message"))
    told = inner if isinstance(inner, dict) else told
    content = told.get("content", told.get("gen_ai.event.content", body if isinstance(body, str) else inner))
    parts = _parsed(content)
    is_list = isinstance(parts, list) and all(isinstance(part, dict) and "type" in part for part in parts)
    return {"role": told.get("role") or role, "content": parts if is_list else content, "name": told.get("name")}


def _parsed(value: Any) -> Any:
    """Structures travel as JSON in a string, too."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value
