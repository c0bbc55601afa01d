"""The calls of judges: what each may cost is held before it is made, and how many are made at once is counted here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from eval_pipeline.errors import BudgetExceeded
from eval_pipeline.store.database import Database, storable
from eval_pipeline.store.schema import experiments, judge_calls, judge_requests, limits
from eval_pipeline.store.spending import require_month

CALLS, CALLS_PER_MINUTE = "judge calls", "judge calls per minute"
_SPARE_S = 10.0


@dataclass(frozen=True, kw_only=True)
class CallIntent:
    """pool: whose limits it counts against. deadline_s: how long somebody waits for it, at most."""

    experiment_id: str
    cell_key: str
    criterion: str
    request_digest: str
    judge_version: str
    pool: str
    reserve_usd: Decimal
    deadline_s: float


@dataclass(frozen=True, kw_only=True)
class CallEnd:
    """cost_usd None: not known, and what was held stays held. usage None: not told."""

    status: str
    error: str | None
    usage: dict[str, Any] | None
    cost_usd: Decimal | None
    latency_s: float | None


@dataclass(frozen=True, kw_only=True)
class JudgeSpend:
    """Of some calls. cost_usd: of those whose cost is known; n_unpriced: of the others how many."""

    n_calls: int
    n_failed: int
    cost_usd: Decimal
    n_unpriced: int
    latency_s: float


class JudgeCalls:
    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, intent: CallIntent) -> int | None:
        """Write the intent and hold its money; the call's id. None: as many as may be are being made. Raises BudgetExceeded."""
        return self._database.run(lambda c: self._begin(c, intent))

    def _begin(self, c: sa.Connection, intent: CallIntent) -> int | None:
        c.execute(sa.text("select pg_advisory_xact_lock(hashtextextended(:pool, 0))"), {"pool": f"judge {intent.pool}"})
        waited_for = judge_calls.c.ended_at.is_(None) & (judge_calls.c.deadline_at > sa.func.clock_timestamp())
        count = sa.select(sa.func.count()).select_from(judge_calls).where(judge_calls.c.pool == intent.pool, waited_for)
        if c.execute(count).scalar_one() >= _limit(c, CALLS, intent.pool):
            return None
        held = experiments.c.committed_usd + intent.reserve_usd
        row = c.execute(
            sa.update(experiments)
            .where(
                experiments.c.id == intent.experiment_id, experiments.c.budget_usd.is_(None) | (held <= experiments.c.budget_usd)
            )
            .values(committed_usd=held)
            .returning(experiments.c.id)
        ).first()
        if row is None:
            raise BudgetExceeded(
                f"{intent.experiment_id}: the budget has no room for the next call of its judge, which holds {intent.reserve_usd:f} USD",
                hint="raise budget.cost_usd in the experiment's file and run it again, then `evals score`",
            )
        require_month(c, intent.experiment_id, intent.reserve_usd)
        deadline = sa.func.clock_timestamp() + sa.func.make_interval(0, 0, 0, 0, 0, 0, intent.deadline_s + _SPARE_S)
        values = {**intent.__dict__, "reserved_usd": intent.reserve_usd, "deadline_at": deadline}
        del values["reserve_usd"], values["deadline_s"]
        return c.execute(insert(judge_calls).values(values).returning(judge_calls.c.id)).scalar_one()

    def end(self, call: int, how: CallEnd) -> None:
        """The first end of a call stands. A known cost replaces what was held."""

        def work(c: sa.Connection) -> None:
            values = {**how.__dict__, "error": storable(how.error), "ended_at": sa.func.clock_timestamp()}
            change = sa.update(judge_calls).where(judge_calls.c.id == call, judge_calls.c.ended_at.is_(None)).values(values)
            ended = c.execute(change.returning(judge_calls.c.experiment_id, judge_calls.c.reserved_usd)).first()
            if ended is not None and how.cost_usd is not None:
                settled = experiments.c.committed_usd + how.cost_usd - ended.reserved_usd
                mine = experiments.c.id == ended.experiment_id
                c.execute(sa.update(experiments).where(mine).values(committed_usd=settled))

        self._database.run(work)

    def limit(self, name: str, pool: str) -> int:
        return self._database.run(lambda c: _limit(c, name, pool))

    def set_limit(self, name: str, pool: str | None, value: int) -> None:
        """pool None: of every pool that has none of its own."""
        row = {"name": name if pool is None else f"{name}: {pool}", "value": value}
        change = insert(limits).values(row).on_conflict_do_update(index_elements=["name"], set_={"value": value})
        self._database.run(lambda c: c.execute(change))

    def limits(self) -> dict[str, int]:
        """All that are set, by name."""
        query = sa.select(limits).where(limits.c.name.startswith(CALLS)).order_by(limits.c.name)
        return {row.name: row.value for row in self._database.run(lambda c: c.execute(query).all())}

    # ---- questions and the requests they became

    def link(self, requests: Mapping[str, str], unseen: Sequence[str]) -> None:
        """requests: question digest -> request digest. unseen: what the judge was told that it can't see."""
        rows = [{"question_digest": asked, "request_digest": said, "unseen": list(unseen)} for asked, said in requests.items()]
        if rows:
            self._database.run(lambda c: c.execute(insert(judge_requests).values(rows).on_conflict_do_nothing()))

    def requests(self, questions: Iterable[str]) -> dict[str, tuple[str, list[str]]]:
        """Question digest -> the request it became last, and what is unseen there."""
        asked = judge_requests.c.question_digest == sa.any_(sa.literal(list(set(questions)), sa.ARRAY(sa.Text)))
        query = sa.select(judge_requests).where(asked).order_by(judge_requests.c.created_at)
        return {
            row.question_digest: (row.request_digest, row.unseen) for row in self._database.run(lambda c: c.execute(query).all())
        }

    # ---- what was spent

    def mean_cost_usd(self, judge_version: str) -> tuple[Decimal, int] | None:
        """Of this judge's calls whose cost is known, with their number; None without any."""
        known = (
            (judge_calls.c.judge_version == judge_version) & judge_calls.c.cost_usd.is_not(None) & (judge_calls.c.status == "ok")
        )
        query = sa.select(sa.func.avg(judge_calls.c.cost_usd), sa.func.count()).where(known)
        mean, n = self._database.run(lambda c: c.execute(query).one())
        return None if mean is None else (mean, n)

    def spend(self, experiment: str, judge_version: str | None = None) -> dict[str, JudgeSpend]:
        """By cell. judge_version: only of this judge; None: of all."""
        mine = judge_calls.c.experiment_id == experiment
        if judge_version is not None:
            mine &= judge_calls.c.judge_version == judge_version
        query = (
            sa.select(
                judge_calls.c.cell_key,
                sa.func.count(),
                sa.func.count().filter(judge_calls.c.status.is_distinct_from("ok")),
                sa.func.coalesce(sa.func.sum(judge_calls.c.cost_usd), 0),
                sa.func.count().filter(judge_calls.c.cost_usd.is_(None)),
                sa.func.coalesce(sa.func.sum(judge_calls.c.latency_s), 0),
            )
            .where(mine)
            .group_by(judge_calls.c.cell_key)
        )
        rows = self._database.run(lambda c: c.execute(query).all())
        return {
            key: JudgeSpend(n_calls=n, n_failed=failed, cost_usd=cost, n_unpriced=unpriced, latency_s=float(latency))
            for key, n, failed, cost, unpriced, latency in rows
        }


def _limit(c: sa.Connection, name: str, pool: str) -> int:
    own = f"{name}: {pool}"
    found = {row.name: row.value for row in c.execute(sa.select(limits).where(limits.c.name.in_([name, own])))}
    return found.get(own, found[name])
