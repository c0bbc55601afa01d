"""Engines and what they may use: leases by Postgres' clock, and shares of the installation's limits."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from eval_pipeline.host import HostIdentity
from eval_pipeline.store.database import Database
from eval_pipeline.store.schema import cells, engines, grants, hosts, limits

LEASE_S = 60


@dataclass(frozen=True, kw_only=True)
class EngineRow:
    id: str
    pid: int
    run_id: str | None
    started_at: datetime
    kind: str = "engine"


class Leases:
    def __init__(self, database: Database) -> None:
        self._database = database

    def open_engine(self, engine_id: str, host: HostIdentity, pid: int, run_id: str | None, kind: str = "engine") -> None:
        def work(c: sa.Connection) -> None:
            c.execute(insert(hosts).values(id=host.id, place=host.place, hostname=host.hostname).on_conflict_do_nothing())
            row = {"id": engine_id, "host_id": host.id, "pid": pid, "run_id": run_id, "kind": kind, "lease_until": _lease_end()}
            c.execute(insert(engines).values(row).on_conflict_do_nothing())

        self._database.run(work)

    def renew(self, engine_id: str, wants: dict[str, int]) -> dict[str, int]:
        """Renew the lease and return how much of each limit this engine may use now: name -> amount.

        The living engines share a limit equally, the rest of the division going to the first by id; what another one still
        holds above its share is not ours until it lets go.
        """

        def work(c: sa.Connection) -> dict[str, int]:
            c.execute(sa.update(engines).where(engines.c.id == engine_id).values(lease_until=_lease_end(), ended_at=None))
            c.execute(sa.delete(grants).where(grants.c.engine_id == engine_id, grants.c.name.not_in(wants)))
            rows = c.execute(sa.select(limits).where(limits.c.name.in_(wants)).order_by(limits.c.name).with_for_update())
            return {row.name: self._grant(c, engine_id, row.name, row.value, wants[row.name]) for row in rows}

        return self._database.run(work)

    def limit(self, name: str) -> int:
        """Of the whole installation."""
        query = sa.select(limits.c.value).where(limits.c.name == name)
        return self._database.run(lambda c: c.execute(query).scalar_one())

    def _grant(self, c: sa.Connection, engine_id: str, name: str, value: int, want: int) -> int:
        living = sa.select(engines.c.id).where(engines.c.ended_at.is_(None), engines.c.lease_until > sa.func.now())
        others = sa.select(grants.c.engine_id, grants.c.amount).where(
            grants.c.name == name, grants.c.engine_id != engine_id, grants.c.engine_id.in_(living)
        )
        held = {row.engine_id: row.amount for row in c.execute(others)}
        each, rest = divmod(value, len(held) + 1)
        fair = each + (sum(other < engine_id for other in held) < rest)
        amount = max(0, min(want, fair, value - sum(held.values())))
        row = {"engine_id": engine_id, "name": name, "amount": amount}
        c.execute(insert(grants).values(row).on_conflict_do_update(index_elements=["engine_id", "name"], set_={"amount": amount}))
        return amount

    def say(self, engine_id: str, doing: dict[str, list[str]]) -> None:
        """What its cells in flight wait for, each with the time since when."""
        self._database.run(lambda c: c.execute(sa.update(engines).where(engines.c.id == engine_id).values(doing=doing)))

    def close_engine(self, engine_id: str) -> None:
        self._database.run(
            lambda c: c.execute(sa.update(engines).where(engines.c.id == engine_id).values(ended_at=sa.func.now()))
        )

    def living(self, place: str | None = None) -> list[EngineRow]:
        """Engines whose lease has not run out; of one place, or of all."""
        query = sa.select(engines).where(engines.c.ended_at.is_(None), engines.c.lease_until > sa.func.now())
        if place is not None:
            query = query.join(hosts, hosts.c.id == engines.c.host_id).where(hosts.c.place == place)
        rows = self._database.run(lambda c: c.execute(query).all())
        return [EngineRow(id=row.id, pid=row.pid, run_id=row.run_id, started_at=row.started_at, kind=row.kind) for row in rows]

    def engines_of(self, experiment: str) -> list[EngineRow]:
        """The living engines that own cells of the experiment."""
        owners = sa.select(cells.c.engine_id).where(cells.c.experiment_id == experiment, cells.c.engine_id.is_not(None))
        query = sa.select(engines).where(
            engines.c.id.in_(owners), engines.c.ended_at.is_(None), engines.c.lease_until > sa.func.now()
        )
        rows = self._database.run(lambda c: c.execute(query).all())
        return [EngineRow(id=row.id, pid=row.pid, run_id=row.run_id, started_at=row.started_at, kind=row.kind) for row in rows]


def _lease_end() -> sa.ColumnElement[datetime]:
    return sa.func.now() + sa.func.make_interval(0, 0, 0, 0, 0, 0, LEASE_S)
