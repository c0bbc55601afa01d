"""Checks that look for words: contains*, equals, regex."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
import unicodedata
from importlib import import_module
from typing import Any, cast

from eval_pipeline.errors import SpecError
from eval_pipeline.scoring.check_base import (
    Arguments,
    CheckResult,
    Evidence,
    Run,
    decided,
    failed,
    fold,
    passed,
    place,
    read_folded,
    read_text,
    shown,
)

REGEX_TIMEOUT_S = 5.0
_STEPS_IN_PROCESS = 10_000_000
_FLAGS = {"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE, "a": re.ASCII}

CONTAINS = "`contains: TEXT` or `contains: {text: TEXT, words: true, in: file:NAME}`"


def _list_form(name: str) -> str:
    return f"`{name}: [TEXT, ...]` or `{name}: {{texts: [TEXT, ...], words: true, in: file:NAME}}`"


CONTAINS_ALL, CONTAINS_ANY, CONTAINS_NONE = (_list_form(f"contains_{kind}") for kind in ("all", "any", "none"))
EQUALS = "`equals: TEXT` or `equals: {text: TEXT, in: file:NAME}`"
REGEX = "`regex: PATTERN` or `regex: {pattern: PATTERN, flags: ims, in: file:NAME}`"


def occurrences(folded: str, text: str, *, words: bool) -> int:
    """How often folded text holds `text`, without overlap; `words`: only where no word goes on before or after it."""
    needle = fold(text)
    if not words:
        return folded.count(needle)
    before = r"(?<!\w)" if _is_word(needle[0]) else ""
    after = r"(?!\w)" if _is_word(needle[-1]) else ""
    return sum(1 for _ in re.finditer(before + re.escape(needle) + after, folded))


def _is_word(character: str) -> bool:
    return re.match(r"\w", character) is not None


def contains(argument: Any, per_occurrence: bool) -> Run:
    options = Arguments("contains", CONTAINS, argument, main="text", options=("words", "in"))
    text, words, target = options.text("text"), options.flag("words", False), options.target()
    return _any_of([text], words, target, per_occurrence)


def contains_any(argument: Any, per_occurrence: bool) -> Run:
    texts, words, target = _several("contains_any", CONTAINS_ANY, argument)
    return _any_of(texts, words, target, per_occurrence)


def _any_of(texts: list[str], words: bool, target: str, per_occurrence: bool) -> Run:
    def run(evidence: Evidence) -> CheckResult:
        folded = read_folded(evidence, target)
        counts = {text: count for text in texts if (count := occurrences(folded, text, words=words))}
        if not counts:
            return failed(f"{place(target)} contains none of: {_quoted(texts)}" if len(texts) > 1 else _lacks(target, texts))
        total = sum(counts.values())
        found = f"{place(target)} contains {_quoted(counts)}"
        return CheckResult(float(total), f"{found}, {total} in all") if per_occurrence else passed(found)

    return run


def contains_all(argument: Any, _per_occurrence: bool) -> Run:
    texts, words, target = _several("contains_all", CONTAINS_ALL, argument)

    def run(evidence: Evidence) -> CheckResult:
        folded = read_folded(evidence, target)
        lacking = [text for text in texts if not occurrences(folded, text, words=words)]
        return decided(not lacking, f"{place(target)} contains {_quoted(texts)}", _lacks(target, lacking))

    return run


def contains_none(argument: Any, _per_occurrence: bool) -> Run:
    texts, words, target = _several("contains_none", CONTAINS_NONE, argument)

    def run(evidence: Evidence) -> CheckResult:
        folded = read_folded(evidence, target)
        found = [text for text in texts if occurrences(folded, text, words=words)]
        return decided(
            not found, f"{place(target)} contains none of: {_quoted(texts)}", f"{place(target)} contains {_quoted(found)}"
        )

    return run


def _several(name: str, form: str, argument: Any) -> tuple[list[str], bool, str]:
    options = Arguments(name, form, argument, main="texts", options=("words", "in"))
    return options.texts("texts"), options.flag("words", False), options.target()


def _quoted(texts: Any) -> str:
    return ", ".join(shown(text, 40) for text in texts)


def _lacks(target: str, texts: list[str]) -> str:
    return f"{place(target)} does not contain {_quoted(texts)}"


def equals(argument: Any, _per_occurrence: bool) -> Run:
    options = Arguments("equals", EQUALS, argument, main="text", options=("in",))
    text, target = options.text("text"), options.target()

    def run(evidence: Evidence) -> CheckResult:
        found = read_text(evidence, target)
        return decided(
            fold(found) == fold(text),
            f"{place(target)} is {shown(text)}",
            f"{place(target)} is {shown(found)}, not {shown(text)}",
        )

    return run


def regex(argument: Any, per_occurrence: bool) -> Run:
    options = Arguments("regex", REGEX, argument, main="pattern", options=("flags", "in"))
    pattern, target = unicodedata.normalize("NFC", options.text("pattern")), options.target()
    flags = _flags(options)
    try:
        compiled = re.compile(pattern, flags)
    except (re.error, RecursionError, OverflowError) as error:
        raise options.wrong(f"can't read the pattern {shown(pattern)}: {error}") from None
    if compiled.search(""):
        raise options.wrong(
            f"has the pattern {shown(pattern)}, which fits an empty text and so every answer; use `not` to say what must be missing"
        )

    def run(evidence: Evidence) -> CheckResult:
        text = unicodedata.normalize("NFC", read_text(evidence, target))
        count, first = _search(compiled, text)
        if not count:
            return failed(f"nothing in {place(target)} fits {shown(pattern)}")
        found = f"{place(target)} has {shown(first)} for {shown(pattern)}"
        return CheckResult(float(count), f"{found}, {count} in all") if per_occurrence else passed(found)

    return run


def _flags(options: Arguments) -> re.RegexFlag:
    letters = options.optional_text("flags") or ""
    unknown = [letter for letter in letters if letter not in _FLAGS]
    if unknown:
        raise options.wrong(f"has no flag {unknown[0]!r}, only {', '.join(_FLAGS)}")
    return functools.reduce(lambda flags, letter: flags | _FLAGS[letter], letters, re.RegexFlag(0))


# A match that backtracks holds the interpreter's lock and can't be interrupted from a thread, so a search whose cost can
# explode on what an agent wrote runs in a process that can be killed.
_CHILD = """
import json, re, sys
pattern, flags, text = json.load(sys.stdin)
matches = (m for m in re.finditer(pattern, text, flags))
first = next(matches, None)
print(json.dumps([0, ""] if first is None else [1 + sum(1 for _ in matches), first.group()[:200]]))
"""


def _search(pattern: re.Pattern[str], text: str) -> tuple[int, str]:
    """The number of matches and the first one."""
    degree = _degree(pattern.pattern, pattern.flags)
    if degree is not None and max(len(text), 2) ** (degree + 1) <= _STEPS_IN_PROCESS:
        found = [match.group() for match in pattern.finditer(text)]
        return len(found), found[0] if found else ""
    request = json.dumps([pattern.pattern, pattern.flags, text])
    try:
        child = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _CHILD],
            input=request,
            capture_output=True,
            text=True,
            timeout=REGEX_TIMEOUT_S,
            check=True,
        )
    except subprocess.TimeoutExpired:
        raise SpecError(
            f"the pattern {shown(pattern.pattern)} took more than {REGEX_TIMEOUT_S:g} s on a text of {len(text)} characters",
            hint="avoid a repeat within a repeat, or make the inner one possessive: (?:\\w++\\s)* instead of (\\w+\\s*)*",
        ) from None
    count, first = json.loads(child.stdout)
    return int(count), str(first)


@functools.lru_cache(maxsize=1024)
def _degree(pattern: str, flags: int) -> int | None:
    """How many repeats can each multiply the cost of a match by the length of the text; None: a choice within a repeat, whose
    cost can be exponential."""
    parser: Any = import_module("re._parser")
    return _repeats(parser.parse(pattern, flags), inside=False)


def _repeats(node: Any, *, inside: bool) -> int | None:
    """node: the parser's tree of (operation, argument) pairs in sequences."""
    if isinstance(node, int) or not hasattr(node, "__getitem__"):
        return 0
    pair = cast(tuple[Any, ...], node) if isinstance(node, tuple) else ()
    operation = str(pair[0]) if len(pair) == 2 else ""
    repeat = operation.endswith("_REPEAT")
    if inside and (repeat or operation == "BRANCH"):
        return None
    below = [_repeats(child, inside=inside or repeat) for child in cast(list[Any], node)]
    return None if None in below else sum(count or 0 for count in below) + repeat
