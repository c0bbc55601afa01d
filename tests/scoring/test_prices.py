"""Prices by hand: exact decimals, days, and null where a price is missing."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_pipeline.domain.usage import Usage
from eval_pipeline.errors import SpecError
from eval_pipeline.scoring.prices import TOKEN_CLASSES, PriceBook

DAY = date(2026, 6, 1)


def row(model: str = "m", **more: str) -> dict[str, Any]:
    fixed = {"provider": "p", "model": model, "source": "s", "effective_from": "2026-01-01"}
    return {**fixed, **dict.fromkeys(TOKEN_CLASSES, "0"), **more}


def book(*rows: dict[str, Any]) -> PriceBook:
    return PriceBook.from_rows(list(rows), "prices")


def test_a_cost_by_hand() -> None:
    prices = book(row(input_uncached="3", cache_read="0.3", cache_write_5m="3.75", cache_write_1h="6", output="15"))
    usage = Usage(
        model="m", input_uncached=1000, cache_read=2000, cache_write_5m=400, cache_write_1h=100, output=70, reasoning=50
    )
    # 0.003 + 0.0006 + 0.0015 + 0.0006 + 0.00105: reasoning is a part of the output and costs nothing more
    assert prices.cost([usage], DAY) == Decimal("0.00675")
    assert prices.cost([usage, usage], DAY) == Decimal("0.01350")


def test_nothing_used_costs_nothing() -> None:
    assert book().cost([], DAY) == 0
    assert book(row()).cost([Usage(model="m", output=10**9)], DAY) == 0


def test_one_unknown_price_makes_the_cost_unknown() -> None:
    prices = book(row(output="1"))
    assert prices.cost([Usage(model="m", output=5), Usage(model="other", output=1)], DAY) is None
    assert prices.cost([Usage(model="M", output=1)], DAY) is None
    assert book().cost([Usage(model="m")], DAY) is None


@pytest.mark.parametrize(
    "day, output",
    [
        (date(2025, 12, 31), None),
        (date(2026, 1, 1), "1"),
        (date(2026, 2, 28), "1"),
        (date(2026, 3, 1), "2"),
        (date(2026, 5, 31), "2"),
        (date(2026, 6, 1), None),
    ],
)
def test_a_price_holds_from_its_first_day_to_the_day_before_its_last(day: date, output: str | None) -> None:
    rows = [row(output="2", effective_from="2026-03-01", effective_to="2026-06-01"), row(output="1", effective_to="2026-04-01")]
    found = book(*rows).row("m", day)
    assert (found and found.output) == output


def test_days_may_be_written_in_any_iso_form() -> None:
    assert book(row(effective_from="20260101", effective_to="2026-W23-1")).rows[0].effective_from == "2026-01-01"
    assert book(row(effective_to="2026-W23-1")).rows[0].effective_to == "2026-06-01"


@pytest.mark.parametrize(
    "change",
    [
        {"output": "-1"},
        {"output": "NaN"},
        {"output": "sNaN"},
        {"output": "Infinity"},
        {"output": "1,5"},
        {"output": ""},
        {"output": 1},
        {"output": None},
        {"effective_from": "soon"},
        {"effective_to": "2026-13-01"},
        {"currency": "EUR"},
        {"outptu": "1"},
    ],
    ids=repr,
)
def test_rows_that_are_no_prices(change: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="prices: holds a row that is not a price"):
        book({**row(), **change})


@pytest.mark.parametrize("data", [None, {}, "x", [None], [[]], ["x"]], ids=repr)
def test_what_is_no_list_of_rows(data: Any) -> None:
    with pytest.raises(SpecError, match=r"^prices: "):
        PriceBook.from_rows(data, "prices")


def test_the_version_is_of_what_the_rows_say() -> None:
    assert book(row()).version == book(dict(reversed(row().items()))).version
    assert book(row()).version != book(row(output="0.0")).version
    assert book(*book(row()).as_data()).version == book(row()).version


@given(st.lists(st.tuples(st.sampled_from("mn"), st.integers(0, 10**9), st.integers(0, 10**9)), max_size=8))
def test_costs_add_up_however_calls_are_grouped(calls: list[tuple[str, int, int]]) -> None:
    prices = book(row("m", input_uncached="0.1", output="0.7"), row("n", input_uncached="0.000001", output="75"))
    usages = [Usage(model=model, input_uncached=read, output=wrote) for model, read, wrote in calls]
    parts = [prices.cost([usage], DAY) for usage in usages]
    assert prices.cost(usages, DAY) == sum((part for part in parts if part is not None), Decimal(0))
    assert None not in parts
