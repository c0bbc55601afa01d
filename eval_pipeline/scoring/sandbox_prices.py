"""What sandboxes cost: the price rows that come with the program, and a provider's own rates in their place.

A provider charges for the greater of what was asked for and what was used; here it is what was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import field_validator

from eval_pipeline.domain.base import Spec

_ROWS = Path(__file__).resolve().with_name("sandbox_prices.yaml")
_HOUR_S = 3600
# The names Modal gives its rates of sandboxes, in dollars an hour
BILLED_CORE, BILLED_GIB = "cpu_hour_cost_sandbox", "mem_gib_hour_cost_sandbox"


class _Row(Spec):
    backend: str
    version: str
    as_of: str
    usd_per_core_hour: Decimal
    usd_per_gib_hour: Decimal
    region_broad: Decimal = Decimal(1)
    region_narrow: Decimal = Decimal(1)
    source: str

    @field_validator("as_of", mode="before")
    @classmethod
    def _day(cls, value: Any) -> str:
        return str(value)


@dataclass(frozen=True, kw_only=True)
class SandboxRates:
    """usd_per_*: before `factor`, which is the region's. version: of the row, or `billing-<day>`; source: in words."""

    usd_per_core_hour: Decimal
    usd_per_gib_hour: Decimal
    factor: Decimal
    version: str
    source: str

    def usd_per_s(self, cpu: float, memory_mib: int) -> Decimal:
        hourly = self.usd_per_core_hour * Decimal(str(cpu)) + self.usd_per_gib_hour * memory_mib / 1024
        return hourly * self.factor / _HOUR_S


def listed(backend: str, region: str | None = None) -> SandboxRates | None:
    """The row that comes with the program; None when it has none for that backend."""
    row = _rows().get(backend)
    if row is None:
        return None
    factor = Decimal(1) if region is None else row.region_narrow if "-" in region else row.region_broad
    return SandboxRates(
        usd_per_core_hour=row.usd_per_core_hour,
        usd_per_gib_hour=row.usd_per_gib_hour,
        factor=factor,
        version=row.version,
        source=f"{row.source} (of {row.as_of})",
    )


def billed(row: SandboxRates, rates: Mapping[str, Decimal], day: str) -> SandboxRates | None:
    """The account's own rates in place of the row's, whose region factor stays; None when they don't name sandboxes."""
    core, gib = rates.get(BILLED_CORE), rates.get(BILLED_GIB)
    if core is None or gib is None:
        return None
    said = "what Modal bills this account"
    return replace(row, usd_per_core_hour=core, usd_per_gib_hour=gib, version=f"billing-{day}", source=f"{said} (asked on {day})")


@cache
def _rows() -> Mapping[str, _Row]:
    rows = [_Row.model_validate(row, strict=False) for row in yaml.safe_load(_ROWS.read_text())]
    return {row.backend: row for row in rows}
