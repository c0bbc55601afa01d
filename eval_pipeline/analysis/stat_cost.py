"""What model calls cost: disjoint token classes from the providers' shapes, priced in decimals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, cast

Convention = Literal["anthropic", "openai"]

INPUT_CLASSES = ("input", "cache_read", "cache_write_5m", "cache_write_1h")
TOKEN_CLASSES = (*INPUT_CLASSES, "output")


@dataclass(frozen=True, kw_only=True)
class CallCost:
    """tokens: by disjoint class, reasoning inside output. cost_usd: None when a class that was used has no price.

    cold_cost_usd: had nothing come from a cache. cache_share: of the input tokens, None without any.
    """

    tokens: Mapping[str, int]
    cost_usd: Decimal | None
    cold_cost_usd: Decimal | None
    cache_share: float | None


def call_cost(
    usage: Mapping[str, Any], provider_convention: Convention, price_usd_per_mtok: Mapping[str, str | Decimal | None]
) -> CallCost:
    """Price a provider's usage record. Prices are decimals by token class, US dollars per million tokens."""
    tokens = disjoint_tokens(usage, provider_convention)
    read = tokens["input"] + tokens["cache_read"]
    sent = sum(tokens[name] for name in INPUT_CLASSES)
    return CallCost(
        tokens=tokens,
        cost_usd=token_cost(tokens, price_usd_per_mtok),
        cold_cost_usd=token_cost({**tokens, "input": read, "cache_read": 0}, price_usd_per_mtok),
        cache_share=tokens["cache_read"] / sent if sent else None,
    )


def token_cost(tokens: Mapping[str, int], price_usd_per_mtok: Mapping[str, str | Decimal | None]) -> Decimal | None:
    """None as soon as a class with tokens has no price: an unknown price is not 0."""
    total = Decimal(0)
    for name, count in tokens.items():
        price = price_usd_per_mtok.get(name)
        if count and price is None:
            return None
        total += Decimal(price or 0) * count
    return total / 1_000_000


def disjoint_tokens(usage: Mapping[str, Any], provider_convention: Convention) -> dict[str, int]:
    """Anthropic counts cache tokens outside `input_tokens`; OpenAI (and Gemini in its shape) counts cached tokens inside
    `prompt_tokens` and reasoning inside `completion_tokens`. Raises ValueError for counts that contradict each other.
    """
    match provider_convention:
        case "anthropic":
            return _anthropic(usage)
        case "openai":
            return _openai(usage)
        case _:
            raise ValueError(f"unknown usage convention {provider_convention!r}: anthropic or openai")


def _anthropic(usage: Mapping[str, Any]) -> dict[str, int]:
    written, by_age = _count(usage, "cache_creation_input_tokens"), _part(usage, "cache_creation")
    hour = _count(by_age, "ephemeral_1h_input_tokens")
    if hour > written:
        raise ValueError(f"{hour} tokens written for an hour are a part of all {written} written and can't exceed them")
    return {
        "input": _count(usage, "input_tokens"),
        "cache_read": _count(usage, "cache_read_input_tokens"),
        "cache_write_5m": written - hour,
        "cache_write_1h": hour,
        "output": _count(usage, "output_tokens"),
    }


def _openai(usage: Mapping[str, Any]) -> dict[str, int]:
    sent, output = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    cached = _count(usage, "cached_tokens") or _count(_part(usage, "prompt_tokens_details"), "cached_tokens")
    reasoning = _count(usage, "reasoning_tokens") or _count(_part(usage, "completion_tokens_details"), "reasoning_tokens")
    if cached > sent or reasoning > output:
        raise ValueError(
            f"cached ({cached}) is a part of prompt ({sent}), reasoning ({reasoning}) of completion ({output}): neither can exceed it"
        )
    return {"input": sent - cached, "cache_read": cached, "cache_write_5m": 0, "cache_write_1h": 0, "output": output}


def _part(usage: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = usage.get(name)
    return cast(Mapping[str, Any], found) if isinstance(found, Mapping) else {}


def _count(usage: Mapping[str, Any], name: str) -> int:
    value = usage.get(name)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} must be a count of tokens, found {value!r}")
    return value
