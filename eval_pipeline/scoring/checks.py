"""Checks: criteria decided by a program. A criterion has `check: {<name>: <argument>}`, exactly one name.

name           argument                                               met when
-------------  -----------------------------------------------------  ------------------------------------------------------
contains       TEXT, or {text, words, in}                             the text is there
contains_all   [TEXT, ...], or {texts, words, in}                     all of them are
contains_any   [TEXT, ...], or {texts, words, in}                     at least one is
contains_none  [TEXT, ...], or {texts, words, in}                     none is
equals         TEXT, or {text, in}                                    it is the whole answer
regex          PATTERN, or {pattern, flags, in}                       the pattern fits somewhere (Python's syntax; flags imsxa)
number         N, or {value, tolerance, unit, near, within,           the number is there: 1,234.5 or 1.234,5, 1.2 million,
               decimal, in}                                           1.2m, 5k, EUR 5, 5 €, 12 %; tolerance: 10 or 2%
date           YYYY-MM-DD, or {date, day_first, in}                   the day is there: 31 March 2026, 31.03.2026, 31/03/2026
json_path      PATH, or {path, equals, in},                           the JSON has a value at a.b[0].c, and it is this one
               or {path, number, tolerance, in}
file_exists    NAME, or {name, suffix, min_bytes}                     the agent wrote such a file (name may hold * and ?)
cites          DOCUMENT, or {document, quote, min_words, in}          the quote, or any quotation of min_words (4) words or
                                                                      more, stands in the world's document
xlsx_cell      {file, row, column, number, tolerance},                a cell in a row that names `row`, below a header that
               also cell: B4, sheet, equals, contains                 names `column`, holds this; row and column may be lists
docx           NAME, or {file, headings, tables}                      it is a DOCX with such headings, and so many tables
world_diff     unchanged, or {documents, rows, permissions, blobs}    what the agent changed in the application is as asked
usage          {calls, input_tokens, output_tokens}                   at most so much was used
python         FILE, or {file, with}                                  the function `check` of this file beside the case says so
all            [CHECK, ...]                                           every one is met
any            [CHECK, ...]                                           at least one is met
not            CHECK                                                  it is not met
at_least       {n: N, of: [CHECK, ...]}                               N of them are met

in: where to look: answer (default), file:NAME (what the agent wrote: text, or the text of .docx, .xlsx, .pdf, .eml), for
json_path also result. Deleted and hidden text, hidden sheets and macros are not read, nor is a file that isn't what its name says.
words: true finds whole words only. near: TEXT asks for the number within `within` (100) characters of the text.
Texts compare without regard to case, spacing and compatibility forms (NFKC); a regex sees the text as it stands (NFC).
1,234 is read both ways unless `decimal: '.'` or `decimal: ','` says which mark it is. m is million unless the unit is m.
03/04/2026 is 3 April unless `day_first: false`.
world_diff, by part (each also `unchanged`): documents and blobs: {added, removed, changed: GLOB or list, only}; documents also
{inserted, deleted, comment: TEXT or list, tracked}: in one of the documents named, else in any; tracked: as tracked changes.
rows: {table, where: {FIELD: VALUE}, count, only} with one of added, removed: true or {FIELD: VALUE}, and changed: true, [FIELD] or
{FIELD: NEW VALUE}; or a list of such. permissions: {path: GLOB, gained, lost: USER or list, only}, by what the rules mean for a path.
only: nothing else of the part changed. A state that can't be compared, or not whole, gives no verdict, unless it is certain.
No answer, an empty one, or a missing or unreadable file fails every check that reads it, also contains_none and not.
The module docstring of check_python says what a file for `python` holds and where it runs.
On a per-occurrence criterion contains, contains_any, regex and python count; other checks can't be used there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import yaml

from eval_pipeline.scoring import (
    check_date,
    check_files,
    check_number,
    check_office,
    check_python,
    check_text,
    check_usage,
    check_world,
)
from eval_pipeline.scoring.check_base import Absent, Arguments, CheckResult, Evidence, Run, Undecided, nearest
from eval_pipeline.scoring.check_world import compares_states

__all__ = ["CHECKS", "Check", "CheckResult", "Evidence", "compares_states", "run_check", "validate_check"]

MAX_DEPTH = 10
_QUOTED_FILE = re.compile(r"'(file:[\w./-]+)'")  # YAML reads it unquoted, too

ALL, ANY, NOT = "`all: [CHECK, ...]`", "`any: [CHECK, ...]`", "`not: CHECK`"
AT_LEAST = "`at_least: {n: 2, of: [CHECK, ...]}`"


@dataclass(frozen=True, kw_only=True)
class Check:
    """build(argument, per_occurrence) reads the argument, raising ValueError, and returns what runs. form: how it is written."""

    form: str
    build: Callable[[Any, bool], Run]
    counts: bool = False


CHECKS: Mapping[str, Check] = {
    "contains": Check(form=check_text.CONTAINS, build=check_text.contains, counts=True),
    "contains_all": Check(form=check_text.CONTAINS_ALL, build=check_text.contains_all),
    "contains_any": Check(form=check_text.CONTAINS_ANY, build=check_text.contains_any, counts=True),
    "contains_none": Check(form=check_text.CONTAINS_NONE, build=check_text.contains_none),
    "equals": Check(form=check_text.EQUALS, build=check_text.equals),
    "regex": Check(form=check_text.REGEX, build=check_text.regex, counts=True),
    "number": Check(form=check_number.NUMBER, build=check_number.number),
    "date": Check(form=check_date.DATE, build=check_date.date),
    "json_path": Check(form=check_files.JSON_PATH, build=check_files.json_path),
    "file_exists": Check(form=check_files.FILE_EXISTS, build=check_files.file_exists),
    "cites": Check(form=check_files.CITES, build=check_files.cites),
    "xlsx_cell": Check(form=check_office.XLSX_CELL, build=check_office.xlsx_cell),
    "docx": Check(form=check_office.DOCX, build=check_office.docx),
    "world_diff": Check(form=check_world.WORLD_DIFF, build=check_world.world_diff),
    "usage": Check(form=check_usage.USAGE, build=check_usage.usage),
    "python": Check(form=check_python.PYTHON, build=check_python.python, counts=True),
}
# What stands alone after the name of a check, by the name that it has among options.
MAIN: Mapping[str, str] = {
    **{name: "text" for name in ("contains", "equals")},
    **{name: "texts" for name in ("contains_all", "contains_any", "contains_none")},
    "regex": "pattern",
    "number": "value",
    "date": "date",
    "json_path": "path",
    "file_exists": "name",
    "cites": "document",
    "docx": "file",
    "python": "file",
}
COMPOSED: Mapping[str, str] = {"all": ALL, "any": ANY, "not": NOT, "at_least": AT_LEAST}


def validate_check(spec: Mapping[str, Any], *, per_occurrence: bool = False) -> None:
    """Raise ValueError when the check can't be run; the message gives the nearest name and the right form."""
    _build(spec, per_occurrence, 0)


