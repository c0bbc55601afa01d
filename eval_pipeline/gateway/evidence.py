"""What the gateway saw, as files: they outlive the gateway and are read without it.

evidence/<sandbox>.jsonl    one line a connection: when it was refused, else when it ended; MAX_EVENTS of a verdict, whatever a sandbox does
evidence/<sandbox>.counts   how many there were in all, once one of them has no line; up to a second late
marks.jsonl                 starts and ends of the process
heartbeat                   its time of change is the last second the process was certainly there

Only what reaches the proxy is seen. A sandbox has no other route, so a connection past the proxy fails inside, and nobody is told.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from eval_pipeline.vault.redaction import Redactor

MAX_EVENTS = 1000
MAX_HOST_CHARS, MAX_ERROR_CHARS = 253, 300
KEPT_S = 30 * 86400


class Verdict(StrEnum):
    ALLOWED = "allowed"
    DENIED = "denied"
    DIAL_FAILED = "dial_failed"


@dataclass(frozen=True, kw_only=True)
class EgressEvent:
    """One connection from a sandbox. `error`: why it was denied, could not be dialled or broke; None otherwise.

    at: when it was accepted. duration_s: until it ended. host, port: None when the request named none.
    """

    at: datetime
    verdict: Verdict
    host: str | None
    port: int | None
    error: str | None = None
    duration_s: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0


@dataclass(frozen=True)
class Outage:
    """The gateway was away. start: the last second it was seen; end: None while it still is."""

    start: datetime
    end: datetime | None

    def overlaps(self, start: datetime, end: datetime) -> bool:
        return self.start <= end and (self.end is None or self.end >= start)


class EvidenceLog:
    """Appends one sandbox's events. A flood of one verdict crowds out no other. redactor: a host's name may be a secret's value."""

    def __init__(self, path: Path, redactor: Callable[[], Redactor]) -> None:
        self._path = path
        self._redactor = redactor
        self._counts = read_counts(path)
        self._unsaved = False

    def append(self, event: EgressEvent) -> None:
        self._counts[event.verdict] += 1
        if self.is_full(event.verdict, 1):
            self._unsaved = True
            return
        record = {**asdict(event), "at": event.at.isoformat()}
        for name, most in (("host", MAX_HOST_CHARS), ("error", MAX_ERROR_CHARS)):
            record[name] = record[name] and self._redactor().text(record[name])[:most]
        _append(self._path, record)

    def is_full(self, verdict: Verdict, spare: int = 0) -> bool:
        return self._counts[verdict] >= MAX_EVENTS + spare

    def save(self) -> None:
        """The counts, when lines no longer tell them."""
        if self._unsaved:
            partial = _counts_path(self._path).with_suffix(".partial")
            partial.write_text(json.dumps(self._counts))
            partial.rename(_counts_path(self._path))
            self._unsaved = False


def read_counts(path: Path) -> Counter[Verdict]:
    """How many events of each verdict there were, also of those that have no line in `path`."""
    counts = Counter(Verdict(line["verdict"]) for line in _lines(path))
    try:
        saved = json.loads(_counts_path(path).read_text())
    except FileNotFoundError:
        return counts
    return counts | Counter({Verdict(verdict): number for verdict, number in saved.items()})


def _counts_path(path: Path) -> Path:
    return path.with_suffix(".counts")


def read_events(path: Path) -> list[EgressEvent]:
    """The recorded events in the order they ended; empty when there is no file."""
    return [_event(line) for line in _lines(path)]


def _event(line: dict[str, Any]) -> EgressEvent:
    at, verdict = datetime.fromisoformat(line.pop("at")), Verdict(line.pop("verdict"))
    return EgressEvent(at=at, verdict=verdict, **line)


def mark(folder: Path, what: str, at: datetime | None = None) -> None:
    """what: start, stop (told to), idle (nobody was registered) or died."""
    _append(folder / "marks.jsonl", {"at": (at or datetime.now(UTC)).isoformat(), "mark": what})


def mark_start(folder: Path) -> None:
    """Begin a life; one that ended without a mark ended at its last heartbeat."""
    marks = _marks(folder)
    if marks and marks[-1][1] == "start":
        mark(folder, "died", last_beat(folder) or marks[-1][0])
    mark(folder, "start")
    beat(folder)


def beat(folder: Path) -> None:
    (folder / "heartbeat").touch()


def last_beat(folder: Path) -> datetime | None:
    try:
        return datetime.fromtimestamp((folder / "heartbeat").stat().st_mtime, UTC)
    except FileNotFoundError:
        return None


def read_outages(folder: Path, running: bool) -> list[Outage]:
    """Every time between an end and the next start, an idle end apart: nobody was there to miss the gateway."""
    marks = _marks(folder)
    if marks and marks[-1][1] == "start" and not running:
        marks.append((last_beat(folder) or marks[-1][0], "died"))
    found: list[Outage] = []
    for place, (at, what) in enumerate(marks):
        if what in ("died", "stop"):
            end = marks[place + 1][0] if place + 1 < len(marks) else None
            found.append(Outage(at, end))
    return found


def purge(folder: Path) -> None:
    """Remove evidence that nobody touched for KEPT_S."""
    oldest = datetime.now(UTC).timestamp() - KEPT_S
    for path in [*(folder / "evidence").iterdir(), *(folder / "models").glob("*.jsonl")]:
        if path.stat().st_mtime < oldest:
            path.unlink(missing_ok=True)


def _marks(folder: Path) -> list[tuple[datetime, str]]:
    return [(datetime.fromisoformat(line["at"]), line["mark"]) for line in _lines(folder / "marks.jsonl")]


def _append(path: Path, record: dict[str, object]) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, json.dumps(record).encode() + b"\n")
    finally:
        os.close(fd)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        text = path.read_text()
    except FileNotFoundError:
        return
    for line in text.split("\n")[:-1]:  # what stands after the last newline is still being written
        yield json.loads(line)
