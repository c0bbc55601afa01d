"""The published CSV as rows of cells that know their physical line."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from eval_pipeline.errors import SpecError

COLUMNS = ("Number", "Category", "Task Type", "Task", "Prompt", "Document(s)", "Rubric")
FIELD_LIMIT = 16 * 1024 * 1024  # characters of one cell; above it a quote was surely never closed

_LINE_END = re.compile(r"\r\n|\n|\r")
_LINE_END_BYTES = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True)
class Cell:
    """`line`: where the cell begins in the file, from 1."""

    text: str
    line: int

    def lines(self) -> list[Cell]:
        return [Cell(text, self.line + offset) for offset, text in enumerate(_LINE_END.split(self.text))]


Row = dict[str, Cell]


def parse_csv(raw: bytes, shown: str) -> list[Row]:
    """Rows with exactly COLUMNS, in the file's order; blank rows are left out. Raises SpecError at `shown:line`."""
    with _field_limit():
        records = list(_records(_decode(raw, shown), shown))
    if not records:
        raise SpecError("is empty", where=f"{shown}:1", hint=f"the first line names the columns: {', '.join(COLUMNS)}")
    header, *body = records
    names = [cell.text.strip() for cell in header]
    _check_header(names, f"{shown}:{header[0].line}")
    return [_row(names, record, shown) for record in body]


@contextmanager
def _field_limit() -> Generator[None]:
    before = csv.field_size_limit(FIELD_LIMIT)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _decode(raw: bytes, shown: str) -> str:
    content = raw.removeprefix(b"\xef\xbb\xbf")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = 1 + len(_LINE_END_BYTES.findall(content[: error.start]))
        message = f"is not UTF-8: the byte 0x{content[error.start]:02x} can't be decoded"
        raise SpecError(message, where=f"{shown}:{line}", hint="save the file as UTF-8") from None
    if "\0" in text:
        line = 1 + len(_LINE_END.findall(text[: text.index("\0")]))
        raise SpecError("holds a NUL character", where=f"{shown}:{line}", hint="save the file as UTF-8 text")
    return text


def _records(text: str, shown: str) -> Iterator[list[Cell]]:
    """The csv module says where a record ends only; a cell's line follows from the line ends in the cells before it."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    start = 1
    try:
        for record in reader:
            if any(cell.strip() for cell in record):
                yield list(_located(record, start))
            start = reader.line_num + 1
    except csv.Error as error:
        # A quote that is never closed is noticed at the end of the file only: where its record begins says more.
        message = f"the record that begins here is not valid CSV: {error} (noticed in line {reader.line_num})"
        hint = f"double a quote inside a quoted cell, close every cell; a cell holds at most {FIELD_LIMIT} characters"
        raise SpecError(message, where=f"{shown}:{start}", hint=hint) from None


def _located(record: Sequence[str], line: int) -> Iterator[Cell]:
    for text in record:
        yield Cell(text, line)
        line += len(_LINE_END.findall(text))


def _check_header(names: list[str], where: str) -> None:
    missing = [name for name in COLUMNS if name not in names]
    unknown = [name for name in names if name and name not in COLUMNS]
    twice = sorted({name for name in names if name and names.count(name) > 1})
    known = f"the columns are: {', '.join(COLUMNS)}"
    for problem, found in (("misses", missing), ("has an unknown", unknown), ("names twice the", twice)):
        if found:
            raise SpecError(f"the header {problem} column {', '.join(map(repr, found))}", where=where, hint=known)


def _row(names: list[str], record: list[Cell], shown: str) -> Row:
    where = f"{shown}:{record[0].line}"
    if len(record) != len(names):
        hint = "quote a cell that holds a comma or a line end"
        raise SpecError(f"the row has {len(record)} cells, the header has {len(names)}", where=where, hint=hint)
    stray = [cell for name, cell in zip(names, record, strict=True) if not name and cell.text.strip()]
    if stray:
        raise SpecError(f"the cell {stray[0].text.strip()!r} stands in a column without a name", where=f"{shown}:{stray[0].line}")
    return {name: cell for name, cell in zip(names, record, strict=True) if name}
