"""What every check is made of: the evidence, the result, the reading of arguments and of text."""

from __future__ import annotations

import difflib
import functools
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from eval_pipeline.domain.usage import Usage
from eval_pipeline.domain.world_diff import WorldDiff
from eval_pipeline.scoring.documents import SUFFIXES, Extract, Unreadable, suffix_of
from eval_pipeline.scoring.untrusted import read_document

MAX_SHOWN = 80

# Characters that show nothing: soft hyphen, zero-width and direction marks, variation selectors, byte-order mark.
_INVISIBLE = re.compile("[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufe00-\ufe0f\ufeff]")
_SPACE = re.compile(r"[\s\x00]+")


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where a check that is a program of one's own runs. world_dir: the restored snapshot; None: it sees none."""

    state_dir: Path
    world_dir: Path | None


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What an agent left, and what it worked on.

    answer: None when it gave none. files: its deliverables by relative path. documents: the world's documents as extracted text
    by relative path; the mapping may read lazily. result: the JSON value of its result, None when it wrote none.
    world_diff: what it changed in the application's state; None when no state was dumped. usage: one sum a model; empty: none was
    recorded. bench: None: no such program can be run.
    """

    answer: str | None
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    documents: Mapping[str, str] = field(default_factory=dict[str, str])
    result: Any = None
    world_diff: WorldDiff | None = None
    usage: Sequence[Usage] = ()
    bench: Bench | None = None


@dataclass(frozen=True)
class CheckResult:
    """verdict: 0 or 1, or a count of occurrences. absent: there was nothing to look at (no answer, no such file), which also
    fails what is satisfied by not finding something."""

    verdict: float
    reason: str
    absent: bool = False


Run = Callable[[Evidence], CheckResult]


class Absent(Exception):
    """Nothing to look at; `str()` says what is missing."""


class Undecided(Exception):
    """It can't be said whether the check is met, and that is not the agent's doing; `str()` says why. The verdict is missing."""


def passed(reason: str) -> CheckResult:
    return CheckResult(1.0, reason)


def failed(reason: str) -> CheckResult:
    return CheckResult(0.0, reason)


def decided(ok: bool, yes: str, no: str) -> CheckResult:
    return passed(yes) if ok else failed(no)


def shown(text: str, limit: int = MAX_SHOWN) -> str:
    """A short, printable quotation of text that may hold anything."""
    flat = _SPACE.sub(" ", text.strip()[: 4 * limit])
    cut = flat if len(flat) <= limit else flat[: limit - 1] + "…"
    return "'" + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in cut) + "'"


def listed(names: Iterable[str], limit: int = 8) -> str:
    found = sorted(names)
    more = f" and {len(found) - limit} more" if len(found) > limit else ""
    return (", ".join(shown(name) for name in found[:limit]) + more) or "none"


def nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean `{close[0]}`?)" if close else ""


def tidy(text: str) -> str:
    """Compatibility forms composed (NFKC), invisible characters dropped, every run of whitespace one space."""
    return _SPACE.sub(" ", _INVISIBLE.sub("", unicodedata.normalize("NFKC", text))).strip()


def fold(text: str) -> str:
    """`tidy` without regard to case; composed again, since folding can decompose."""
    return unicodedata.normalize("NFKC", tidy(text).casefold()).strip()


def find_name(names: Iterable[str], wanted: str) -> str | None:
    """A file by name, however its accents are encoded."""
    key = unicodedata.normalize("NFC", wanted)
    return next((name for name in names if unicodedata.normalize("NFC", name) == key), None)


def read_file(evidence: Evidence, name: str) -> bytes:
    """Raises Absent."""
    found = find_name(evidence.files, name)
    if found is None:
        raise Absent(f"there is no file {shown(name)}; the agent wrote: {listed(evidence.files)}")
    return evidence.files[found]


def read_extract(evidence: Evidence, name: str) -> Extract:
    """What stands in a DOCX, XLSX, PDF or e-mail that the agent wrote. Raises Absent."""
    data = read_file(evidence, name)
    try:
        return read_document(data, name)
    except Unreadable as error:
        raise Absent(f"the file {shown(name)} {error}") from None


def file_text(evidence: Evidence, name: str) -> str:
    """Raises Absent."""
    if suffix_of(name) in SUFFIXES:
        return read_extract(evidence, name).text
    return decode(read_file(evidence, name), name)


def decode(data: bytes, name: str) -> str:
    """Text in UTF-8, or in UTF-16 with its mark. Raises Absent for anything else."""
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        raise Absent(f"the file {shown(name)} is not text ({len(data)} bytes, not UTF-8)") from None
    if "\0" in text:
        raise Absent(f"the file {shown(name)} is not text (it holds NUL bytes)")
    return text


def read_text(evidence: Evidence, target: str) -> str:
    """The text `in:` names: never blank. Raises Absent."""
    if target == "answer":
        text, name = evidence.answer or "", "the answer"
    else:
        path = target.removeprefix("file:")
        text, name = file_text(evidence, path), f"the file {shown(path)}"
    if not tidy(text[:4096]) and not tidy(text):
        raise Absent("there is no answer" if target == "answer" and evidence.answer is None else f"{name} is empty")
    return text


@functools.lru_cache(maxsize=4)
def _folded(text: str) -> str:
    return fold(text)


def read_folded(evidence: Evidence, target: str) -> str:
    """`read_text`, folded once for the many criteria that look at the same text. Raises Absent."""
    return _folded(read_text(evidence, target))


def place(target: str) -> str:
    return "the answer" if target == "answer" else shown(target.removeprefix("file:"))


class Arguments:
    """A check's argument: either the short form (the value of `main` alone) or a mapping of options.

    Every reader raises ValueError, and each message ends with the right form.
    """

    def __init__(self, check: str, form: str, argument: Any, *, main: str | None, options: Sequence[str]) -> None:
        self._check, self._form = check, form
        self._values: dict[str, Any]
        if isinstance(argument, dict):
            self._values = cast(dict[str, Any], argument)
        elif main is None:
            raise self.wrong(f"takes a mapping, found {_kind(argument)}")
        else:
            self._values = {main: argument}
        known = [*([main] if main else []), *options]
        for key in self._values:
            if key not in known:
                raise self.wrong(f"has no option {key!r}{nearest(str(key), known)}")

    def wrong(self, what: str) -> ValueError:
        return ValueError(f"check `{self._check}` {what}; write {self._form}")

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def value(self, key: str) -> Any:
        return self._values.get(key)

    def text(self, key: str) -> str:
        """Not blank. Quoting matters: YAML reads 1.10 as a number and yes as true."""
        value = self._values.get(key)
        if not isinstance(value, str):
            raise self.wrong(f"needs text as `{key}`, found {_kind(value)}{_quote_it(value)}")
        if not tidy(value):
            raise self.wrong(f"needs text as `{key}`, found an empty one, which is in every answer")
        return value

    def optional_text(self, key: str) -> str | None:
        return self.text(key) if key in self else None

    def texts(self, key: str) -> list[str]:
        value = self._values.get(key)
        if not isinstance(value, list) or not value:
            raise self.wrong(f"needs a list of texts as `{key}`, found {_kind(value)}")
        return [Arguments(self._check, self._form, item, main=key, options=()).text(key) for item in cast(list[Any], value)]

    def one_or_more(self, key: str) -> list[str]:
        return self.texts(key) if isinstance(self._values.get(key), list) else [self.text(key)]

    def flag(self, key: str, default: bool) -> bool:
        value = self._values.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(f"needs true or false as `{key}`, found {_kind(value)}")
        return value

    def whole(self, key: str, default: int, *, least: int = 0) -> int:
        value = self._values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.wrong(f"needs a whole number of at least {least} as `{key}`, found {_kind(value)}")
        return value

    def decimal(self, key: str) -> Decimal:
        value = self._values.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(f"needs a number as `{key}`, found {_kind(value)}")
        number = Decimal(str(value))
        if not number.is_finite():
            raise self.wrong(f"needs a finite number as `{key}`, found {value}")
        return number

    def target(self, *, also: Sequence[str] = ()) -> str:
        """Where to look: `answer` (default), `file:<name>`, or one of `also`."""
        value = self._values.get("in", "answer")
        if isinstance(value, str) and (value in ("answer", *also) or (value.startswith("file:") and value != "file:")):
            return value
        raise self.wrong(f"looks in {', '.join(('answer', *also))} or file:<name>, found in: {value!r}")


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    names = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "a mapping"}
    name = names.get(cast(type[Any], type(value)), type(value).__name__)
    return f"{name} ({shown(str(value), 40)})"


def _quote_it(value: Any) -> str:
    return "" if value is None or isinstance(value, list | dict) else " (put it in quotes)"
