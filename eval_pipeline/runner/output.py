"""Reading a stored output bundle. Runs in a worker process: a bundle is whatever an agent left."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from eval_pipeline.domain.outcome import AgentResult, read_result
from eval_pipeline.domain.usage import Usage, total_by_model, usage_from_event

RESULT_MAX_BYTES = 16 * 2**20
LINE_MAX_BYTES = 16 * 2**20
FILE_MAX_BYTES = 64 * 2**20
_CHUNK = 2**20


@dataclass(frozen=True, kw_only=True)
class Output:
    """files: relative path below files/ -> content, of the files that are not too large (those are named in `too_large`).

    bad_lines: transcript lines that are not events. calls: model calls, that is usage events.
    """

    result: AgentResult
    usages: list[Usage] = field(default_factory=list[Usage])
    calls: int = 0
    n_events: int = 0
    bad_lines: int = 0
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    too_large: list[str] = field(default_factory=list[str])


def read_output(bundle: Path) -> Output:
    """Raise tarfile.TarError or OSError when the bundle itself is broken; nothing an agent wrote raises."""
    result = AgentResult(status=None, error="wrote no result.json")
    events = TranscriptReader()
    files: dict[str, bytes] = {}
    too_large: list[str] = []
    with tarfile.open(bundle, "r|gz") as archive:
        for member in archive:
            stream = archive.extractfile(member) if member.isfile() else None
            if stream is None:
                continue
            if member.name == "out/result.json":
                result = _result(stream, member.size)
            elif member.name == "out/transcript.jsonl":
                events.feed_stream(stream)
            elif member.name.startswith("out/files/"):
                name = member.name.removeprefix("out/files/")
                if member.size <= FILE_MAX_BYTES:
                    files[name] = stream.read()
                else:
                    too_large.append(name)
    return Output(
        result=result,
        usages=total_by_model(events.usages),
        calls=len(events.usages),
        n_events=events.n_events,
        bad_lines=events.bad_lines,
        files=files,
        too_large=too_large,
    )


def _result(stream: IO[bytes], size_bytes: int) -> AgentResult:
    if size_bytes > RESULT_MAX_BYTES:
        return AgentResult(status=None, error=f"result.json is {size_bytes} bytes; at most {RESULT_MAX_BYTES} are read")
    try:
        return read_result(json.loads(stream.read()))
    except (ValueError, RecursionError) as error:
        return AgentResult(status=None, error=f"result.json is not JSON: {error}")


class TranscriptReader:
    """Takes a transcript in pieces of any size and keeps its usage events."""

    def __init__(self) -> None:
        self.usages: list[Usage] = []
        self.n_events = 0
        self.bad_lines = 0
        self._rest = b""
        self._skipping = False

    def feed_stream(self, stream: IO[bytes]) -> None:
        while chunk := stream.read(_CHUNK):
            self.feed(chunk)
        self.close()

    def feed(self, chunk: bytes) -> None:
        for line, ended in _pieces(chunk):
            if self._skipping:
                self._skipping = not ended
                continue
            self._rest += line
            if ended:
                self._line(self._rest)
                self._rest = b""
            elif len(self._rest) > LINE_MAX_BYTES:
                self.bad_lines += 1
                self._rest, self._skipping = b"", True

    def close(self) -> None:
        """The last line counts even without its newline."""
        if self._rest:
            self._line(self._rest)
            self._rest = b""

    def _line(self, line: bytes) -> None:
        if not line.strip():
            return
        if b'"usage"' not in line:
            self.n_events += 1
            return
        try:
            event: Any = json.loads(line)
            if isinstance(event, dict) and event.get("type") == "usage":  # pyright: ignore[reportUnknownMemberType]
                self.usages.append(usage_from_event(event))  # pyright: ignore[reportUnknownArgumentType]
            self.n_events += 1
        except (ValueError, RecursionError):
            self.bad_lines += 1


def _pieces(chunk: bytes) -> Iterator[tuple[bytes, bool]]:
    start = 0
    while (end := chunk.find(b"\n", start)) >= 0:
        yield chunk[start:end], True
        start = end + 1
    if start < len(chunk):
        yield chunk[start:], False
