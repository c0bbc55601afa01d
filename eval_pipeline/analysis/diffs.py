"""A world_diff for people: what changed in a line, then each part with its hunks, in the manner of git."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from eval_pipeline.domain.world_diff import Counts, DocumentChange, FileChange, Listed, Permissions, RowChange, WorldDiff

if TYPE_CHECKING:
    from eval_pipeline.analysis.tables import ScoredCell

_MARKS = {"added": "+", "removed": "-", "changed": "~"}
_NOUNS = {
    "n_documents": ("document", "documents"),
    "n_rows": ("row", "rows"),
    "n_readers": ("path with other readers", "paths with other readers"),
    "n_rules": ("rule", "rules"),
    "n_blobs": ("blob", "blobs"),
    "n_problems": ("problem", "problems"),
}
VALUE_CHARS = 120


def summary_line(summary: Mapping[str, Any]) -> str:
    """Of `WorldDiff.summary`, as an attempt's evidence has it."""
    found = [f"{summary[name]} {nouns[summary[name] != 1]}" for name, nouns in _NOUNS.items() if summary.get(name)]
    return ", ".join(found) or "nothing"


def compared_in(cell: ScoredCell) -> dict[str, Any] | None:
    """Digest and summary of the world_diff, of the counted attempt or of the last that has one."""
    tried = [attempt for attempt in [cell.counted, *reversed(cell.view.attempts)] if attempt is not None]
    return next((found for attempt in tried if (found := attempt.evidence.get("world_diff")) is not None), None)


def dump_error(cell: ScoredCell) -> str | None:
    return next((found for one in reversed(cell.view.attempts) if (found := one.evidence.get("dump_error"))), None)


def not_compared(cell: ScoredCell, *, dumps: bool) -> str:
    """Why a cell has no world_diff. dumps: whether its app's manifest has a `dump`."""
    if not dumps:
        return "an app's manifest says with `dump` how its state is written"
    return dump_error(cell) or f"no attempt came as far as its app's `dump`: {cell.error or 'none has ended'}"


def diff_lines(diff: WorldDiff) -> Iterator[str]:
    yield f"changed: {summary_line(diff.summary())}"
    if diff.problems.entries:
        yield "\nnot compared"
        yield from (f" ! {one.side}: {one.where or 'the state'} {one.what}" for one in diff.problems.entries)
        yield from _more(diff.problems)
    yield from _part("documents", diff.documents, _document)
    yield from _part("rows", diff.rows, _row)
    yield from _permissions(diff.permissions)
    yield from _part("blobs", diff.blobs, _file)


def _part(name: str, found: Listed[Any], lines: Any) -> Iterator[str]:
    if found.counts.total:
        yield f"\n{name}: {_counted(found.counts)}"
        for entry in found.entries:
            yield from lines(entry)
        yield from _more(found)


def _counted(counts: Counts) -> str:
    named = [(counts.added, "added"), (counts.removed, "removed"), (counts.changed, "changed")]
    return ", ".join(f"{number} {name}" for number, name in named if number)


def _more(found: Listed[Any]) -> Iterator[str]:
    if found.n_more:
        yield f" ... and {found.n_more} more"


def _file(entry: FileChange) -> Iterator[str]:
    sizes = " -> ".join(f"{facts.size:,} bytes {facts.sha256[:12]}" for facts in (entry.before, entry.after) if facts is not None)
    same = f", the content of {entry.same_as} {'before' if entry.change == 'added' else 'after'}" if entry.same_as else ""
    yield f" {_MARKS[entry.change]} {entry.path} ({sizes}){same}"


def _document(entry: DocumentChange) -> Iterator[str]:
    yield from _file(entry)
    if entry.same_as:
        return
    if entry.unread:
        yield f"     {entry.unread}"
    for hunk in entry.text.hunks if entry.text is not None else ():
        yield f"@@ -{hunk.before_line} +{hunk.after_line} @@"
        yield from hunk.lines
    if entry.text is not None and entry.text.n_more:
        yield f"     ... and {entry.text.n_more} more lines"
    for cell in entry.cells:
        yield f"     {cell.cell}: {_value(cell.before)} -> {_value(cell.after)}"
    for note in entry.notes:
        yield f"     {note.kind} {note.change}{f' ({note.author})' if note.author else ''}: {note.text}"
    if entry.n_more:
        yield f"     ... and {entry.n_more} more cells, tracked changes or comments"


def _row(entry: RowChange) -> Iterator[str]:
    yield f" {_MARKS[entry.change]} {entry.table} {entry.key if entry.key is not None else '(without id)'}"
    before, after = entry.before or {}, entry.after or {}
    for name in entry.fields or (before or after):
        old = _value(before[name]) if name in before else "(none)"
        new = _value(after[name]) if name in after else "(none)"
        yield f"     {name}: {f'{old} -> {new}' if entry.change == 'changed' else old if before else new}"


def _permissions(found: Permissions) -> Iterator[str]:
    if not found.changed:
        return
    yield "\npermissions"
    for entry in found.effect.entries:
        gained, lost = [f"+{user}" for user in entry.gained], [f"-{user}" for user in entry.lost]
        yield f" ~ {entry.path}: {' '.join([*gained, *lost])}" + (f" and {entry.n_more} more" if entry.n_more else "")
    yield from _more(found.effect)
    for rule in found.rules.entries:
        yield f" {_MARKS[rule.change]} rule {rule.rule}"
    yield from _more(found.rules)
    default = [*(f"+{user}" for user in found.default_gained), *(f"-{user}" for user in found.default_lost)]
    if default:
        yield f" ~ default: {' '.join(default)}"
    if found.reordered:
        yield " ~ the rules are in another order"


def _value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= VALUE_CHARS else text[: VALUE_CHARS - 1] + "…"
