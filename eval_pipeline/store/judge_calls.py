"""The calls of judges that were made, what they cost, and how many may be made. They are made in judge_turns.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from eval_pipeline.store.database import Database
from eval_pipeline.store.schema import judge_calls, judge_requests, limits

CALLS, CALLS_PER_MINUTE = "judge calls", "judge calls per minute"


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
