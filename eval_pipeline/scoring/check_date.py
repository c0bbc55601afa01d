"""Days as people write them, and the check `date`."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from typing import Any

from eval_pipeline.scoring.check_base import Arguments, CheckResult, Evidence, Run, decided, place, read_folded, shown
from eval_pipeline.scoring.check_number import western_digits

DATE = "`date: '2026-03-31'` or `date: {date: '2026-03-31', day_first: true, in: file:NAME}`"

_MONTHS = (
    "january|jan|januar|jänner",
    "february|feb|februar",
    "march|mar|märz|mrz|maerz",
    "april|apr",
    "may|mai",
    "june|jun|juni",
    "july|jul|juli",
    "august|aug",
    "september|sept|sep",
    "october|oct|oktober|okt",
    "november|nov",
    "december|dec|dezember|dez",
)
_MONTH_NUMBERS = {name: index for index, names in enumerate(_MONTHS, start=1) for name in names.split("|")}
_MONTH = "(?P<month>" + "|".join(sorted(_MONTH_NUMBERS, key=len, reverse=True)) + r")\b\.?"
_DAY = r"(?<![\w.,])(?P<day>\d{1,2})"
_ORDINAL = r"(?:st|nd|rd|th)?\b"

_ISO = re.compile(r"(?<![\w./-])(?P<year>\d{4})(?P<mark>[-/.])(?P<month>\d{1,2})(?P=mark)(?P<day>\d{1,2})(?![\d/-]|\.\d)")
_NUMERIC = re.compile(
    r"(?<![\w./-])(?P<first>\d{1,2})(?P<mark>[-/.]) ?(?P<second>\d{1,2})(?P=mark) ?(?P<year>\d{4}|\d{2})(?![\w/-]|[.,]\d)"
)
_DAY_MONTH = re.compile(rf"{_DAY}(?:\.|{_ORDINAL})[ -]?(?:day of |of )?{_MONTH},?[ -]?(?P<year>\d{{4}})(?!\d)")
_MONTH_DAY = re.compile(rf"\b{_MONTH} ?(?:the )?(?P<day>\d{{1,2}}){_ORDINAL},? ?(?P<year>\d{{4}})(?!\d)")


def days(folded: str, *, day_first: bool = True) -> Iterator[datetime.date]:
    """Every day a folded text names. day_first: how 03/04/2026 is read; 31/03 and 03/31 can be read one way only.

    With dots the day always comes first. A year of two digits is in this century. What is no day of the calendar is left out.
    """
    for pattern in (_ISO, _DAY_MONTH, _MONTH_DAY):
        for match in pattern.finditer(folded):
            month = match["month"]
            yield from _day(int(match["year"]), _MONTH_NUMBERS.get(month) or int(month), int(match["day"]))
    for match in _NUMERIC.finditer(folded):
        first, second, year = int(match["first"]), int(match["second"]), int(match["year"])
        year += 2000 if len(match["year"]) == 2 else 0
        orders = [(first, second), (second, first)] if day_first or match["mark"] == "." else [(second, first), (first, second)]
        yield from next((found for day, month in orders if (found := _day(year, month, day))), list[datetime.date]())


def _day(year: int, month: int, day: int) -> list[datetime.date]:
    try:
        return [datetime.date(year, month, day)]
    except ValueError:
        return []


def date(argument: Any, _per_occurrence: bool) -> Run:
    options = Arguments("date", DATE, argument, main="date", options=("day_first", "in"))
    want, day_first, target = _wanted(options), options.flag("day_first", True), options.target()

    def run(evidence: Evidence) -> CheckResult:
        folded = western_digits(read_folded(evidence, target))
        found = dict.fromkeys(days(folded, day_first=day_first))
        others = ", ".join(day.isoformat() for day in list(found)[:8]) or "none"
        named = f"{place(target)} names {want.isoformat()}"
        return decided(want in found, named, f"{place(target)} does not name {want.isoformat()}; days there: {others}")

    return run


def _wanted(options: Arguments) -> datetime.date:
    value = options.value("date")
    if isinstance(value, datetime.date):  # YAML reads an unquoted day as one
        return value.date() if isinstance(value, datetime.datetime) else value
    text = options.text("date")
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise options.wrong(f"needs a day as YYYY-MM-DD, found {shown(text)}") from None
