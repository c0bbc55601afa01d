"""The check on what an agent changed in the application's state: world_diff.

Each clause about a part is met, not met, or can't be said: what is seen in the diff is certain, what is missing there need not be, when
a part could not be compared or is listed only in part. One clause that is not met decides; else one that can't be said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, cast

from eval_pipeline.domain.world_diff import NOTHING_SEEN, DocumentChange, FileChange, Kind, Listed, PartName, WorldDiff
from eval_pipeline.scoring import check_rows
from eval_pipeline.scoring.check_base import Arguments, CheckResult, Evidence, Run, Undecided, failed, fold, listed, passed, shown
from eval_pipeline.scoring.check_python import asks_for
from eval_pipeline.scoring.check_rows import Clause, Said, absent, doubt, nothing_else

WORLD_DIFF = (
    "`world_diff: unchanged` or `world_diff: {documents: {changed: 'documents/lease*', inserted: TEXT, only: true}, rows: {table: T,"
    " changed: {status: done}, where: {id: t-1}, only: true}, permissions: unchanged, blobs: unchanged}`, each part as you need it"
)
PARTS = ("documents", "rows", "permissions", "blobs")
KINDS: tuple[Kind, ...] = ("added", "removed", "changed")
TEXTS = ("inserted", "deleted", "comment")

Globs = dict[Kind, list[str]]


def world_diff(argument: Any, _per_occurrence: bool) -> Run:
    if argument == "unchanged":
        argument = dict.fromkeys(PARTS, "unchanged")
    options = Arguments("world_diff", WORLD_DIFF, argument, main=None, options=PARTS)
    clauses = [_CLAUSES[part](options, options.value(part)) for part in PARTS if part in options]
    if not clauses:
        raise options.wrong(f"needs at least one of {', '.join(PARTS)}")

    def run(evidence: Evidence) -> CheckResult:
        if evidence.world_diff is None:
            raise Undecided("there is no state to compare: the app has no `dump`, or it was not run")
        said = [one for clause in clauses for one in clause(evidence.world_diff)]
        wrong = [one.reason for one in said if one.met is False]
        unsure = [one.reason for one in said if one.met is None]
        if unsure and not wrong:
            raise Undecided("it can't be said: " + "; ".join(unsure))
        return failed("; ".join(wrong)) if wrong else passed("; ".join(one.reason for one in said))

    return run


def compares_states(check: Any) -> bool:
    """Whether the check, or one in it, looks at the world_diff."""
    if isinstance(check, Mapping):
        inner = cast(Mapping[str, Any], check)
        if "world_diff" in inner or asks_for(inner.get("python"), "world_diff"):
            return True
        return any(compares_states(inner.get(name)) for name in ("all", "any", "not", "at_least", "of"))
    return isinstance(check, list) and any(map(compares_states, cast(list[Any], check)))


@dataclass(frozen=True)
class _Texts:
    """wanted: option -> texts. tracked: inserted and deleted as tracked changes."""

    wanted: dict[str, list[str]]
    tracked: bool


def _files(part: PartName) -> Callable[[Arguments, Any], Clause]:
    def build(outer: Arguments, value: Any) -> Clause:
        if value == "unchanged":
            return lambda diff: [_unchanged(diff, part, _files_of(diff, part))]
        names = (*KINDS, "only", *((*TEXTS, "tracked") if part == "documents" else ()))
        options = _inner(outer, part, value, names)
        globs: Globs = {kind: options.one_or_more(kind) for kind in KINDS if kind in options}
        texts = _Texts({name: options.one_or_more(name) for name in TEXTS if name in options}, options.flag("tracked", False))
        only = options.flag("only", False)
        if not globs and not texts.wanted:
            raise options.wrong(f"needs `added`, `removed` or `changed` in `{part}`, or `unchanged` in its place")
        return lambda diff: _files_said(diff, part, globs, texts, only)

    return build


def _inner(outer: Arguments, part: str, value: Any, names: Sequence[str]) -> Arguments:
    if not isinstance(value, dict):
        raise outer.wrong(f"takes `{part}: unchanged` or a mapping there")
    return Arguments("world_diff", WORLD_DIFF, value, main=None, options=names)


def _files_of(diff: WorldDiff, part: PartName) -> Listed[Any]:
    return diff.documents if part == "documents" else diff.blobs


def _files_said(diff: WorldDiff, part: PartName, globs: Globs, texts: _Texts, only: bool) -> list[Said]:
    found = _files_of(diff, part)
    entries = cast(Sequence[FileChange], found.entries)
    said: list[Said] = []
    asked: list[tuple[Kind, str]] = [(kind, pattern) for kind, patterns in globs.items() for pattern in patterns]
    for kind, pattern in asked:
        fitting = [entry.path for entry in entries if _fits(entry, kind, [pattern])]
        yes = Said(True, f"{kind}: {listed(fitting)}")
        said.append(yes if fitting else absent(diff, part, found, f"no file that fits {shown(pattern)} was {kind}"))
    meant = [entry for entry in entries if any(_fits(entry, kind, patterns) for kind, patterns in globs.items())]
    if texts.wanted:
        where = meant if globs else [entry for entry in entries if entry.change != "removed"]
        said += _texts_said(diff, cast(Sequence[DocumentChange], where), texts)
    others = [f"{entry.path} ({entry.change})" for entry in entries if entry not in meant]
    return [*said, nothing_else(diff, part, found, others)] if only else said


def _fits(entry: FileChange, kind: Kind, patterns: Iterable[str]) -> bool:
    """A pattern may leave out the folder of the part."""
    names = (entry.path, entry.path.partition("/")[2])
    return entry.change == kind and any(fnmatchcase(name, pattern) for pattern in patterns for name in names)


def _texts_said(diff: WorldDiff, entries: Sequence[DocumentChange], texts: _Texts) -> list[Said]:
    hidden = [entry.path for entry in entries if _hides(entry)]
    unsure = f"{listed(hidden)} can't be compared inside" if hidden else doubt(diff, "documents", diff.documents)
    said: list[Said] = []
    for name, text in ((name, text) for name, wanted in texts.wanted.items() for text in wanted):
        holding = [entry.path for entry in entries if _holds(entry, name, text, tracked=texts.tracked)]
        what = f"{name}{' as a tracked change' if texts.tracked and name != 'comment' else ''}: {shown(text)}"
        if holding:
            said.append(Said(True, f"{what} in {listed(holding)}"))
        else:
            no = f"not {what}, in {listed(entry.path for entry in entries)}"
            said.append(Said(False, no) if unsure is None else Said(None, f"{no}; {unsure}"))
    return said


def _hides(entry: DocumentChange) -> bool:
    inside = entry.text is not None and (entry.text.n_more or entry.text.n_cut)
    return bool(inside or entry.n_more or entry.unread not in (None, NOTHING_SEEN))


def _holds(entry: DocumentChange, name: str, text: str, *, tracked: bool) -> bool:
    wanted, kind = fold(text), {"inserted": "insertion", "deleted": "deletion"}.get(name, name)
    if tracked or name == "comment":
        return any(note.change == "added" and note.kind == kind and wanted in fold(note.text) for note in entry.notes)
    more, fewer = ("+", "-") if name == "inserted" else ("-", "+")
    return sum(_count(hunk.lines, more, wanted) - _count(hunk.lines, fewer, wanted) for hunk in _hunks(entry)) > 0


def _hunks(entry: DocumentChange) -> Iterable[Any]:
    return entry.text.hunks if entry.text is not None else ()


def _count(lines: Sequence[str], mark: str, wanted: str) -> int:
    return fold("\n".join(line[1:] for line in lines if line[0] == mark)).count(wanted)


def _permissions(outer: Arguments, value: Any) -> Clause:
    if value == "unchanged":
        return _permissions_unchanged
    options = _inner(outer, "permissions", value, ("path", "gained", "lost", "only"))
    path, only = options.optional_text("path") or "*", options.flag("only", False)
    wanted = {name: set(options.one_or_more(name)) for name in ("gained", "lost") if name in options}
    if not wanted:
        raise options.wrong("needs `gained` or `lost` in `permissions`: who may read what they could not, or no longer can")

    def clause(diff: WorldDiff) -> list[Said]:
        effect = diff.permissions.effect
        meant = [entry for entry in effect.entries if fnmatchcase(entry.path, path)]
        fits = [entry.path for entry in meant if all(users <= set(getattr(entry, name)) for name, users in wanted.items())]
        asked = " and ".join(f"{name} {listed(users)}" for name, users in wanted.items())
        if fits:
            said = Said(True, f"{listed(fits)} {asked}")
        elif any(entry.n_more for entry in meant):
            said = Said(None, f"more readers changed at {listed(entry.path for entry in meant)} than are named")
        else:
            said = absent(diff, "permissions", effect, f"nothing that fits {shown(path)} {asked}")
        others = [entry.path for entry in effect.entries if entry not in meant]
        return [said, nothing_else(diff, "permissions", effect, others)] if only else [said]

    return clause


def _permissions_unchanged(diff: WorldDiff) -> list[Said]:
    permissions = diff.permissions
    if permissions.effect.counts.total:
        return [Said(False, f"readers changed of {listed(entry.path for entry in permissions.effect.entries)}")]
    if permissions.changed:
        return [Said(False, f"the rules of the permissions changed: {listed(rule.rule for rule in permissions.rules.entries)}")]
    return [_unchanged(diff, "permissions", permissions.effect)]


def _unchanged(diff: WorldDiff, part: PartName, found: Listed[Any]) -> Said:
    if found.counts.total:
        return Said(False, f"{part} changed: {listed(check_rows.named(entry) for entry in found.entries)}")
    why = doubt(diff, part, found)
    return Said(True, f"{part} unchanged") if why is None else Said(None, why)


def _rows(outer: Arguments, value: Any) -> Clause:
    if value == "unchanged":
        return lambda diff: [_unchanged(diff, "rows", diff.rows)]
    items = cast(list[Any], value) if isinstance(value, list) and value else [value]
    return check_rows.clause([check_rows.wanted(_inner(outer, "rows", item, check_rows.OPTIONS)) for item in items])


_CLAUSES: Mapping[str, Callable[[Arguments, Any], Clause]] = {
    "documents": _files("documents"),
    "blobs": _files("blobs"),
    "rows": _rows,
    "permissions": _permissions,
}
