"""Checks on what was written and what it rests on: json_path, file_exists, cites."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterator
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any, cast

from eval_pipeline.errors import SpecError
from eval_pipeline.scoring.check_base import (
    Absent,
    Arguments,
    CheckResult,
    Evidence,
    Run,
    decided,
    failed,
    find_name,
    fold,
    listed,
    nearest,
    passed,
    place,
    read_text,
    shown,
)
from eval_pipeline.scoring.check_number import Wanted, wanted

JSON_PATH = "`json_path: a.b[0]` or `json_path: {path: a.b[0].c, equals: VALUE, in: result}`, or with `number: 5, tolerance: 1%`"
FILE_EXISTS = "`file_exists: NAME` or `file_exists: {name: 'memo*.docx', suffix: .docx, min_bytes: 100}`"
CITES = "`cites: DOCUMENT` or `cites: {document: DOCUMENT, quote: TEXT, min_words: 4, in: file:NAME}`"

_STEP = re.compile(r"""\.?(?P<key>[^.\[\]"']+)|\[(?P<index>-?\d{1,9})\]|\[(?P<quote>["'])(?P<quoted>.+?)(?P=quote)\]""")
_FENCE = re.compile(r"^```[ \t]*+(?:json)?+[ \t]*+\r?\n(.*?)^```", re.MULTILINE | re.DOTALL | re.IGNORECASE)
_MISSING = object()


def json_path(argument: Any, _per_occurrence: bool) -> Run:
    names = ("equals", "number", "tolerance", "in")
    options = Arguments("json_path", JSON_PATH, argument, main="path", options=names)
    path, target = options.text("path"), options.target(also=("result",))
    steps = _steps(options, path)
    if "equals" in options and "number" in options:
        raise options.wrong("takes one of `equals` and `number`, found both")
    if "tolerance" in options and "number" not in options:
        raise options.wrong("has a `tolerance` without a `number`")
    want = wanted(options, "number") if "number" in options else None
    equal = _json_value(options) if "equals" in options else _MISSING

    def run(evidence: Evidence) -> CheckResult:
        source = "the result" if target == "result" else place(target)
        value = _walk(_json(evidence, target), steps)
        if value is _MISSING:
            return failed(f"{source} has nothing at {path}")
        if want is not None:
            return decided(
                _fits(want, value),
                f"{source} has {_short(value)} at {path}",
                f"{source} has {_short(value)} at {path}, not {want.value}",
            )
        if equal is _MISSING:
            return passed(f"{source} has {_short(value)} at {path}")
        no = f"{source} has {_short(value)} at {path}, not {_short(equal)}"
        return decided(same_value(equal, value), f"{source} has {_short(value)} at {path}", no)

    return run


def _steps(options: Arguments, path: str) -> list[str | int]:
    rest, steps = path.removeprefix("$"), list[str | int]()
    while rest:
        match = _STEP.match(rest)
        if match is None:
            raise options.wrong(f"can't read the path {shown(path)} from {shown(rest)} on")
        steps.append(int(match["index"]) if match["index"] else match["quoted"] or match["key"])
        rest = rest[match.end() :]
    return steps


def _json_value(options: Arguments) -> Any:
    value = options.value("equals")
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise options.wrong(f"needs a JSON value as `equals`, found {value!r} (put a day in quotes)") from None
    return value


def _json(evidence: Evidence, target: str) -> Any:
    """Raises Absent when there is none."""
    if target == "result":
        if evidence.result is None:
            raise Absent("there is no result")
        return evidence.result
    text = read_text(evidence, target)
    blocks = [text, *(match[1] for match in _FENCE.finditer(text))] if target == "answer" else [text]
    for block in blocks:
        try:
            return json.loads(block, parse_constant=_refuse)
        except (ValueError, RecursionError):
            continue
    raise Absent(f"{place(target)} holds no JSON: {shown(text, 40)}")


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _walk(value: Any, steps: list[str | int]) -> Any:
    for step in steps:
        if isinstance(value, dict):
            value = cast(dict[str, Any], value).get(str(step), _MISSING)
        elif isinstance(value, list) and isinstance(step, int):
            items = cast(list[Any], value)
            value = items[step] if -len(items) <= step < len(items) else _MISSING
        else:
            return _MISSING
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _fits(want: Wanted, value: Any) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return want.fits(Decimal(value))
    return isinstance(value, float) and math.isfinite(value) and want.fits(Decimal(str(value)))


def same_value(left: Any, right: Any) -> bool:
    """Equal values: text without regard to case and spacing, numbers by value, true is not 1."""
    if isinstance(left, str) and isinstance(right, str):
        return fold(left) == fold(right)
    if isinstance(left, list) and isinstance(right, list):
        ours, theirs = cast(list[Any], left), cast(list[Any], right)
        return len(ours) == len(theirs) and all(same_value(a, b) for a, b in zip(ours, theirs, strict=True))
    if isinstance(left, dict) and isinstance(right, dict):
        mine, other = cast(dict[str, Any], left), cast(dict[str, Any], right)
        return mine.keys() == other.keys() and all(same_value(mine[key], other[key]) for key in mine)
    return _is_number(left) == _is_number(right) and isinstance(left, bool) == isinstance(right, bool) and left == right


def _short(value: Any) -> str:
    try:
        return shown(json.dumps(value, ensure_ascii=False))
    except RecursionError:
        return "a deeply nested value"


def file_exists(argument: Any, _per_occurrence: bool) -> Run:
    options = Arguments("file_exists", FILE_EXISTS, argument, main="name", options=("suffix", "min_bytes"))
    name, suffix, least = options.optional_text("name"), options.optional_text("suffix"), options.whole("min_bytes", 1)
    if name is None and suffix is None:
        raise options.wrong("needs a `name` or a `suffix`")

    def run(evidence: Evidence) -> CheckResult:
        wanted_name = unicodedata.normalize("NFC", name or "*")
        ending = (suffix or "").casefold()
        named = [
            file
            for file in evidence.files
            if fnmatchcase(unicodedata.normalize("NFC", file), wanted_name) or find_name([file], wanted_name)
        ]
        fitting = [file for file in named if file.casefold().endswith(ending)]
        big = [file for file in fitting if len(evidence.files[file]) >= least]
        if big:
            return passed(f"the agent wrote {listed(big)}")
        asked = " ending in ".join(shown(part) for part in (name or "a file", suffix) if part)
        if fitting:
            return failed(f"{listed(fitting)} has fewer than {least} bytes")
        return failed(f"there is no {asked}; the agent wrote: {listed(evidence.files)}")

    return run


_QUOTE_MARKS = re.compile("[\"'`\u00b4\u00ab\u00bb\u2018-\u201f\u2039\u203a\u300c-\u300f]")
_HYPHENS = re.compile(r"(?<=\w)\s?[-\u2010-\u2015\u2212]\s*(?=\w)")
_PAIRS = (
    ("\u201c", "\u201d"),
    ("\u201e", "\u201c"),
    ("\u201e", "\u201d"),
    ("\u00ab", "\u00bb"),
    ("\u00bb", "\u00ab"),
    ('"', '"'),
)
_QUOTATIONS = [re.compile(f"{left}([^{left}{right}]{{1,4000}}){right}") for left, right in _PAIRS]
_BLOCK_QUOTE = re.compile(r"(?:^[ \t]*>[^\n]*\n?)+", re.MULTILINE)


def as_quoted(text: str) -> str:
    """Text to compare quotations by: without case, quotation marks, hyphenation, ligatures or line breaks."""
    return re.sub(r"\s+", " ", _HYPHENS.sub("", _QUOTE_MARKS.sub("", fold(text)))).strip()


def quotations(text: str) -> Iterator[str]:
    """What stands in quotation marks or in a block quote."""
    for pattern in _QUOTATIONS:
        yield from (match[1] for match in pattern.finditer(text))
    yield from (re.sub(r"^[ \t]*>", "", match.group(), flags=re.MULTILINE) for match in _BLOCK_QUOTE.finditer(text))


def cites(argument: Any, _per_occurrence: bool) -> Run:
    options = Arguments("cites", CITES, argument, main="document", options=("quote", "min_words", "in"))
    document, quote, target = options.text("document"), options.optional_text("quote"), options.target()
    least = options.whole("min_words", 4, least=1)
    if quote is not None and not re.search(r"\w", as_quoted(quote)):
        raise options.wrong("needs words in `quote`")

    def run(evidence: Evidence) -> CheckResult:
        source = as_quoted(_document(evidence, document))
        text = read_text(evidence, target)
        if quote is not None:
            return _cites_given(text, quote, source, document, target)
        found = [item for item in quotations(text) if len(as_quoted(item).split()) >= least]
        for item in found:
            if as_quoted(item).strip(" .,;:") in source:
                return passed(f"{place(target)} quotes {shown(item)}, which stands in {shown(document)}")
        if not found:
            return failed(f"{place(target)} quotes nothing of {least} words or more")
        return failed(f"{place(target)} quotes {shown(found[0])}, which does not stand in {shown(document)}")

    return run


def _cites_given(text: str, quote: str, source: str, document: str, target: str) -> CheckResult:
    wanted_quote = as_quoted(quote)
    if wanted_quote not in source:
        raise SpecError(f"the quote {shown(quote)} does not stand in {shown(document)}", hint="copy it from the document")
    return decided(
        wanted_quote in as_quoted(text),
        f"{place(target)} quotes {shown(quote)}",
        f"{place(target)} does not quote {shown(quote)}",
    )


def _document(evidence: Evidence, name: str) -> str:
    found = find_name(evidence.documents, name)
    if found is None:
        raise SpecError(
            f"the world has no document {shown(name)}{nearest(name, evidence.documents)}",
            hint=f"it has: {listed(evidence.documents)}",
        )
    return evidence.documents[found]
