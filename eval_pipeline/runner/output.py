"""Reading a stored output bundle. Runs in a worker process: a bundle is whatever an agent left."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from eval_pipeline.domain.outcome import AgentResult, read_result
from eval_pipeline.domain.usage import Total, Usage, counts_from_event
from eval_pipeline.runner.usage_lines import counts_from_line
from eval_pipeline.scoring.bundle_tar import bundle_members
from eval_pipeline.vault.searching import Expressions

RESULT_MAX_BYTES = 16 * 2**20
LINE_MAX_BYTES = 16 * 2**20
FILE_MAX_BYTES = 64 * 2**20
FILES_MAX_BYTES = 256 * 2**20
MODELS_MAX = 100
_CHUNK = 2**18
_USAGE = b'"usage"'
_IS_USAGE = 0


@dataclass(frozen=True, kw_only=True)
class Output:
    """files: relative path below files/ -> content, of those that are not too large, alone or together (`too_large` names them).

    usages: one sum a model. bad_lines: transcript lines that are no JSON object, or a usage event that can't be read.
    calls: model calls, that is usage events. result_json: the whole result.json; None when it is not as the contract says.
    """

    result: AgentResult
    result_json: Any = None
    usages: list[Usage] = field(default_factory=list[Usage])
    calls: int = 0
    n_events: int = 0
    bad_lines: int = 0
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    too_large: list[str] = field(default_factory=list[str])


def read_output(bundle: Path) -> Output:
    """Raise tarfile.TarError, OSError or TypeError when the bundle itself is broken; nothing an agent wrote raises."""
    result, result_json = AgentResult(status=None, error="wrote no result.json"), None
    events = TranscriptReader()
    files: dict[str, bytes] = {}
    too_large: list[str] = []
    left_bytes = FILES_MAX_BYTES
    for member, stream in bundle_members(bundle):
        if stream is None:
            continue
        if member.name == "out/result.json":
            result, result_json = _result(stream, member.size)
        elif member.name == "out/transcript.jsonl":
            events.feed_stream(stream)
        elif member.name.startswith("out/files/"):
            name = member.name.removeprefix("out/files/")
            if member.size <= min(FILE_MAX_BYTES, left_bytes):
                files[name] = stream.read()
                left_bytes -= member.size
            else:
                too_large.append(name)
    return Output(
        result=result,
        result_json=result_json,
        usages=events.usages,
        calls=events.calls,
        n_events=events.n_events,
        bad_lines=events.bad_lines,
        files=files,
        too_large=too_large,
    )


def _result(stream: IO[bytes], size_bytes: int) -> tuple[AgentResult, Any]:
    if size_bytes > RESULT_MAX_BYTES:
        error = f"result.json is {size_bytes} bytes; at most {RESULT_MAX_BYTES} are read"
        return AgentResult(status=None, error=error), None
    data = stream.read()
    result = parse_result(data)
    return result, None if result.status is None else json.loads(data)


def parse_result(data: bytes) -> AgentResult:
    try:
        return read_result(json.loads(data))
    except (ValueError, RecursionError) as error:
        return AgentResult(status=None, error=f"result.json is not JSON: {error}")
    except MemoryError:
        return AgentResult(status=None, error="result.json needs too much memory to be read")


class TranscriptReader:
    """Takes a transcript in pieces of any size and adds up its usage events. How it is cut changes nothing."""

    def __init__(self) -> None:
        self.calls = 0
        self.n_events = 0
        self.bad_lines = 0
        self._totals: dict[str, Total] = {}
        self._begun: list[bytes] = []
        self._begun_bytes = 0
        self._skipping = False

    @property
    def usages(self) -> list[Usage]:
        """One sum a model, in order of first use."""
        return [total.usage(model) for model, total in self._totals.items()]

    def feed_stream(self, stream: IO[bytes]) -> None:
        while chunk := stream.read(_CHUNK):
            self.feed(chunk)
        self.close()

    def feed(self, chunk: bytes) -> None:
        first, last = chunk.find(b"\n"), chunk.rfind(b"\n")
        if first < 0:
            self._piece(chunk, ended=False)
            return
        self._piece(chunk[:first], ended=True)
        if first < last:
            self._whole(chunk[first + 1 : last])
        self._piece(chunk[last + 1 :], ended=False)

    def close(self) -> None:
        """The last line counts even without its newline."""
        if self._begun:
            self._line(self._taken())

    def _piece(self, piece: bytes, *, ended: bool) -> None:
        """Of a line, or its end."""
        if self._skipping:
            self._skipping = not ended
            return
        self._begun_bytes += len(piece)
        if self._begun_bytes > LINE_MAX_BYTES:
            self.bad_lines += 1
            self._begun, self._begun_bytes, self._skipping = [], 0, not ended
            return
        self._begun.append(piece)
        if ended:
            self._line(self._taken())

    def _taken(self) -> bytes:
        line = b"".join(self._begun)
        self._begun, self._begun_bytes = [], 0
        return line

    def _whole(self, lines: bytes) -> None:
        """Lines with newlines between them: those that say nothing of usage are only counted, all at once."""
        plain = lines.startswith(b"{") and lines.endswith(b"}") and len(lines) <= LINE_MAX_BYTES
        found = _looked().ends(lines) if plain else []
        if not plain or any(what != _IS_USAGE for what, _ in found):
            for line in lines.split(b"\n"):
                self._piece(line, ended=True)
            return
        self.n_events += len(lines) - len(lines.replace(b"\n", b"")) + 1  # bytes.count goes byte by byte
        past = 0
        for _, at in sorted(found):
            if at > past:
                begin, past = lines.rfind(b"\n", 0, at) + 1, lines.find(b"\n", at)
                past = len(lines) if past < 0 else past
                self.n_events -= 1
                self._object(lines[begin:past])

    def _line(self, line: bytes) -> None:
        line = line.strip()
        if not line:
            return
        if not (line.startswith(b"{") and line.endswith(b"}")):
            self.bad_lines += 1
        elif _USAGE in line:
            self._object(line)
        else:  # not parsed: a transcript is large and only its usage counts
            self.n_events += 1

    def _object(self, line: bytes) -> None:
        try:
            counted = counts_from_line(line) or _counted(as_object(line))
            if counted is not None:
                self._add(*counted)
            self.n_events += 1
        except (ValueError, RecursionError, MemoryError):
            self.bad_lines += 1

    def _add(self, model: str, counts: Sequence[int]) -> None:
        total = self._totals.get(model)
        if total is None:
            if len(self._totals) >= MODELS_MAX:
                raise ValueError(f"more than {MODELS_MAX} models")
            total = self._totals[model] = Total()
        total.add(counts)
        self.calls += 1


def _counted(event: dict[str, Any]) -> tuple[str, Sequence[int]] | None:
    return counts_from_event(event) if event.get("type") == "usage" else None


_DECODER = json.JSONDecoder()


def as_object(line: bytes) -> dict[str, Any]:
    """As json.loads of what begins with a brace, without its guess at an encoding where the second byte leaves none but UTF-8."""
    if not line[1]:
        return json.loads(line)
    text = line.decode("utf-8", "surrogatepass")
    event, end = _DECODER.raw_decode(text)
    if end != len(text):
        raise ValueError("more than a JSON object")
    return event


@functools.cache
def _looked() -> Expressions:
    """For usage, and for a newline that does not stand between two objects."""
    return Expressions([_USAGE, rb"[^}]\n", rb"\n[^{]"], once=(1, 2))
