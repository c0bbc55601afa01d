"""One page a cell: what is stored of it, read as a stream, with pages of its own for a long transcript."""

from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from eval_pipeline.analysis import transcripts
from eval_pipeline.analysis.diffs import diff_lines
from eval_pipeline.analysis.evidence import Piece, marked, needles
from eval_pipeline.analysis.report_pages import page
from eval_pipeline.analysis.tables import ScoredCell
from eval_pipeline.domain.ids import CellKey
from eval_pipeline.domain.outcome import AgentResult, read_result
from eval_pipeline.domain.world_diff import WorldDiff
from eval_pipeline.errors import StoreError
from eval_pipeline.scoring.bundle_tar import bundle_members
from eval_pipeline.scoring.documents import SUFFIXES, Unreadable, suffix_of
from eval_pipeline.scoring.untrusted import read_document
from eval_pipeline.store.artifacts import ArtifactStore
from eval_pipeline.store.ledger import ExperimentRow

RESULT_BYTES, ANSWER_CHARS = 16 * 2**20, 200_000
FILE_CHARS, FILES_CHARS, FILES_SHOWN, DOCUMENT_BYTES = 60_000, 600_000, 40, 32 * 2**20
DIFF_LINES, DIFF_BYTES = 2_000, 16 * 2**20


@dataclass(frozen=True, kw_only=True)
class File:
    """pieces: its text with what is evidence in it; empty where `unread` says why it is not shown. notes: kind, author, text."""

    name: str
    size_bytes: int
    pieces: list[Piece] = field(default_factory=list[Piece])
    notes: list[list[str]] = field(default_factory=list[list[str]])
    n_cut: int = 0
    unread: str | None = None


@dataclass(kw_only=True)
class Stored:
    """What a cell's bundle holds. error: why it could not be read, or not to its end."""

    result: AgentResult | None = None
    files: list[File] = field(default_factory=list[File])
    n_files: int = 0
    events: list[transcripts.Event] = field(default_factory=list[transcripts.Event])
    n_pages: int = 0
    error: str | None = None
    left_chars: int = FILES_CHARS


def page_name(key: CellKey, part: int = 1) -> str:
    """Slugs hold neither a dot nor a capital, so names never meet."""
    more = "" if part == 1 else f".transcript-{part}"
    return f"{key.world}.{key.case}.{key.arm}.{key.trial}{more}.html"


def write_cell(
    experiment: ExperimentRow, cell: ScoredCell, siblings: Sequence[ScoredCell], store: ArtifactStore, folder: Path
) -> int:
    """Returns how many pages it took. Raises OSError; what can't be read of the cell is said on its page."""
    rubric = experiment.score.cases[cell.key.case_name].rubric.criteria
    wanted = needles(rubric, cell.criteria)
    stored = _read(cell, wanted, store, folder)
    answer = stored.result.answer if stored.result else None
    compared, changes, n_more = _world_diff(cell, store)
    text = page(
        "cell.html",
        experiment=experiment,
        cell=cell,
        siblings=siblings,
        page_name=page_name,
        case=experiment.run.case(cell.key.case_name),
        scored=experiment.score.cases[cell.key.case_name],
        arm=experiment.run.arm(cell.key.arm),
        config=json.dumps(experiment.run.arm(cell.key.arm).config, indent=2, ensure_ascii=False),
        verdicts=list(zip(rubric, cell.criteria, strict=True)),
        stored=stored,
        answer=None if answer is None else marked(answer[:ANSWER_CHARS], wanted),
        answer_cut=max(0, len(answer or "") - ANSWER_CHARS),
        compared=compared,
        changes=changes,
        changes_more=n_more,
        long_chars=transcripts.LONG_CHARS,
    )
    (folder / page_name(cell.key)).write_bytes(text)
    return 1 + max(0, stored.n_pages - 1)


def _read(cell: ScoredCell, wanted: dict[int, list[str]], store: ArtifactStore, folder: Path) -> Stored:
    stored = Stored()
    tried = [cell.counted, *reversed(cell.view.attempts)]
    bundle = next((a.bundle for a in tried if a is not None and a.bundle is not None), None)
    if bundle is None:
        return stored
    try:
        with store.open(bundle) as source:
            for member, stream in bundle_members(source):
                if stream is not None:
                    _member(member, stream, stored, cell, wanted, folder)
    except (StoreError, tarfile.TarError, OSError, TypeError, EOFError) as error:
        stored.error = f"{type(error).__name__}: {error}"
    return stored


