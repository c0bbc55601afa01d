"""What differs inside of a document: text by lines, the cells of a workbook, tracked changes and comments."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eval_pipeline.domain.world_compare import differences, text_diff
from eval_pipeline.domain.world_diff import NOTHING_SEEN, CellChange, DocumentChange, FileChange, NoteChange, printable
from eval_pipeline.scoring.documents import SUFFIXES, Extract, Unreadable, suffix_of
from eval_pipeline.scoring.sheets import Cell
from eval_pipeline.scoring.untrusted import read_document

MAX_DOCUMENTS, MAX_OFFICE, MAX_BAD_OFFICE = 500, 40, 5
MAX_FILE_BYTES, MAX_TEXT_BYTES, MAX_TEXTS_BYTES, MAX_READ_BYTES = 32 << 20, 32 << 10, 1 << 20, 64 << 20
MAX_CELLS, MAX_NOTES, MAX_CHARS = 500, 200, 1000
_NOTHING = Extract(text="")


class _Unread(Exception):
    """`str()` says why a document's content is not compared."""


@dataclass
class Reader:
    """Reads the documents that differ, one after the other, until what one diff may cost is used up."""

    left_documents: int = MAX_DOCUMENTS
    left_office: int = MAX_OFFICE
    left_bad: int = MAX_BAD_OFFICE
    left_text_bytes: int = MAX_TEXTS_BYTES
    left_read_bytes: int = MAX_READ_BYTES
    _bad: set[str] = field(default_factory=set[str])

    def detail(self, change: FileChange, name: str, old: Path | None, new: Path | None) -> DocumentChange:
        """name: the document's own. old, new: its content, None where there is none or where it could not be had."""
        try:
            if (old is None) != (change.before is None) or (new is None) != (change.after is None):
                raise _Unread("more differs than is read")
            return self._compared(change, self._read(name, old), self._read(name, new))
        except _Unread as why:
            return DocumentChange(**dict(change), unread=str(why))

    def _read(self, name: str, path: Path | None) -> Extract:
        if path is None:
            return _NOTHING
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise _Unread(f"is too large to be compared inside: {size:,} bytes")
        self.left_read_bytes -= size
        self.left_documents -= 1
        if self.left_read_bytes < 0 or self.left_documents < 0:
            raise _Unread("more differs than is read")
        data = path.read_bytes()
        return self._office(data, name) if suffix_of(name) in SUFFIXES else Extract(text=_plain(data))

    def _office(self, data: bytes, name: str) -> Extract:
        self.left_office -= 1
        if self.left_office < 0 or self.left_bad < 0:
            raise _Unread("more Office and PDF files differ than are read")
        try:
            return read_document(data, name)
        except Unreadable as error:
            self.left_bad -= 1
            raise _Unread(printable(str(error))) from None
        except subprocess.TimeoutExpired:
            self.left_bad -= 1
            raise _Unread("could not be read in time on this machine") from None

    def _compared(self, change: FileChange, old: Extract, new: Extract) -> DocumentChange:
        cells, more_cells = _cells(old.sheets, new.sheets)
        notes, more_notes = _notes(old.notes, new.notes)
        text = text_diff(old.text, new.text, max(0, min(MAX_TEXT_BYTES, self.left_text_bytes)))
        self.left_text_bytes -= sum(len(line.encode()) for hunk in text.hunks for line in hunk.lines)
        same = not (cells or notes or text.hunks or text.n_more)
        return DocumentChange(
            **dict(change),
            text=text if text.hunks or text.n_more else None,
            cells=cells,
            notes=notes,
            n_more=more_cells + more_notes,
            unread=NOTHING_SEEN if same else None,
        )


def _plain(data: bytes) -> str:
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        raise _Unread("is not text") from None
    if "\0" in text:
        raise _Unread("is not text")
    return text


def _cells(old: dict[str, list[list[Cell]]], new: dict[str, list[list[Cell]]]) -> tuple[tuple[CellChange, ...], int]:
    from openpyxl.utils.cell import get_column_letter  # 0.2 s, and few worlds have a workbook that changes

    before, after = dict(_filled(old)), dict(_filled(new))
    found = [key for key, _ in differences(before, after)]
    places = {key: f"{printable(key[0])}!{get_column_letter(int(key[1][7:]))}{int(key[1][:7])}" for key in found[:MAX_CELLS]}
    return tuple(CellChange(cell=places[key], before=before.get(key), after=after.get(key)) for key in places), max(
        0, len(found) - MAX_CELLS
    )


def _filled(sheets: dict[str, list[list[Cell]]]) -> Iterator[tuple[tuple[str, str], str]]:
    """(sheet, row and column with leading zeros, so that they sort) -> what stands there."""
    for name, rows in sheets.items():
        for y, row in enumerate(rows, start=1):
            for x, value in enumerate(row, start=1):
                if value is not None and value != "":
                    yield (name, f"{y:07}{x:07}"), _short(value)


def _short(value: Any) -> str:
    text = printable(str(value))
    return text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 1] + "…"


def _notes(old: list[list[str]], new: list[list[str]]) -> tuple[tuple[NoteChange, ...], int]:
    """In the order in which they stand in the file."""
    before, after = Counter(map(tuple, old)), Counter(map(tuple, new))
    found = [("removed", note) for note in (before - after).elements()] + [
        ("added", note) for note in (after - before).elements()
    ]
    kept = [
        NoteChange.model_validate({"change": change, "kind": kind, "author": _short(author) or None, "text": _short(text)})
        for change, (kind, author, text) in found[:MAX_NOTES]
    ]
    return tuple(kept), max(0, len(found) - MAX_NOTES)
