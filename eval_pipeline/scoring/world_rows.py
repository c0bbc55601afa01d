"""The rows of a table that differ. A table is digested line by line; only rows that differ are read into memory."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from eval_pipeline.domain.canonical import canonical_json
from eval_pipeline.domain.world_compare import differences
from eval_pipeline.domain.world_diff import MAX_ENTRIES, Kind, RowChange, printable

MAX_ROWS, MAX_LINE_BYTES = 200_000, 4 << 20
MAX_VALUE_CHARS, MAX_FIELDS, MAX_NESTED, MAX_NESTED_SHOWN = 1000, 100, 200, 20

Key = tuple[str, str]  # ("id", its JSON) or ("row", digest and which of the equal ones)


class Malformed(Exception):
    """The table can't be compared. `where`: its line; None for the table as a whole."""

    def __init__(self, what: str, line: int | None = None) -> None:
        super().__init__(what)
        self.line = line


@dataclass
class _Table:
    """rows: key -> digest of the row. places: key -> offset and length of its line."""

    path: Path | None
    rows: dict[Key, bytes] = field(default_factory=dict[Key, bytes])
    places: dict[Key, tuple[int, int]] = field(default_factory=dict[Key, tuple[int, int]])

    def row(self, key: Key) -> dict[str, Any] | None:
        if key not in self.places or self.path is None:
            return None
        offset, length = self.places[key]
        with self.path.open("rb") as source:
            source.seek(offset)
            return cast(dict[str, Any], json.loads(source.read(length)))


@dataclass(frozen=True)
class Tables:
    """changes: the first MAX_ENTRIES. kinds: of all."""

    changes: list[RowChange]
    kinds: list[Kind]


def index(path: Path | None) -> _Table:
    """Raises Malformed. None: there is no such table, which is one without rows."""
    table = _Table(path)
    if path is None:
        return table
    seen: Counter[str] = Counter()
    for number, (offset, line) in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        if len(table.rows) >= MAX_ROWS:
            raise Malformed(f"has more than {MAX_ROWS:,} rows")
        try:
            row = _parsed(line)
            content = hashlib.sha256(canonical_json(row).encode("utf-8", "surrogatepass"))
        except (ValueError, RecursionError) as error:
            raise Malformed(f"is no row: {printable(str(error))[:200]}", number) from None
        key = _key(row, content.hexdigest(), seen)
        if key in table.rows:
            raise Malformed(f"has the id {printable(key[1])[:80]} of a row above", number)
        table.rows[key] = content.digest()[:16]
        table.places[key] = (offset, len(line))
    return table


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    offset = 0
    with path.open("rb") as source:
        while line := source.readline(MAX_LINE_BYTES + 1):
            if len(line) > MAX_LINE_BYTES:
                raise Malformed(f"holds a line of more than {MAX_LINE_BYTES:,} bytes")
            yield offset, line
            offset += len(line)


def _parsed(line: bytes) -> dict[str, Any]:
    row = _DECODER.decode(line.decode(json.detect_encoding(line), "surrogatepass"))
    if line.count(b"[") + line.count(b"{") > MAX_NESTED and _depth(row) > MAX_NESTED:
        raise ValueError(f"nested more than {MAX_NESTED} deep")
    if not isinstance(row, dict):
        raise ValueError(f"a row is a JSON object, found {type(row).__name__}")
    return cast(dict[str, Any], row)


def _depth(value: Any) -> int:
    inner = cast(dict[str, Any], value).values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, cast(Any, inner)), default=0)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def _key(row: dict[str, Any], digest: str, seen: Counter[str]) -> Key:
    if row.get("id") is not None:
        return "id", canonical_json(row["id"])
    seen[digest] += 1
    return "row", f"{digest}:{seen[digest]}"


def row_changes(table: str, before: _Table, after: _Table, room: int = MAX_ENTRIES) -> Tables:
    """room: how many are read and listed."""
    found = differences(before.rows, after.rows)
    changes = [_change(table, key, kind, before.row(key), after.row(key)) for key, kind in found[: max(0, room)]]
    return Tables(changes=changes, kinds=[kind for _, kind in found])


def _change(table: str, key: Key, kind: Kind, old: dict[str, Any] | None, new: dict[str, Any] | None) -> RowChange:
    fields = [name for name, _ in differences(_digests(old or {}), _digests(new or {}))] if kind == "changed" else []
    names = list(dict.fromkeys([*fields, *sorted((old or {}).keys() | (new or {}).keys())]))
    kept, cut = names[:MAX_FIELDS], set[str](["*"] if len(names) > MAX_FIELDS else [])
    return RowChange(
        table=printable(table),
        key=_shown_key(key),
        change=kind,
        fields=tuple(printable(name) for name in fields[:MAX_FIELDS]),
        before=None if old is None else _bounded(old, kept, cut),
        after=None if new is None else _bounded(new, kept, cut),
        cut=tuple(sorted(cut)),
    )


def _shown_key(key: Key) -> str | None:
    if key[0] != "id":
        return None
    value = json.loads(key[1])
    return printable(value if isinstance(value, str) else key[1])[:MAX_VALUE_CHARS]


def _digests(row: dict[str, Any]) -> dict[str, str]:
    return {name: canonical_json(value) for name, value in row.items()}


def _bounded(row: dict[str, Any], kept: Sequence[str], cut: set[str]) -> dict[str, Any]:
    """The values of `kept`, each short or as the beginning of its text or JSON."""
    found: dict[str, Any] = {}
    for name in kept:
        if name not in row:
            continue
        value, shown = row[name], printable(name)[:MAX_VALUE_CHARS]
        text = value if isinstance(value, str) else canonical_json(value)
        if len(text) > MAX_VALUE_CHARS or _depth(value) > MAX_NESTED_SHOWN:
            cut.add(shown)
            found[shown] = printable(text[: MAX_VALUE_CHARS - 1]) + "…"
        else:
            found[shown] = _clean(value)
    return found


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {printable(name): _clean(inner) for name, inner in cast(dict[str, Any], value).items()}
    if isinstance(value, list):
        return [_clean(inner) for inner in cast(list[Any], value)]
    return printable(value) if isinstance(value, str) else value
