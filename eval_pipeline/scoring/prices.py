"""Prices of model calls, and what a usage costs. Money is decimal; an unknown price is None, never 0."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import cached_property
from typing import Any, Literal

from pydantic import ValidationError, field_validator

from eval_pipeline.domain.base import Spec
from eval_pipeline.domain.canonical import canonical_json, digest
from eval_pipeline.domain.usage import Usage
from eval_pipeline.errors import SpecError

TOKEN_CLASSES = ("input_uncached", "cache_read", "cache_write_5m", "cache_write_1h", "output")


class PriceRow(Spec):
    """US dollars per million tokens, as decimal strings. Dates are ISO days; effective_to, the day after the last, None is open."""

    provider: str
    model: str
    currency: Literal["USD"] = "USD"
    effective_from: str
    effective_to: str | None = None
    input_uncached: str
    cache_read: str
    cache_write_5m: str
    cache_write_1h: str
    output: str
    source: str
    retrieved_at: str | None = None

    @field_validator(*TOKEN_CLASSES)
    @classmethod
    def _decimal(cls, value: str) -> str:
        try:
            amount = Decimal(value)
        except ArithmeticError:
            raise ValueError(f"{value!r} is not a decimal number") from None
        if not amount.is_finite() or amount < 0:
            raise ValueError(f"{value!r} is not a price")
        return value

    @field_validator("effective_from", "effective_to")
    @classmethod
    def _day(cls, value: str | None) -> str | None:
        return value if value is None else date.fromisoformat(value).isoformat()


@dataclass(frozen=True)
class PriceBook:
    rows: tuple[PriceRow, ...]

    @classmethod
    def from_rows(cls, data: Any, where: str) -> PriceBook:
        """Raise SpecError for rows that aren't prices."""
        if not isinstance(data, list):
            raise SpecError("must be a list of price rows", where=where)
        try:
            return cls(tuple(PriceRow.model_validate_json(canonical_json(row)) for row in data))  # pyright: ignore[reportUnknownVariableType]
        except (ValidationError, ValueError, TypeError) as error:
            raise SpecError(f"holds a row that is not a price: {error}", where=where) from None

    @cached_property
    def version(self) -> str:
        return digest(self.as_data())[:12]

    def as_data(self) -> list[dict[str, Any]]:
        return [row.model_dump() for row in self.rows]

    def row(self, model: str, day: date) -> PriceRow | None:
        matching = [row for row in self.rows if row.model == model and _covers(row, day)]
        return max(matching, key=lambda row: row.effective_from, default=None)

    def cost(self, usages: Iterable[Usage], day: date) -> Decimal | None:
        """The cost of all calls on `day`; None as soon as one of them has no price."""
        costs = [self._cost(usage, day) for usage in usages]
        known = [cost for cost in costs if cost is not None]
        return sum(known, Decimal(0)) if len(known) == len(costs) else None

    def known_cost(self, usages: Iterable[Usage], day: date) -> Decimal:
        """A lower bound of the cost: of the calls that have a price."""
        return sum((cost for usage in usages if (cost := self._cost(usage, day)) is not None), Decimal(0))

    def _cost(self, usage: Usage, day: date) -> Decimal | None:
        row = self.row(usage.model, day)
        if row is None:
            return None
        return sum((Decimal(getattr(row, name)) * getattr(usage, name) for name in TOKEN_CLASSES), Decimal(0)) / 1_000_000


def _covers(row: PriceRow, day: date) -> bool:
    return row.effective_from <= day.isoformat() and (row.effective_to is None or day.isoformat() < row.effective_to)
