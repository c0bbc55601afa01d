"""Numbers as people write them, and the check `number`."""

from __future__ import annotations

import functools
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from eval_pipeline.scoring.check_base import (
    Arguments,
    CheckResult,
    Evidence,
    Run,
    failed,
    fold,
    passed,
    place,
    read_folded,
    shown,
)

NUMBER = "`number: 4200000` or `number: {value: 4.2, tolerance: 0.1 or 2%, unit: EUR, near: TEXT, within: 100, decimal: '.', in: file:NAME}`"
NEAR_CHARACTERS = 100
_MAX_CHARACTERS = 40

_UNITS: dict[str, tuple[str, ...]] = {
    "eur": ("€", "eur", "euro", "euros"),
    "usd": ("$", "us$", "usd", "dollar", "dollars"),
    "gbp": ("£", "gbp", "pound", "pounds", "pfund"),
    "chf": ("chf", "sfr", "franken", "swiss francs"),
    "jpy": ("¥", "jpy", "yen"),
    "%": ("%", "percent", "per cent", "pct", "prozent", "v.h."),
    "pp": ("pp", "percentage points", "percentage point", "prozentpunkte", "prozentpunkt"),
    "s": ("s", "sec", "second", "seconds", "sekunde", "sekunden"),
    "min": ("min", "minute", "minutes", "minuten"),
    "h": ("h", "hour", "hours", "stunde", "stunden"),
    "days": ("d", "day", "days", "tag", "tage", "tagen"),
    "weeks": ("week", "weeks", "woche", "wochen"),
    "months": ("month", "months", "monat", "monate", "monaten"),
    "years": ("year", "years", "yr", "yrs", "jahr", "jahre", "jahren"),
    "x": ("x", "times", "×", "mal"),
    "kg": ("kg", "kilogram", "kilograms", "kilogramm"),
    "m": ("m", "metre", "metres", "meter", "meters", "metern"),
    "km": ("km", "kilometre", "kilometres", "kilometer", "kilometers"),
    "m2": ("m2", "qm", "sqm", "square metres", "square meters", "quadratmeter"),
}
_BEFORE = ("€", "eur", "euro", "us$", "usd", "$", "£", "gbp", "chf", "sfr", "¥", "jpy")
_SCALES: dict[str, int] = {
    **dict.fromkeys(("k", "t", "tsd", "tausend", "thousand"), 10**3),
    **dict.fromkeys(("m", "mm", "mn", "mio", "mln", "million", "millions", "millionen"), 10**6),
    **dict.fromkeys(("b", "bn", "mrd", "billion", "billions", "milliarde", "milliarden"), 10**9),
    **dict.fromkeys(("tn", "trillion", "trillions"), 10**12),
}


