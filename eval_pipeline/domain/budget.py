"""How much money an attempt holds before it starts."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from eval_pipeline.domain.case import Limits

_CENT_FRACTION = Decimal("1e-9")
_PLAUSIBLE_FACTOR = 10
_PLAUSIBLE_USD = Decimal(1000)  # of an attempt without any limit
_ALWAYS_PLAUSIBLE_USD = Decimal(1)  # one call can be far above a limit of cents


@dataclass(frozen=True, kw_only=True)
class SandboxTerms:
    """What an attempt's sandbox costs a second, and what is held for it. usd_per_s None: not known. rate: whose, and of when, in words."""

    usd_per_s: Decimal | None = None
    reserve_usd: Decimal = Decimal(0)
    rate: str | None = None


UNPRICED = SandboxTerms()


def sandbox_terms(limits: Limits, usd_per_s: Decimal | None, rate: str | None) -> SandboxTerms:
    """Held for as long as the agent may take; of an unknown price nothing can be held."""
    wall_s = Decimal(str(limits.wall_s))
    held = Decimal(0) if usd_per_s is None else (usd_per_s * wall_s).quantize(_CENT_FRACTION)
    return SandboxTerms(usd_per_s=usd_per_s, reserve_usd=held, rate=rate)


def reservation_usd(limits: Limits, budget_usd: Decimal | None, n_cells: int, sandbox_usd: Decimal = Decimal(0)) -> Decimal:
    """For models: the case's own limit; without one, its fair share of the budget less its sandbox's; 0 without either."""
    if limits.cost_usd is not None:
        return Decimal(str(limits.cost_usd))
    if budget_usd is None:
        return Decimal(0)
    return max(Decimal(0), (budget_usd / n_cells).quantize(_CENT_FRACTION) - sandbox_usd)


def attempt_usd(limits: Limits, budget_usd: Decimal | None, n_cells: int, usd_per_s: Decimal | None) -> Decimal:
    """All that is held for an attempt: its models and its sandbox."""
    held = sandbox_terms(limits, usd_per_s, None).reserve_usd
    return held + reservation_usd(limits, budget_usd, n_cells, held)


def plausible_usd(reserved_usd: Decimal) -> Decimal:
    """The most that is believed of a cost that nobody but the agent has counted. reserved_usd: for models; 0: nothing was held."""
    return max(_ALWAYS_PLAUSIBLE_USD, reserved_usd * _PLAUSIBLE_FACTOR) if reserved_usd else _PLAUSIBLE_USD


def cost_over_usd(limits: Limits, cost_usd: Decimal | None) -> Decimal | None:
    """How far a cell's cost is above its limit: it is stopped only once it is seen to be above. None: no limit, or no known cost."""
    if limits.cost_usd is None or cost_usd is None:
        return None
    return max(Decimal(0), cost_usd - Decimal(str(limits.cost_usd)))
