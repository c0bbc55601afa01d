"""Sandboxes that stand ready before a cell asks for one: written down before they are made, taken by one attempt."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from eval_pipeline.errors import FenceLost
from eval_pipeline.store.database import Database
from eval_pipeline.store.prepared import Step
from eval_pipeline.store.rows import Claim
from eval_pipeline.store.schema import attempts, warm_sandboxes

# An attempt that has taken one, when the answer to the last commit was lost, gets the same again
_TAKE = Step(
    """
with held as (
  select key from evals.cells where key = :key and fence = :fence and engine_id = cast(:engine as uuid) for update
), mine as (
  select a.id from evals.attempts a, held where a.id = :attempt and a.ended_at is null and a.agent_started_at is null
), already as (select w.name from evals.warm_sandboxes w, mine where w.attempt_id = mine.id
), free as (
  select w.name from evals.warm_sandboxes w
  where exists (select 1 from mine) and not exists (select 1 from already)
    and w.backend = :backend and w.place = :place and w.spec_digest = :spec
    and w.attempt_id is null and w.ready_s is not null and w.expires_at > now()
  order by w.created_at limit 1 for update skip locked
), taken as (
  update evals.warm_sandboxes w set attempt_id = :attempt from free where w.name = free.name returning w.name
), moved as (update evals.attempts a set sandbox = taken.name from taken where a.id = :attempt)
select coalesce((select name from taken), (select name from already), '') from held""",
    fence="bigint",
    attempt="bigint",
)

_ANY_READY = Step("""
select exists (
  select 1 from evals.warm_sandboxes
  where backend = :backend and place = :place and attempt_id is null and ready_s is not null and expires_at > now())""")


@dataclass(frozen=True, kw_only=True)
class WarmRow:
    """ready_s: from its creation to its services' answer; None while it starts. left_s: until it expires, by Postgres' clock.

    attempt_id: who took it; None while nobody has.
    """

    name: str
    spec_digest: str
    app: str
    world: str
    ready_s: float | None
    expires_at: datetime
    left_s: float
    attempt_id: int | None
    created_at: datetime


class WarmRows:
    """The warm sandboxes of one backend at one place."""

    def __init__(self, database: Database, backend: str, place: str) -> None:
        self._database = database
        self._where = {"backend": backend, "place": place}
        table = warm_sandboxes.c
        self._mine = sa.and_(table.backend == backend, table.place == place)
        self._free = sa.and_(self._mine, table.attempt_id.is_(None))

    def _run(self, work: Callable[[sa.Connection], Any]) -> Any:
        return self._database.run(work)

    def intend(self, name: str, *, spec_digest: str, app: str, world: str, ttl_s: float) -> datetime:
        """Before it is made; when it will expire. Again for a name: nothing changes."""
        expires_at = sa.func.now() + sa.func.make_interval(0, 0, 0, 0, 0, 0, ttl_s)
        row = {"name": name, "spec_digest": spec_digest, "app": app, "world": world, "expires_at": expires_at, **self._where}
        query = sa.select(warm_sandboxes.c.expires_at).where(warm_sandboxes.c.name == name)

        def work(c: sa.Connection) -> datetime:
            c.execute(insert(warm_sandboxes).values(row).on_conflict_do_nothing())
            return c.execute(query).scalar_one()

        return self._run(work)

    def ready(self, name: str, ready_s: float) -> None:
        """From now on it can be taken."""
        change = sa.update(warm_sandboxes).where(warm_sandboxes.c.name == name).values(ready_s=ready_s)
        self._run(lambda c: c.execute(change))

    def take(self, claim: Claim, attempt_id: int, spec_digest: str) -> str | None:
        """One that is ready becomes the attempt's own sandbox, together with the cell's fence; None when none is free. Raises FenceLost."""
        values = {"key": claim.key, "fence": claim.fence, "engine": claim.engine_id, "attempt": attempt_id, "spec": spec_digest}
        name = self._database.step(_TAKE, {**values, **self._where})
        if name is None:
            raise FenceLost(f"{claim.key}: another engine owns this cell now (our fence was {claim.fence})")
        return name or None

    def any_ready(self) -> bool:
        """Whether one could be taken, by a cell that asks for just such a one."""
        return bool(self._database.step(_ANY_READY, self._where))

    def give_up(self, names: Iterable[str]) -> list[str]:
        """Take those of `names` that nobody took off the record; returns them. From then on nobody can, and they may be ended."""
        gone = (
            sa.delete(warm_sandboxes).where(self._free, warm_sandboxes.c.name.in_(list(names))).returning(warm_sandboxes.c.name)
        )
        return self._run(lambda c: [row.name for row in c.execute(gone)])

    def forget_used(self) -> None:
        """Those whose attempt has ended."""
        ended = sa.exists().where(attempts.c.id == warm_sandboxes.c.attempt_id, attempts.c.ended_at.is_not(None))
        self._run(lambda c: c.execute(sa.delete(warm_sandboxes).where(self._mine, ended)))

    def free(self) -> list[WarmRow]:
        """Those nobody took, oldest first; expired ones and those still starting included."""
        table = warm_sandboxes.c
        left_s = sa.cast(sa.extract("epoch", table.expires_at - sa.func.now()), sa.Double).label("left_s")
        columns = [table[name] for name in WarmRow.__dataclass_fields__ if name != "left_s"]
        query = sa.select(*columns, left_s).where(self._free).order_by(table.created_at)
        return [WarmRow(**row) for row in self._run(lambda c: c.execute(query).mappings().all())]