def _member(
    member: tarfile.TarInfo, stream: IO[bytes], stored: Stored, cell: ScoredCell, wanted: dict[int, list[str]], folder: Path
) -> None:
    if member.name == "out/result.json":
        stored.result = _result(stream.read(RESULT_BYTES))
    elif member.name == "out/transcript.jsonl":
        _transcript(stream, stored, cell, folder)
    elif member.name.startswith("out/files/"):
        stored.n_files += 1
        if len(stored.files) < FILES_SHOWN:
            stored.files.append(_file(member.name.removeprefix("out/files/"), member.size, stream, stored, wanted))


def _result(data: bytes) -> AgentResult | None:
    try:
        return read_result(json.loads(data))
    except (ValueError, RecursionError):
        return None


def _transcript(stream: IO[bytes], stored: Stored, cell: ScoredCell, folder: Path) -> None:
    """A page is written once it is known whether another follows it."""
    before: list[transcripts.Event] = []
    for events in transcripts.pages(stream):
        _transcript_page(before, stored.n_pages, cell, folder, last=False)
        stored.n_pages += 1
        if stored.n_pages == 1:
            stored.events = events
        before = events
    _transcript_page(before, stored.n_pages, cell, folder, last=True)


def _transcript_page(events: list[transcripts.Event], number: int, cell: ScoredCell, folder: Path, *, last: bool) -> None:
    if number < 2:
        return
    values: dict[str, Any] = {"cell": cell, "events": events, "number": number, "last": last, "page_name": page_name}
    (folder / page_name(cell.key, number)).write_bytes(page("transcript.html", **values, long_chars=transcripts.LONG_CHARS))


def _file(name: str, size: int, stream: IO[bytes], stored: Stored, wanted: dict[int, list[str]]) -> File:
    if stored.left_chars <= 0:
        return File(name=name, size_bytes=size, unread="more is stored than is shown here")
    try:
        text, notes = _document(name, size, stream) if suffix_of(name) in SUFFIXES else (_text(stream), [])
    except Unreadable as error:
        return File(name=name, size_bytes=size, unread=str(error))
    kept = text[: min(FILE_CHARS, stored.left_chars)]
    stored.left_chars -= len(kept)
    whole = len(text) if suffix_of(name) in SUFFIXES else max(len(text), size)
    return File(name=name, size_bytes=size, pieces=marked(kept, wanted), notes=notes, n_cut=max(0, whole - len(kept)))


def _document(name: str, size: int, stream: IO[bytes]) -> tuple[str, list[list[str]]]:
    if size > DOCUMENT_BYTES:
        raise Unreadable("is too large to be read")
    try:
        found = read_document(stream.read(), name)
    except subprocess.TimeoutExpired:
        raise Unreadable("could not be read in time on this machine") from None
    return found.text, found.notes


def _text(stream: IO[bytes]) -> str:
    data = stream.read(4 * FILE_CHARS)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.start < len(data) - 4:  # else only the end was cut through
            raise Unreadable("is not text") from None
        text = data[: error.start].decode("utf-8-sig")
    if "\0" in text:
        raise Unreadable("is not text")
    return text


def _world_diff(cell: ScoredCell, store: ArtifactStore) -> tuple[str | None, list[str], int]:
    """What was compared: None where no state was; an error; or the lines of the difference, and how many more there are."""
    tried = [attempt for attempt in [cell.counted, *reversed(cell.view.attempts)] if attempt is not None]
    found = next((a.evidence["world_diff"] for a in tried if a.evidence.get("world_diff") is not None), None)
    if found is None:
        return None, [], 0
    try:
        with store.open(found["digest"]) as source:
            lines = list(diff_lines(WorldDiff.model_validate_json(source.read(DIFF_BYTES))))
    except (StoreError, ValueError) as error:
        return f"could not be read: {error}", [], 0
    return "read", lines[:DIFF_LINES], max(0, len(lines) - DIFF_LINES)
