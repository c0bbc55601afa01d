"""A review as a table that people fill in with any spreadsheet: written as CSV, read back with their labels."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from eval_pipeline.errors import SpecError
from eval_pipeline.scoring.judge_prompt import cut_out

COLUMNS = ("item", "task", "reference", "work", "criterion", "answer with", "label", "note")
CELL_MAX_CHARS = 30_000
"""Spreadsheets cut a cell at 32,767 characters without a word."""
_WORDS: dict[str, float | None] = {
    **dict.fromkeys(("met", "yes", "y", "true"), 1.0),
    **dict.fromkeys(("not_met", "not met", "no", "n", "false"), 0.0),
    **dict.fromkeys(("cannot_assess", "cannot assess", "?"), None),
}
_WORDS_MAX = 5


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """What a person reads of one question: the same as the judge, and neither the arm nor what the judge said. name: the item's."""

    name: str
    task: str
    reference: str | None
    work: str
    criterion: str
    per_occurrence: bool

    @property
    def answer_with(self) -> str:
        return "how often it is true: 0, 1, 2 ...; or cannot_assess" if self.per_occurrence else "met, not_met or cannot_assess"


@dataclass(frozen=True, kw_only=True)
class Filled:
    """A row with a label. line: of the file. label: as it was written."""

    line: int
    name: str
    label: str
    note: str | None


def csv_of(sheets: Iterable[Sheet]) -> str:
    sink = io.StringIO(newline="")
    writer = csv.writer(sink)
    writer.writerow(COLUMNS)
    for one in sheets:
        row = (one.name, one.task, one.reference or "", one.work, one.criterion, one.answer_with, "", "")
        writer.writerow([no_formula(_fitting(text, one.name)) for text in row])
    return sink.getvalue()


def no_formula(text: str) -> str:
    """What an agent wrote must not become a formula of the reader's spreadsheet."""
    text = text.replace("\0", "")
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _fitting(text: str, name: str) -> str:
    cut = cut_out(text, CELL_MAX_CHARS)
    if cut is None:
        return text
    head, tail, missing = cut
    return f"{head}\n[... {missing} characters left out: evals judge review --item {name} shows them ...]\n{tail}"


def read_labels(path: Path) -> list[Filled]:
    """The rows with a label, whatever separates the columns and in whatever order. Raises SpecError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"it can't be read: {error}", where=str(path), hint="save it as CSV in UTF-8") from None
    header = text.partition("\n")[0]
    separator = max(",;\t", key=header.count)
    csv.field_size_limit(2**24)
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
        missing = [name for name in ("item", "label") if name not in (reader.fieldnames or ())]
        if missing:
            hint = "`evals judge review EXPERIMENT --rater NAME --into FILE` writes one"
            raise SpecError(f"it has no column {' and no column '.join(missing)}", where=f"{path}:1", hint=hint)
        return [
            Filled(
                line=reader.line_num, name=(row["item"] or "").strip(), label=label, note=(row.get("note") or "").strip() or None
            )
            for row in reader
            if (label := (row["label"] or "").strip())
        ]
    except csv.Error as error:
        raise SpecError(f"it is no CSV: {error}", where=str(path)) from None


def verdict_of(label: str, *, per_occurrence: bool) -> float | None:
    """None: this person can't tell. Raises ValueError for what is none of the answers."""
    said = label.strip().lower()
    if said in _WORDS and not (per_occurrence and _WORDS[said] is not None):
        return _WORDS[said]
    counts: Sequence[str] = ("0", "1")
    if (said.isascii() and said.isdigit() and len(said) <= _WORDS_MAX) if per_occurrence else said in counts:
        return float(said)
    wanted = "a count or cannot_assess" if per_occurrence else "met, not_met or cannot_assess"
    raise ValueError(f"{label!r} is no answer: write {wanted}")
