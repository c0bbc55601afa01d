"""A transcript as pages of events. It is an agent's own: any line may be anything, of any size, and there may be very many."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, cast

PAGE_CHARS, PAGE_EVENTS, EVENT_CHARS, LINE_BYTES = 200_000, 400, 16_000, 2**20
LONG_CHARS = 1_200
_TOKENS = ("input_uncached", "cache_read", "cache_write_5m", "cache_write_1h", "output", "reasoning")
_KNOWN = {"type", "role", "name", "elapsed_s", "content", "text", "note", "error", "arguments", "answer", "id", "tool_call_id"}


@dataclass(frozen=True, kw_only=True)
class Event:
    """kind: its type, or `unreadable`. who: role or name of a tool. parts: (label or "", text). n_cut: characters left out."""

    number: int
    kind: str
    who: str
    elapsed_s: float | None
    parts: list[tuple[str, str]]
    n_cut: int = 0

    @property
    def chars(self) -> int:
        return sum(len(text) for _, text in self.parts) + 200


def pages(stream: IO[bytes]) -> Iterator[list[Event]]:
    """One page in memory at a time; none without events."""
    page: list[Event] = []
    chars = 0
    for event in events(stream):
        if page and (chars + event.chars > PAGE_CHARS or len(page) >= PAGE_EVENTS):
            yield page
            page, chars = [], 0
        page.append(event)
        chars += event.chars
    if page:
        yield page


def events(stream: IO[bytes]) -> Iterator[Event]:
    number = 0
    while line := stream.readline(LINE_BYTES):
        n_left_out = 0
        while not line.endswith(b"\n") and len(line) >= LINE_BYTES and (rest := stream.readline(LINE_BYTES)):
            n_left_out += len(rest)
            if rest.endswith(b"\n"):
                break
        if text := line.decode("utf-8", "replace").strip():
            number += 1
            yield _event(number, text, n_left_out)


def _event(number: int, line: str, n_left_out: int) -> Event:
    try:
        found = json.loads(line) if not n_left_out else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return Event(
            number=number,
            kind="unreadable",
            who="",
            elapsed_s=None,
            parts=[("", line[:EVENT_CHARS])],
            n_cut=max(0, len(line) - EVENT_CHARS) + n_left_out,
        )
    event = cast(dict[str, Any], found)
    parts, n_cut = _cut(list(_usage(event) if event.get("type") == "usage" else _parts(event)))
    return Event(
        number=number,
        kind=_word(event.get("type")) or "event",
        who=_word(event.get("role") or event.get("name")),
        elapsed_s=_seconds(event.get("elapsed_s")),
        parts=parts,
        n_cut=n_cut,
    )


def _word(value: Any) -> str:
    return value[:80] if isinstance(value, str) else ""


def _seconds(value: Any) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and abs(value) < 1e9 else None


def _usage(event: dict[str, Any]) -> Iterator[tuple[str, str]]:
    counts = [f"{name.replace('_', ' ')} {event[name]}" for name in _TOKENS if event.get(name)]
    yield "", f"{event.get('model', '')}: {', '.join(counts) or 'nothing'}"


def _parts(event: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for key in ("content", "text", "note", "error", "answer", "arguments"):
        if event.get(key) not in (None, ""):
            yield key if key in ("error", "arguments") else "", _plain(event[key])
    rest = {key: value for key, value in event.items() if key not in _KNOWN and value is not None}
    if rest:
        yield f"more: {', '.join(rest)}"[:120], json.dumps(rest, ensure_ascii=False, indent=1)


def _plain(value: Any) -> str:
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False, indent=1)
    if value[:1] in ("{", "["):  # tools speak JSON in a string
        try:
            return json.dumps(json.loads(value), ensure_ascii=False, indent=1)
        except (ValueError, RecursionError):
            pass
    return value


def _cut(parts: list[tuple[str, str]]) -> tuple[list[tuple[str, str]], int]:
    kept: list[tuple[str, str]] = []
    left = EVENT_CHARS
    for label, text in parts:
        if left > 0:
            kept.append((label, text[:left]))
        left -= len(text)
    return kept, max(0, -left)
