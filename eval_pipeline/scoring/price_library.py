"""List prices of models from the library `genai-prices`, as rows like our own. It has them in its package: nothing is asked over a network."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from decimal import Decimal
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast

from eval_pipeline.scoring.prices import TOKEN_CLASSES, PriceBook, PriceRow

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice

PROVIDERS = ("openai", "anthropic")
_BEGINNING = "2020-01-01"
_NAMES = {
    "input_uncached": "input_mtok",
    "cache_read": "cache_read_mtok",
    "cache_write_5m": "cache_write_mtok",
    "cache_write_1h": "cache_write_1h_mtok",
    "output": "output_mtok",
}


def names_in(config: Mapping[str, Any]) -> set[str]:
    """What stands below a key that speaks of a model, as it is and without a provider before it (`openai:gpt-5`)."""
    return {name for _, text in _named(config) for name in _spellings(text)}


def unpriced_in(config: Mapping[str, Any], prices: PriceBook, day: date) -> list[str]:
    """The models of it that have no price on that day. A key that ends with `model` names one; `model_region` only may."""
    named = [text for key, text in _named(config) if key.lower().removesuffix("s").endswith("model")]
    return [text for text in dict.fromkeys(named) if not any(prices.row(name, day) for name in _spellings(text))]


def _named(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Texts below a key that speaks of a model, with that key."""
    for key, value in config.items():
        if "model" in key.lower():
            yield from ((key, text) for text in _texts(value))
        elif isinstance(value, Mapping):
            yield from _named(cast(Mapping[str, Any], value))


def _spellings(text: str) -> tuple[str, str]:
    return text, re.split("[:/]", text)[-1]


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        value = [*cast(Mapping[str, Any], value).values()]
    return [text for one in cast(list[Any], value) for text in _texts(one)] if isinstance(value, list | tuple) else []


def family_of(model: str) -> str:
    """Whose model it is: what stands before its name (`openai:gpt-5`), else who makes models of that name, else the name itself."""
    provider, separator, _ = model.replace("/", ":").partition(":")
    if separator:
        return provider
    from genai_prices.data_snapshot import get_snapshot

    try:
        return get_snapshot().find_provider(model, None, None).id
    except LookupError:
        return model


def with_list_prices(own: PriceBook, names: Iterable[str]) -> PriceBook:
    """Our own rows, and the library's for those of `names` that are models it knows and have no row of ours."""
    wanted = sorted({name for name in names if 0 < len(name) <= 200 and name.isprintable()} - {row.model for row in own.rows})
    rows = [row for name in wanted for row in _rows(name)]
    return PriceBook((*own.rows, *rows))


def _rows(name: str) -> list[PriceRow]:
    from genai_prices.data_snapshot import get_snapshot

    for provider in PROVIDERS:
        try:
            _, model = get_snapshot().find_provider_model(name, None, provider, None)
        except LookupError:
            continue
        return _by_day(name, provider, model)
    return []


def _by_day(name: str, provider: str, model: ModelInfo) -> list[PriceRow]:
    """A row for each time with a price of its own. Prices by the time of day are not ours to tell: then there is none."""
    from genai_prices.types import ModelPrice, StartDateConstraint

    listed = model.prices
    if isinstance(listed, ModelPrice):
        periods = [(_BEGINNING, listed)]
    else:
        starts = [one.constraint for one in listed]
        days = [one.start_date.isoformat() for one in starts if isinstance(one, StartDateConstraint)]
        if len(days) + starts.count(None) < len(starts):
            return []
        starts_on = [one.start_date.isoformat() if isinstance(one, StartDateConstraint) else _BEGINNING for one in starts]
        periods = sorted(zip(starts_on, (one.prices for one in listed), strict=True), key=lambda period: period[0])
    ends = [day for day, _ in periods[1:]]
    rows = [_row(name, provider, model.id, day, prices) for day, prices in periods]
    return [row.model_copy(update={"effective_to": end}) for row, end in zip(rows, [*ends, None], strict=True) if row is not None]


def _row(name: str, provider: str, found: str, day: str, prices: ModelPrice) -> PriceRow | None:
    """None: what is read or written has no price. A class that the model doesn't bill apart costs what is read plainly."""
    plain, tiered = _amount(prices, "input_uncached")
    if plain is None or _amount(prices, "output")[0] is None:
        return None
    amounts = {one: _amount(prices, one) for one in TOKEN_CLASSES}
    source = f"genai-prices {version('genai-prices')}: {provider}/{found}, standard tier"
    if tiered or any(step for _, step in amounts.values()):
        source += "; dearer above a length of context, which is not counted"
    given = {one: format(plain if amount is None else amount, "f") for one, (amount, _) in amounts.items()}
    return PriceRow.model_validate({"provider": provider, "model": name, "effective_from": day, "source": source, **given})


def _amount(prices: ModelPrice, token_class: str) -> tuple[Decimal | None, bool]:
    """And whether it is only the first of several."""
    from genai_prices.types import TieredPrices

    value = getattr(prices, _NAMES[token_class], None)
    return (value.base, True) if isinstance(value, TieredPrices) else (value, False)