def run_check(spec: Mapping[str, Any], evidence: Evidence, *, per_occurrence: bool = False) -> CheckResult:
    """Decide one check. per_occurrence: the verdict is a count, not yet capped.

    Raises ValueError for a wrong spec, Undecided when the evidence leaves it open, SpecError for one that only the evidence shows to be wrong (a document the world lacks, a
    pattern that takes too long); the verdict is then missing, not 0.
    """
    return _build(spec, per_occurrence, 0)(evidence)


def _build(spec: Any, per_occurrence: bool, depth: int) -> Run:
    names = [*CHECKS, *COMPOSED]
    if depth > MAX_DEPTH:
        raise ValueError(f"checks are nested more than {MAX_DEPTH} deep")
    if not isinstance(spec, Mapping) or len(cast(Mapping[Any, Any], spec)) != 1:
        raise ValueError(_not_one(spec))
    ((name, argument),) = cast(Mapping[Any, Any], spec).items()
    if name not in names:
        raise ValueError(f"there is no check {name!r}{nearest(str(name), names)}; the checks are: {', '.join(names)}")
    if per_occurrence and not (name in CHECKS and CHECKS[name].counts):
        counting = ", ".join(name for name, check in CHECKS.items() if check.counts)
        raise ValueError(f"check `{name}` can't count, which a per-occurrence criterion needs; use one of: {counting}")
    if name in COMPOSED:
        return _composed(name, argument, depth)
    return _guarded(CHECKS[name].build(argument, per_occurrence))


