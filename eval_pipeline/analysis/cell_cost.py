"""What the models of a cell cost by the prices that hold now, and in words where that is not known."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eval_pipeline.analysis.tables import ScoredCell
    from eval_pipeline.domain.usage import Usage
    from eval_pipeline.scoring.prices import PriceBook
    from eval_pipeline.store.cell_views import AttemptView


def cost_of(counted: AttemptView | None, usages: Sequence[Usage], prices: PriceBook, at_most_usd: Decimal) -> Decimal | None:
    """Priced again from the stored usage, so that new prices need no new run. With calls of unknown usage it is unknown.

    at_most_usd: what is believed of an agent's own report. One that was believed when it ended stays so.
    """
    if counted is None or _unmeasured(counted):
        return None
    if not usages:
        return counted.cost_usd
    cost = prices.cost(usages, counted.created_at.date())
    return None if cost is not None and counted.cost_usd is None and _claimed(counted) and cost > at_most_usd else cost


def why_unknown(counted: AttemptView, usages: Sequence[Usage], prices: PriceBook, at_most_usd: Decimal) -> str:
    if unmeasured := _unmeasured(counted):
        return f"calls that the model gateway could not measure: {unmeasured}"
    if not usages:
        return "its agent reported no usage"
    day = counted.created_at.date()
    unpriced = sorted({usage.model for usage in usages if prices.row(usage.model, day) is None})
    if not unpriced:
        return f"its agent reported more than the {at_most_usd.normalize():f} USD that are believed of it"
    return f"no price for {', '.join(unpriced)} on {day}"


def source_in_words(cell: ScoredCell) -> str:
    """Who says what it used, or why what it cost is not known."""
    if cell.cost_usd is None:
        return cell.cost_unknown or "no usage"
    if cell.counted is not None and _claimed(cell.counted) and not cell.usages:
        return "its agent reported no call, and could reach nobody"
    return cell.usage_source or "no usage"


def _claimed(counted: AttemptView) -> bool:
    return counted.usage_source == "self-reported"


def _unmeasured(counted: AttemptView) -> int:
    return counted.evidence.get("models", {}).get("unmeasured", 0)
