"""Token buckets by Postgres' clock: how often the whole installation may do something, whichever process does it."""

from __future__ import annotations

import asyncio
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from eval_pipeline.store.database import Database
from eval_pipeline.store.schema import buckets


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
        (wait_s,) = self._database.run(lambda c: self.take_in(c, 1))
        return wait_s

    def take_in(self, c: sa.Connection, n: int) -> list[float]:
        """Takes n tokens in a transaction of the caller's, which holds the bucket till its end: seconds until each of them is there."""
        now = sa.func.clock_timestamp()
        refilled = self._refilled(now)
        change = insert(buckets).values(name=self._name, tokens=self._burst - n, counted_at=now)
        change = change.on_conflict_do_update(index_elements=["name"], set_={"tokens": refilled - n, "counted_at": now})
        left = c.execute(change.returning(buckets.c.tokens)).scalar_one()
        return [max(0.0, -(left + later) / self._per_s) for later in reversed(range(n))]
