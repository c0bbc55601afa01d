"""Numbers, days and JSON in the many ways they are written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval_pipeline.scoring.checks import Evidence, run_check

steady = settings(deadline=None)


def number(answer: str, value: float, **options: Any) -> bool:
    return run_check({"number": {"value": value, **options}}, Evidence(answer=answer)).verdict == 1


WRITTEN = [
    ("about 1.2 million euros", 1_200_000, "EUR"),
    ("about 1.2m EUR", 1_200_000, "€"),
    ("€1.2m.", 1_200_000, "euro"),
    ("EUR 4,2 Mio.", 4_200_000, "eur"),
    ("4,2 Mio. €", 4_200_000, "EUR"),
    ("4.200.000,00 EUR", 4_200_000, "EUR"),
    ("1,234,567.89 USD", 1_234_567.89, "$"),
    ("CHF 1'234'567.89", 1_234_567.89, "CHF"),
    ("CHF 1’234’567.89", 1_234_567.89, "CHF"),
    ("12\u202f500 Euro", 12_500, "EUR"),
    ("12\u00a0500 Euro", 12_500, "EUR"),
    ("TEUR 5", 5_000, "EUR"),
    ("5 T€", 5_000, "EUR"),
    ("5 k€", 5_000, "EUR"),
    ("$1bn", 1_000_000_000, "USD"),
    ("1 Mrd. Euro", 1_000_000_000, "EUR"),
    ("USD1.5m", 1_500_000, "usd"),
    ("EUR 10,- only", 10, "EUR"),
    ("-€3", -3, "EUR"),
    ("−3 EUR", -3, "EUR"),
    ("minus 3 euros", -3, "EUR"),
    ("12 %", 12, "percent"),
    ("12,5 Prozent", 12.5, "%"),
    ("12pct", 12, "%"),
    ("2 percentage points", 2, "pp"),
    ("a 30-day notice", 30, "days"),
    ("30 Tage", 30, "days"),
    ("5-10 days", 10, "days"),
    ("5–10 days", 10, "days"),
    ("two (2) years", 2, "years"),
    ("25 m²", 25, "sqm"),
    ("5 m", 5, "m"),
    ("50 basis points", 50, "basis points"),
    ("١٥ days", 15, "days"),
    ("١٬٢٣٤٫٥ EUR", 1234.5, "EUR"),
    ("\u2067١٥\u2069 days", 15, "days"),
    ("１５ days", 15, "days"),
]


@pytest.mark.parametrize(("answer", "value", "unit"), WRITTEN)
def test_a_number_is_found_as_people_write_it(answer: str, value: float, unit: str) -> None:
    assert number(f"Well: {answer} in all.", value, unit=unit)
    assert not number(f"Well: {answer} in all.", value * 1.01, unit=unit)
    assert not number(f"Well: {answer} in all.", value, unit="hectolitres")


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("12 500 EUR", 500),
        ("appendix A5", 5),
        ("the 3rd", 3),
        ("on 31.03.2026", 31),
        ("on 31.03.2026", 3.2026),
        ("5m", 5),
        ("1,2,3", 2),
        ("2020-3", -3),
        ("- 3 apples", -3),
        ("thirty", 30),
        ("1.234.5", 1234.5),
    ],
)
def test_what_only_looks_like_the_number_is_not_it(answer: str, value: float) -> None:
    assert not number(answer, value)


def test_an_open_mark_reads_both_ways_until_it_is_named() -> None:
    assert number("1,234", 1234) and number("1,234", 1.234)
    assert number("1,234", 1234, decimal=".") and not number("1,234", 1.234, decimal=".")
    assert number("1,234", 1.234, decimal=",") and not number("1,234", 1234, decimal=",")


def test_percent_without_a_unit_is_also_the_share() -> None:
    assert number("12%", 0.12) and number("12%", 12) and not number("12 days", 0.12)


def test_tolerance_is_absolute_or_a_share_of_the_value() -> None:
    assert number("rent is 103", 100, tolerance="3%") and not number("rent is 103.1", 100, tolerance="3%")
    assert number("rent is 97", 100, tolerance=3) and not number("rent is 96.9", 100, tolerance=3)
    assert number("loss of -103", -100, tolerance="3%") and not number("0.1 + 0.2", 0.3)


def test_near_looks_only_around_the_text() -> None:
    text = "Kiel: 5 staff. " + "x " * 100 + "Bremen: 3 staff."
    assert number(text, 3, near="bremen") and number(text, 5, near="Kiel")
    assert not number(text, 5, near="Bremen") and not number(text, 3, near="Lübeck")
    assert number(text, 5, near="Bremen", within=400)


@steady
@given(st.decimals(-999_999_999, 999_999_999, places=2, allow_nan=False))
def test_a_formatted_number_is_found_again(value: Any) -> None:
    english = f"{value:,.2f}"
    german = english.translate(str.maketrans(",.", ".,"))
    for text in (english, german, f"{value}"):
        assert number(f"It is {text} EUR.", float(value), unit="EUR", tolerance=0.001), text


DAYS = [
    "2026-03-31",
    "31 March 2026",
    "March 31, 2026",
    "31.03.2026",
    "31/03/2026",
    "03/31/2026",
    "31. März 2026",
    "31st of March, 2026",
    "31.3.26",
    "31-Mar-2026",
    "the 31st day of March 2026",
    "Mar. 31 2026",
    "2026-03-31T10:00:00Z",
    "2026/03/31",
    "on 31. 03. 2026.",
    "(MARCH 31ST 2026)",
    "31\xa0March\xa02026",
    "31 Mar\nch 2026",
]


@pytest.mark.parametrize("text", DAYS[:-1])
def test_a_day_is_found_as_people_write_it(text: str) -> None:
    assert run_check({"date": "2026-03-31"}, Evidence(answer=f"Signed {text}, in Kiel")).verdict == 1
    assert run_check({"date": "2026-03-30"}, Evidence(answer=f"Signed {text}, in Kiel")).verdict == 0


@pytest.mark.parametrize(
    "text", [DAYS[-1], "131.03.2026", "31.03.20261", "10.31.03.2026", "31 March", "March 2026", "31.02.2026"]
)
def test_what_only_looks_like_a_day_is_none(text: str) -> None:
    assert run_check({"date": "2026-03-31"}, Evidence(answer=text)).verdict == 0


def test_the_day_comes_first_unless_said_otherwise() -> None:
    def found(**options: Any) -> list[str]:
        days = ("2026-03-04", "2026-04-03")
        return [d for d in days if run_check({"date": {"date": d, **options}}, Evidence(answer="03/04/2026")).verdict]

    assert found() == ["2026-04-03"] and found(day_first=False) == ["2026-03-04"]
    assert run_check({"date": {"date": "2026-04-03", "day_first": False}}, Evidence(answer="03.04.2026")).verdict == 1


@steady
@given(st.dates())
def test_every_day_of_the_calendar_is_read_back(day: Any) -> None:
    for text in (
        day.isoformat(),
        f"{day.day}. {day:%B} {day.year:04}",
        f"{day:%B} {day.day}, {day.year:04}",
        f"{day.day:02}.{day.month:02}.{day.year:04}",
    ):
        assert run_check({"date": day.isoformat()}, Evidence(answer=text)).verdict == 1, text


def json_path(argument: Any, **evidence: Any) -> float:
    return run_check({"json_path": argument}, Evidence(answer=evidence.pop("answer", None), **evidence)).verdict


TREE = '{"a": {"b": [{"c": "Kiel  Lease"}, {"c": 4.5, "d": null, "e f.g": true}]}}'


@pytest.mark.parametrize(
    "argument",
    [
        "a.b[0].c",
        {"path": "$.a.b[0].c", "equals": "kiel lease"},
        {"path": "a.b[-1].c", "equals": 4.5},
        {"path": "a.b[1].c", "number": 4.4, "tolerance": "5%"},
        {"path": "a.b[1].d", "equals": None},
        {"path": "a.b[1]['e f.g']", "equals": True},
        {"path": "a", "equals": {"b": [{"c": "Kiel Lease"}, {"c": 4.5, "d": None, "e f.g": True}]}},
    ],
)
def test_a_value_is_found_in_every_place_json_can_stand(argument: Any) -> None:
    assert json_path(argument, answer=TREE) == 1
    assert json_path(argument, answer=f"Here it is:\n```\nno\n```\n```json\n{TREE}\n```\nDone.") == 1
    options: dict[str, Any] = {"path": argument} if isinstance(argument, str) else argument
    assert json_path({**options, "in": "file:out/r.json"}, files={"out/r.json": TREE.encode()}) == 1
    assert json_path({**options, "in": "result"}, result=json.loads(TREE)) == 1


@pytest.mark.parametrize(
    "argument",
    [
        "a.b[2]",
        "a.c",
        "a.b.c",
        "a[0]",
        {"path": "a.b[1]['e f.g']", "equals": 1},
        {"path": "a.b[1].d", "equals": 0},
        {"path": "a.b[1].c", "equals": "4.5"},
        {"path": "a.b[0].c", "number": 4},
        {"path": "a.b[1]['e f.g']", "number": 1},
    ],
)
def test_another_value_is_not_the_value(argument: Any) -> None:
    assert json_path(argument, answer=TREE) == 0


@pytest.mark.parametrize("text", ["[" * 200_000, "1" * 10_000, "NaN", '{"a": 1', "```json\n{\n```", "```" + " " * 500_000 + "x"])
def test_broken_json_is_absent(text: str) -> None:
    result = run_check({"json_path": "a"}, Evidence(answer=text))
    assert (result.verdict, result.absent) == (0, True)


def test_huge_numbers_in_json_are_compared_and_infinite_ones_fit_nothing() -> None:
    assert json_path({"path": "a", "number": 1}, answer='{"a": 1' + "0" * 400 + "}") == 0
    assert json_path({"path": "a", "number": 1, "tolerance": "100%"}, answer='{"a": 1e999}') == 0
