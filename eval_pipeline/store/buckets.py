"""Token buckets by Postgres' clock: how often the whole installation may do something, whichever process does it."""

from __future__ import annotations

import asyncio
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from eval_pipeline.store.database import Database
from eval_pipeline.store.prepared import Step
from eval_pipeline.store.schema import buckets

TAKE_N = """
insert into evals.buckets as b (name, tokens, counted_at) select :bucket, :burst - n, clock_timestamp() from wanted where n > 0
on conflict (name) do update set counted_at = excluded.counted_at, tokens = excluded.tokens - :burst
  + least(:burst, b.tokens + :per_s * greatest(0, extract(epoch from excluded.counted_at - b.counted_at)))
returning tokens"""
"""What is left after as many were taken as `wanted` says: a table of one row, n. Whoever takes them holds the bucket till its transaction ends."""
TAKE_N_TYPES = {"burst": "double precision", "per_s": "double precision"}
_TAKE_ONE = Step(f"with wanted as (select 1 as n) {TAKE_N}", **TAKE_N_TYPES)


class Bucket:
    """`per_s` on average, `burst` at once. A token may be taken before it is there: whoever takes it waits for it."""

    def __init__(self, database: Database, name: str, *, per_s: float, burst: float) -> None:
        self._database = database
        self._name = name
        self._per_s = per_s
        self._burst = burst

    async def take(self) -> None:
        wait_s = await asyncio.to_thread(self._take)
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    async def close_for(self, seconds: float) -> None:
        """Nobody's token is there before that is over."""
        await asyncio.to_thread(self._close_for, seconds)

    def _close_for(self, seconds: float) -> None:
        now = sa.func.clock_timestamp()
        left = 1 - self._per_s * seconds
        change = insert(buckets).values(name=self._name, tokens=left, counted_at=now)
        refilled = self._refilled(now)
        values = {"tokens": sa.func.least(refilled, left), "counted_at": now}
        self._database.run(lambda c: c.execute(change.on_conflict_do_update(index_elements=["name"], set_=values)))

    def _refilled(self, now: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        passed_s = sa.func.greatest(0, sa.extract("epoch", now - buckets.c.counted_at))
        return sa.func.least(self._burst, buckets.c.tokens + self._per_s * passed_s)

    def _take(self) -> float:
        """Seconds until the token that was taken is there."""
        left = self._database.run(lambda c: _TAKE_ONE.run(c, self.values))
        (wait_s,) = self.waits_s(left, 1)
        return wait_s

    @property
    def values(self) -> dict[str, object]:
        """Of the parameters of TAKE_N."""
        return {"bucket": self._name, "burst": self._burst, "per_s": self._per_s}

    def waits_s(self, left: float, n: int) -> list[float]:
        """Seconds until each of n tokens is there, once taking them left so many."""
        return [max(0.0, -(left + later) / self._per_s) for later in reversed(range(n))]
