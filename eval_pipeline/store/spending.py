"""What the installation spends in a calendar month, UTC, what it may spend, and how long an experiment was worked on."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

import sqlalchemy as sa

from eval_pipeline.errors import BudgetExceeded
from eval_pipeline.store.database import Database
from eval_pipeline.store.schema import installation

_MONTH = sa.text("""
select evals.month_of(now()) as month, i.monthly_cap_usd, i.confirm_above_usd, coalesce(m.committed_usd, 0) as committed_usd
from evals.installation i left join evals.months m on m.month = evals.month_of(now())""")
_BY_EXPERIMENT = sa.text("""
select e.id as experiment, e.created_by, sum(spent.usd) as committed_usd from (
  select c.experiment_id, a.created_at as at,
    coalesce(a.cost_usd, a.reserved_usd) + coalesce(a.sandbox_cost_usd, a.reserved_sandbox_usd) as usd
  from evals.attempts a join evals.cells c on c.key = a.cell_key
  union all select experiment_id, started_at, coalesce(cost_usd, reserved_usd) from evals.judge_calls
) spent join evals.experiments e on e.id = spent.experiment_id
where evals.month_of(spent.at) = evals.month_of(now()) group by e.id order by 3 desc, 1""")
# Of an attempt that nobody ends, no more than its deadline and its engine's lease
WORKED = sa.text("""
select coalesce(extract(epoch from sum(upper(span) - lower(span))), 0)::double precision from unnest((
  select range_agg(tstzrange(a.created_at, greatest(a.created_at,
    coalesce(a.ended_at, least(clock_timestamp(), a.deadline_at, g.lease_until)))))
  from evals.attempts a join evals.cells c on c.key = a.cell_key left join evals.engines g on g.id = c.engine_id
  where c.experiment_id = :experiment)) as span""")
_HAS_ROOM = sa.text("select evals.month_has_room(:more)").bindparams(sa.bindparam("more", type_=sa.Numeric))


@dataclass(frozen=True, kw_only=True)
class Month:
    """committed_usd: spent and reserved by what began in it. monthly_cap_usd None: no cap. confirm_above_usd None: nobody is asked."""

    month: date
    committed_usd: Decimal
    monthly_cap_usd: Decimal | None
    confirm_above_usd: Decimal | None


def month_has_room(c: sa.Connection, more_usd: Decimal) -> bool:
    """Holds the month's row, if there is a cap, until the transaction ends; the experiment's must be held already."""
    return c.execute(_HAS_ROOM, {"more": more_usd}).scalar_one()


def require_month(c: sa.Connection, who: str, more_usd: Decimal) -> None:
    """As `month_has_room`. Raises BudgetExceeded."""
    if month_has_room(c, more_usd):
        return
    month = _month(c)
    raise BudgetExceeded(
        f"{who}: {month.committed_usd:f} of {month.monthly_cap_usd:f} USD of this installation's cap for {month.month:%Y-%m} "
        f"are spent or reserved; the next step reserves {more_usd:f}",
        hint="raise it with `evals budget --monthly-cap USD`, or run the file again next month: it goes on with what is open",
    )


def _month(c: sa.Connection) -> Month:
    return Month(**c.execute(_MONTH).mappings().one())


class Spending:
    def __init__(self, database: Database) -> None:
        self._database = database

    def month(self) -> Month:
        return self._database.run(_month)

    def by_experiment(self) -> list[dict[str, Any]]:
        """This month's: experiment, created_by, committed_usd; the dearest first."""
        return [dict(row) for row in self._database.run(lambda c: c.execute(_BY_EXPERIMENT).mappings().all())]

    def set(self, **values: Decimal | None) -> None:
        """monthly_cap_usd, confirm_above_usd; None: none."""
        self._database.run(lambda c: c.execute(sa.update(installation).values(values)))

    def worked_s(self, experiment: str) -> float:
        """How long at least one attempt of it was under way."""
        return self._database.run(lambda c: c.execute(WORKED, {"experiment": experiment}).scalar_one())