def _choice(words: tuple[str, ...] | list[str]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


# Runs over folded text. Repeats are possessive and every start is fixed by what precedes it, so the cost is linear.
_BEFORE_PATTERN = rf"(?:(?P<early_sign>(?<![\w)])-)?(?<!\w)(?P<before_scale>[tkm])?(?P<before>{_choice(_BEFORE)})\.?\s?)?"
_DIGITS = r"(?P<digits>\d{1,3}(?:,\d{3})++(?:\.\d++)?|\d{1,3}(?:\.\d{3})++(?:,\d++)?|\d{1,3}(?:[ ']\d{3})++(?:[.,]\d++)?|\d++(?:[.,]\d++)?|[.,]\d++)"
_FOUND = re.compile(rf"{_BEFORE_PATTERN}(?<![\d.,])(?P<sign>(?<![\w)])[-+]|(?<!\w)minus )?(?<![\d.,]){_DIGITS}(?![.,']?\d)")
_SCALE = re.compile(rf"\)?[\s-]?(?P<scale>{_choice(list(_SCALES))})\.?(?!\w)")
_FUSED = re.compile(rf"\s?(?P<scale>[tkm])(?P<unit>{_choice(_BEFORE)})(?!\w)")


@dataclass(frozen=True, kw_only=True)
class Number:
    """A number in a text. values: its readings, more than one where the text leaves it open (1,234 and 1.234).

    before: the currency in front of it; rest: where the text goes on after its scale word.
    """

    start: int
    end: int
    values: tuple[Decimal, ...]
    before: str | None
    rest: int


def numbers(folded: str, *, decimal: str | None = None, metres: bool = False) -> Iterator[Number]:
    """Every number of a folded text. decimal: the only decimal mark to accept. metres: m is a unit, not a million."""
    for match in _FOUND.finditer(folded):
        start, end = match.start("digits"), match.end("digits")
        if end - start > _MAX_CHARACTERS or (match["before"] is None and start and folded[start - 1].isalpha()):
            continue
        scale, rest = _scale(folded, end, match["before_scale"], metres=metres)
        if rest == end and folded[end : end + 1].isalpha() and not _unit_follows(folded, end):
            continue
        sign = -1 if match["early_sign"] or match["sign"] in ("-", "minus ") else 1
        values = tuple(sign * scale * value for value in _readings(match["digits"], decimal))
        if values:
            yield Number(start=start, end=end, values=values, before=match["before"], rest=rest)


def _scale(folded: str, end: int, before: str | None, *, metres: bool) -> tuple[int, int]:
    """The factor, and where the text goes on after the word for it."""
    if fused := _FUSED.match(folded, end):
        return _SCALES[fused["scale"]], fused.start("unit")
    found = _SCALE.match(folded, end)
    if found and not (metres and found["scale"] == "m") and not (found["scale"] == "t" and found.start("scale") > end):
        return _SCALES[found["scale"]], found.end()
    return (_SCALES[before] if before else 1), end


def _readings(digits: str, decimal: str | None) -> list[Decimal]:
    """All numbers the digits can stand for: a single mark before exactly three digits is a decimal or a thousand separator."""
    plain = digits.replace(" ", "").replace("'", "")
    marks = [mark for mark in plain if mark in ".,"]
    if not marks:
        return [Decimal(plain)]
    last = marks[-1]
    as_decimal = Decimal(_without_others(plain, last).replace(last, ".")) if marks.count(last) == 1 else None
    grouped = len(set(marks)) == 1 and re.fullmatch(r"\d{1,3}(?:[.,]\d{3})+", plain) is not None
    readings: list[Decimal] = []
    if as_decimal is not None and decimal in (None, last):
        readings.append(as_decimal)
    if grouped and decimal != last:
        readings.append(Decimal(plain.replace(last, "")))
    return readings


def _without_others(digits: str, mark: str) -> str:
    return digits.replace("," if mark == "." else ".", "")


@functools.lru_cache(maxsize=256)
def _unit_pattern(unit: str) -> re.Pattern[str]:
    words = _synonyms(unit)
    return re.compile(rf"\)?[\s-]?(?:{_choice(words)})(?!\w)")


@functools.lru_cache(maxsize=256)
def _synonyms(unit: str) -> tuple[str, ...]:
    folded = fold(unit)
    for words in _UNITS.values():
        if folded in words:
            return words
    return (folded,)


_ANY_UNIT = re.compile(rf"(?:{_choice([word for words in _UNITS.values() for word in words])})(?!\w)")


def _unit_follows(folded: str, end: int) -> bool:
    return _ANY_UNIT.match(folded, end) is not None


def _has_unit(folded: str, number: Number, unit: str) -> bool:
    if number.before is not None and number.before in _synonyms(unit):
        return True
    return _unit_pattern(unit).match(folded, number.rest) is not None


def western_digits(text: str) -> str:
    """Any script's decimal digits as 0-9, with the Arabic marks; minus signs and dashes as they are used before a number."""
    if text.isascii():
        return text
    text = re.sub(r"(?![0-9])\d", lambda match: str(unicodedata.decimal(match.group())), text)
    return text.translate({0x066B: ".", 0x066C: ",", 0x2212: "-", 0x2013: "-", 0x2019: "'"})


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A value within `tolerance` of which a number counts."""

    value: Decimal
    tolerance: Decimal

    def fits(self, number: Decimal) -> bool:
        return abs(number - self.value) <= self.tolerance + abs(self.value) * Decimal("1e-12")


def wanted(options: Arguments, key: str = "value") -> Wanted:
    """Read `value` and `tolerance`: absolute as a number, relative to the value as `2%`. Raises ValueError."""
    value = options.decimal(key)
    given = options.value("tolerance")
    if isinstance(given, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", given)
        if match is None:
            raise options.wrong(f"has the tolerance {shown(given)}: a number, or a share of the value as `2%`")
        return Wanted(value=value, tolerance=abs(value) * Decimal(match[1]) / 100)
    tolerance = options.decimal("tolerance") if given is not None else Decimal(0)
    if tolerance < 0:
        raise options.wrong(f"has a negative tolerance, {tolerance}")
    return Wanted(value=value, tolerance=tolerance)


def number(argument: Any, _per_occurrence: bool) -> Run:
    names = ("tolerance", "unit", "near", "within", "decimal", "in")
    options = Arguments("number", NUMBER, argument, main="value", options=names)
    want, target, within = wanted(options), options.target(), options.whole("within", NEAR_CHARACTERS, least=1)
    unit, near, mark = options.optional_text("unit"), options.optional_text("near"), options.optional_text("decimal")
    if mark not in (None, ".", ","):
        raise options.wrong(f"knows the decimal marks . and , only, found {shown(mark)}")

    def run(evidence: Evidence) -> CheckResult:
        folded = western_digits(read_folded(evidence, target))
        spans = _spans(folded, near) if near else None
        if spans == []:
            return failed(f"{place(target)} does not contain {shown(near or '')}")
        metres = unit is not None and "m" in _synonyms(unit)
        found = [n for n in numbers(folded, decimal=mark, metres=metres) if _looked_at(folded, n, unit, spans, within)]
        for candidate in found:
            if any(want.fits(value) for value in _values(folded, candidate, unit)):
                return passed(f"{place(target)} gives {shown(_context(folded, candidate))}")
        near_it = f" near {shown(near)}" if near else ""
        others = ", ".join(shown(_context(folded, n), 30) for n in found[:5]) or "none"
        asked = f"{want.value}{' ' + unit if unit else ''}" + (f" (± {want.tolerance.normalize():f})" if want.tolerance else "")
        return failed(f"{place(target)} does not give {asked}{near_it}; numbers there: {others}")

    return run


def _spans(folded: str, near: str) -> list[tuple[int, int]]:
    return [match.span() for match in re.finditer(re.escape(western_digits(fold(near))), folded)]


def _looked_at(folded: str, number: Number, unit: str | None, spans: list[tuple[int, int]] | None, within: int) -> bool:
    if unit is not None and not _has_unit(folded, number, unit):
        return False
    if spans is None:
        return True
    at = bisect_left(spans, (number.start, 0))
    after, before = spans[at : at + 1], spans[max(at - 1, 0) : at]
    return any(start - number.end <= within for start, _ in after) or any(number.start - end <= within for _, end in before)


def _values(folded: str, number: Number, unit: str | None) -> tuple[Decimal, ...]:
    """With no unit asked for, 5% is 5 and 0.05."""
    if unit is None and _unit_pattern("%").match(folded, number.rest):
        return (*number.values, *(value / 100 for value in number.values))
    return number.values


def _context(folded: str, number: Number) -> str:
    return folded[max(0, number.start - 12) : number.end + 12]
