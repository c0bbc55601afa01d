"""How much money an attempt holds before it starts."""

from __future__ import annotations

from decimal import Decimal

from eval_pipeline.domain.case import Limits

_CENT_FRACTION = Decimal("1e-9")


def reservation_usd(limits: Limits, budget_usd: Decimal | None, n_cells: int) -> Decimal:
    """The case's own limit; without one, its fair share of the budget; 0 without either."""
    if limits.cost_usd is not None:
        return Decimal(str(limits.cost_usd))
    return Decimal(0) if budget_usd is None else (budget_usd / n_cells).quantize(_CENT_FRACTION)
