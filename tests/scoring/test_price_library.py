"""List prices as our rows, against what their library itself charges for the same calls."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import genai_prices
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_pipeline.domain.usage import Usage
from eval_pipeline.scoring.price_library import names_in, unpriced_in, with_list_prices
from eval_pipeline.scoring.prices import TOKEN_CLASSES, PriceBook

MODELS = [("openai", "gpt-4o"), ("openai", "gpt-5"), ("anthropic", "claude-haiku-4-5-20251001"), ("anthropic", "claude-opus-4-6")]
BOOK = with_list_prices(PriceBook(()), [name for _, name in MODELS])
few = st.integers(0, 30_000)  # together below the length from which some are dearer


@pytest.mark.parametrize("day", [date(2026, 2, 1), date(2026, 11, 1)])
@given(which=st.sampled_from(MODELS), plain=few, read=few, short=few, hour=few, output=few)
def test_a_call_costs_what_the_library_says(
    day: date, which: tuple[str, str], plain: int, read: int, short: int, hour: int, output: int
) -> None:
    provider, model = which
    if provider == "openai":
        short = hour = 0
    usage = Usage(model=model, input_uncached=plain, cache_read=read, cache_write_5m=short, cache_write_1h=hour, output=output)
    theirs = genai_prices.calc_price(
        genai_prices.Usage(
            input_tokens=plain + read + short + hour,
            cache_read_tokens=read,
            cache_write_tokens=short + hour,
            cache_write_1h_tokens=hour,
            output_tokens=output,
        ),
        model,
        provider_id=provider,
        genai_request_timestamp=datetime(day.year, day.month, day.day, 12, tzinfo=UTC),
    )
    assert BOOK.cost([usage], day) == theirs.total_price


def test_our_own_row_wins_and_what_is_no_model_has_none() -> None:
    own = {
        "provider": "p",
        "model": "gpt-5",
        "effective_from": "2026-01-01",
        "source": "a contract",
        **dict.fromkeys(TOKEN_CLASSES, "1"),
    }
    book = with_list_prices(PriceBook.from_rows([own], "prices"), ["gpt-5", "bm25", "stand-in", "", "gpt-4o"])
    assert [(row.model, row.provider) for row in book.rows] == [("gpt-5", "p"), ("gpt-4o", "openai")]
    assert book.cost([Usage(model="gpt-5", output=10**6)], date(2026, 6, 1)) == Decimal(1)
    assert PriceBook.from_rows(book.as_data(), "again") == book


def test_the_source_says_where_a_longer_context_costs_more() -> None:
    rows = [row for row in BOOK.rows if row.model == "claude-opus-4-6"]
    assert ["dearer above" in row.source for row in rows] == [True, False]
    assert rows[0].effective_to == rows[1].effective_from and rows[1].effective_to is None


def test_models_are_looked_for_where_a_config_speaks_of_them() -> None:
    config: dict[str, Any] = {
        "model": "openai:gpt-5",
        "retrieval": "gpt-4o",
        "agents": {"reader": {"model_name": "claude-x"}, "models": ["a", {"b": "c/d"}]},
        "top_k": 3,
    }
    assert names_in(config) == {"openai:gpt-5", "gpt-5", "claude-x", "a", "c/d", "d"}


def test_models_of_a_config_without_a_price() -> None:
    prices = with_list_prices(PriceBook(()), ["gpt-4o"])
    config = {"model": "mystery-9", "judge": {"small_models": ["openai:gpt-4o", "other"]}, "model_region": "eu", "k": "x"}
    assert unpriced_in(config, prices, date(2026, 6, 1)) == ["mystery-9", "other"]
    assert unpriced_in({"top_k": 4}, prices, date(2026, 6, 1)) == []
