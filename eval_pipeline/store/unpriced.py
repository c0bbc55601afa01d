"""What an experiment used without a known price, and what it cost once there is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

import sqlalchemy as sa

from eval_pipeline.store.database import Database

# Of calls whose usage the gateway could not measure nothing more will ever be known
_ATTEMPTS = sa.text("""
select a.id, a.cell_key, coalesce(a.agent_started_at, a.created_at) as at, a.usage, a.usage_source
from evals.attempts a join evals.cells c on c.key = a.cell_key
where c.experiment_id = :experiment and a.ended_at is not null and a.cost_usd is null and coalesce(a.usage, '[]') <> '[]'
  and coalesce(a.evidence -> 'models' ->> 'unmeasured', '0') = '0'
order by a.id""")
_CALLS = sa.text("""
select id, ended_at as at, usage from evals.judge_calls
where experiment_id = :experiment and ended_at is not null and cost_usd is null and jsonb_typeof(usage) = 'object'
order by id""")
# Who finds a cost there already changes nothing: what was held is given back once, by the transaction that writes the cost
_SETTLE = sa.text("""
with ended as (
  update evals.attempts a set cost_usd = g.usd, price_version = :version
  from unnest(cast(:attempts as bigint[]), cast(:attempts_usd as numeric[])) as g(id, usd)
  where a.id = g.id and a.cost_usd is null returning a.cost_usd - a.reserved_usd as more
), called as (
  update evals.judge_calls j set cost_usd = g.usd
  from unnest(cast(:calls as bigint[]), cast(:calls_usd as numeric[])) as g(id, usd)
  where j.id = g.id and j.cost_usd is null returning j.cost_usd - j.reserved_usd as more
), settled as (select sum(more) as more from (select more from ended union all select more from called) both_kinds)
update evals.experiments e set committed_usd = e.committed_usd + settled.more
from settled where e.id = :experiment and settled.more is not null""")


@dataclass(frozen=True, kw_only=True)
class UnpricedAttempt:
    id: int
    cell_key: str
    day: date
    usage: list[dict[str, Any]]
    measured: bool


@dataclass(frozen=True, kw_only=True)
class UnpricedCall:
    id: int
    day: date
    usage: dict[str, Any]


class Unpriced:
    """Of one experiment: attempts and calls of its judge that ended, whose usage is known and whose cost is not."""

    def __init__(self, database: Database, experiment: str) -> None:
        self._database = database
        self._experiment = experiment

    def attempts(self) -> list[UnpricedAttempt]:
        return [
            UnpricedAttempt(
                id=row.id, cell_key=row.cell_key, day=row.at.date(), usage=row.usage, measured=row.usage_source == "measured"
            )
            for row in self._all(_ATTEMPTS)
        ]

    def calls(self) -> list[UnpricedCall]:
        return [UnpricedCall(id=row.id, day=row.at.date(), usage=row.usage) for row in self._all(_CALLS)]

    def settle(self, attempts: Mapping[int, Decimal], calls: Mapping[int, Decimal], price_version: str) -> None:
        """By id. The cost takes the place of what was held for it; a cost that is known already stands."""
        values = {
            "experiment": self._experiment,
            "version": price_version,
            "attempts": list(attempts),
            "attempts_usd": list(attempts.values()),
            "calls": list(calls),
            "calls_usd": list(calls.values()),
        }
        self._database.run(lambda c: c.execute(_SETTLE, values))

    def _all(self, query: sa.TextClause) -> Sequence[Any]:
        return self._database.run(lambda c: c.execute(query, {"experiment": self._experiment}).all())
