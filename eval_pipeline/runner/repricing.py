"""New prices: what they tell the cost of is settled. What was paid at a known price stays as it was paid."""

from __future__ import annotations

from decimal import Decimal

from eval_pipeline.domain.ids import CellKey
from eval_pipeline.domain.usage import Usage
from eval_pipeline.scoring.prices import PriceBook
from eval_pipeline.store.database import Database
from eval_pipeline.store.ledger import ExperimentRow
from eval_pipeline.store.unpriced import Unpriced, UnpricedAttempt


def settle_unpriced(database: Database, experiment: ExperimentRow) -> None:
    """Attempts and calls of judges that ended without a price get their cost by the experiment's prices, once there is one.

    What was held for them is given back then. As often as one likes: it finds only what is still open.
    """
    unpriced = Unpriced(database, experiment.id)
    attempts, calls = unpriced.attempts(), unpriced.calls()
    if not attempts and not calls:
        return
    prices = PriceBook.from_rows(experiment.score.prices, f"{experiment.id}: prices")
    of_attempts = {one.id: prices.cost([Usage.model_validate(usage) for usage in one.usage], one.day) for one in attempts}
    of_calls = {one.id: prices.cost([Usage.model_validate(one.usage)], one.day) for one in calls}
    beyond_belief = {one.id for one in attempts if not one.measured and _above(of_attempts[one.id], experiment, one)}
    unpriced.settle(
        {name: cost for name, cost in of_attempts.items() if cost is not None and name not in beyond_belief},
        {name: cost for name, cost in of_calls.items() if cost is not None},
        prices.version,
    )


def _above(cost: Decimal | None, experiment: ExperimentRow, attempt: UnpricedAttempt) -> bool:
    limits = experiment.run.case(CellKey.parse(attempt.cell_key).case_name).limits
    return cost is not None and cost > experiment.believed_usd(limits)
