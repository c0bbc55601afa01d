"""What a world_diff check asks of rows, and how certain an answer is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from eval_pipeline.domain.world_diff import Kind, Listed, PartName, RowChange, WorldDiff
from eval_pipeline.scoring.check_base import Arguments, listed, shown
from eval_pipeline.scoring.check_files import same_value

OPTIONS = ("table", "added", "removed", "changed", "where", "count", "only")
_KINDS: tuple[Kind, ...] = ("added", "removed", "changed")
_MISSING = object()


@dataclass(frozen=True)
class Said:
    """met: None when it can't be said."""

    met: bool | None
    reason: str


Clause = Callable[[WorldDiff], list[Said]]


def doubt(diff: WorldDiff, part: PartName, found: Listed[Any]) -> str | None:
    """Why what is not listed may be there all the same."""
    if found.n_more:
        return f"{found.n_more} more changes of {part} are not listed"
    for problem in diff.problems.entries:
        if problem.part in ("state", part):
            return f"the state {problem.side}: {shown(problem.where or 'as a whole')} {problem.what}"
    return "more problems than are named" if diff.problems.n_more else None


def absent(diff: WorldDiff, part: PartName, found: Listed[Any], reason: str) -> Said:
    why = doubt(diff, part, found)
    return Said(False, reason) if why is None else Said(None, f"{reason}, but {why}")


def nothing_else(diff: WorldDiff, part: PartName, found: Listed[Any], others: Sequence[str]) -> Said:
    if others:
        return Said(False, f"also changed: {listed(others)}")
    why = doubt(diff, part, found)
    return Said(True, f"nothing else in {part} changed") if why is None else Said(None, why)


def named(entry: Any) -> str:
    """What a change is called in a reason."""
    if isinstance(entry, RowChange):
        return f"{entry.table}: {entry.key if entry.key is not None else 'a row without id'} ({entry.change})"
    return f"{entry.path} ({entry.change})"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """values: of the row, of a changed one after the change; None: any. fields: that must have changed. count: None means at least 1."""

    table: str
    change: Kind
    values: dict[str, Any]
    fields: list[str]
    where: dict[str, Any]
    count: int | None
    only: bool

    @property
    def text(self) -> str:
        asked = {**{name: "(anything else)" for name in self.fields}, **self.values}
        to = f" to {shown(str(asked))}" if asked else ""
        return f"row of {self.table} {self.change}{to}" + (f" where {shown(str(self.where))}" if self.where else "")


def wanted(options: Arguments) -> Wanted:
    """Raises ValueError."""
    kinds: list[Kind] = [kind for kind in _KINDS if kind in options]
    if len(kinds) != 1:
        raise options.wrong("needs exactly one of `added`, `removed` and `changed` in `rows`")
    value, where = options.value(kinds[0]), options.value("where")
    if not (value is True or isinstance(value, dict) or (kinds[0] == "changed" and isinstance(value, list))):
        raise options.wrong(f"needs true, fields with values, or for `changed` a list of fields as `{kinds[0]}`, found {value!r}")
    if where is not None and not (isinstance(where, dict) and where):
        raise options.wrong(f"needs fields with values as `where`, found {where!r}")
    return Wanted(
        table=options.text("table"),
        change=kinds[0],
        values=_fields(options, value) if isinstance(value, dict) else {},
        fields=options.texts("changed") if isinstance(value, list) else [],
        where=_fields(options, where or {}),
        count=options.whole("count", 1, least=1) if "count" in options else None,
        only=options.flag("only", False),
    )


def _fields(options: Arguments, value: Any) -> dict[str, Any]:
    fields = cast(dict[Any, Any], value)
    for name, one in fields.items():
        if not isinstance(name, str) or not isinstance(one, str | int | float | bool | list | dict | None):
            raise options.wrong(f"needs names of fields and JSON values, found {name!r}: {one!r} (put a day in quotes)")
    return fields


def clause(items: Sequence[Wanted]) -> Clause:
    def run(diff: WorldDiff) -> list[Said]:
        found = diff.rows
        said = [_said(diff, item) for item in items]
        if any(item.only for item in items):
            others = [named(entry) for entry in found.entries if all(_fits(item, entry) is False for item in items)]
            said.append(nothing_else(diff, "rows", found, others))
        return said

    return run


def _said(diff: WorldDiff, item: Wanted) -> Said:
    fits = [(entry, _fits(item, entry)) for entry in diff.rows.entries]
    sure = [named(entry) for entry, fit in fits if fit]
    unsure = [named(entry) for entry, fit in fits if fit is None]
    least, most = (1, len(diff.rows.entries)) if item.count is None else (item.count, item.count)
    reason = f"{len(sure)} {item.text}" + (f": {listed(sure)}" if sure else "") + (f", not {least}" if len(sure) != least else "")
    if len(sure) > most:
        return Said(False, reason)
    if unsure and len(sure) + len(unsure) >= least and (len(sure) < least or item.count is not None):
        return Said(None, f"{reason}; values of {listed(unsure)} are too long to be compared")
    if len(sure) < least:
        return absent(diff, "rows", diff.rows, reason)
    why = doubt(diff, "rows", diff.rows) if item.count is not None else None
    return Said(True, reason) if why is None else Said(None, f"{reason}, but {why}")


def _fits(item: Wanted, entry: RowChange) -> bool | None:
    """None: a value that decides is shortened in the diff."""
    if entry.table != item.table or entry.change != item.change:
        return False
    as_it_was = entry.after if item.change == "added" else entry.before
    as_it_is = entry.before if item.change == "removed" else entry.after
    fits = [_equal(entry, as_it_was or {}, name, value) for name, value in item.where.items()]
    fits += [_equal(entry, as_it_is or {}, name, value) for name, value in item.values.items()]
    if item.change == "changed":
        fits += [True if name in entry.fields else None if "*" in entry.cut else False for name in (*item.fields, *item.values)]
    return False if False in fits else None if None in fits else True


def _equal(entry: RowChange, row: dict[str, Any], name: str, value: Any) -> bool | None:
    if name in entry.cut or (name not in row and "*" in entry.cut):
        return None
    found = row.get(name, _MISSING)
    return found is not _MISSING and same_value(value, found)