def _not_one(spec: Any) -> str:
    """With the very words, where options stand beside a check in place of in it."""
    given = cast(Mapping[Any, Any], spec) if isinstance(spec, Mapping) else {}
    found = (", ".join(map(str, given)) or "nothing") if isinstance(spec, Mapping) else repr(spec)
    name = next((key for key in given if key in MAIN), None)
    options = {key: value for key, value in given.items() if key != name}
    form = check_text.CONTAINS_ALL
    if name is not None and not isinstance(given[name], Mapping) and not options.keys() & {*CHECKS, *COMPOSED}:
        moved = yaml.safe_dump(
            {name: {MAIN[name]: given[name], **options}}, default_flow_style=True, sort_keys=False, width=10**6
        )
        form = "`" + _QUOTED_FILE.sub(r"\1", moved.strip()[1:-1]) + "`"
    return f"a check is one name with its argument, found {found}; write {form}"


def _guarded(run: Run) -> Run:
    def guarded(evidence: Evidence) -> CheckResult:
        try:
            return run(evidence)
        except Absent as absent:
            return CheckResult(0.0, str(absent), absent=True)

    return guarded


def _composed(name: str, argument: Any, depth: int) -> Run:
    if name == "not":
        return _inverted(_build(argument, False, depth + 1))
    if name == "at_least":
        options = Arguments("at_least", AT_LEAST, argument, main=None, options=("n", "of"))
        needed, children = options.whole("n", 0, least=1), _children(name, options.value("of"), depth)
        if needed > len(children):
            raise options.wrong(f"asks for {needed} of {len(children)} checks")
        return _counted(children, needed)
    children = _children(name, argument, depth)
    return _counted(children, len(children) if name == "all" else 1)


def _children(name: str, argument: Any, depth: int) -> list[Run]:
    if not isinstance(argument, list) or not argument:
        raise ValueError(f"check `{name}` needs a list of checks; write {COMPOSED[name]}")
    return [_build(child, False, depth + 1) for child in cast(list[Any], argument)]


def _inverted(child: Run) -> Run:
    def run(evidence: Evidence) -> CheckResult:
        result = child(evidence)
        return result if result.absent else CheckResult(1.0 - result.verdict, f"not: {result.reason}")

    return run


def _counted(children: list[Run], needed: int) -> Run:
    """Met when `needed` of the children are. Absent when it fails and what was absent could have decided it, and undecided likewise."""

    def run(evidence: Evidence) -> CheckResult:
        results, open_ones = _results(children, evidence)
        met = sum(result.verdict >= 1 for result in results)
        ok = met >= needed
        if not ok and met + len(open_ones) >= needed:
            raise Undecided("; ".join(open_ones))
        absent = not ok and met + sum(result.absent for result in results) >= needed
        reasons = "; ".join(f"{'met' if result.verdict else 'not met'}: {result.reason}" for result in results)
        return CheckResult(float(ok), f"{met} of {len(children)} met, {needed} needed ({reasons})", absent=absent)

    return run


def _results(children: list[Run], evidence: Evidence) -> tuple[list[CheckResult], list[str]]:
    """And why the others are undecided."""
    results: list[CheckResult] = []
    undecided: list[str] = []
    for child in children:
        try:
            results.append(child(evidence))
        except Undecided as why:
            undecided.append(str(why))
    return results, undecided
