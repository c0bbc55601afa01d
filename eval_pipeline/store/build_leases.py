"""Who builds what, where several hosts may: leases by Postgres' clock."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from eval_pipeline.store.database import Database
from eval_pipeline.store.schema import build_leases

LEASE_S = 60


class BuildLeases:
    """Of one place. A lease that was not renewed for LEASE_S is anybody's: its holder is taken for dead."""

    def __init__(self, database: Database, place: str) -> None:
        self._database = database
        self._place = place

    def take(self, key: str, holder: str) -> bool:
        """Whether the key is the holder's now; also again, of one that it has."""
        table = build_leases.c
        row = {"place": self._place, "key": key, "holder": holder, "lease_until": _end()}
        change = insert(build_leases).values(row)
        change = change.on_conflict_do_update(
            index_elements=["place", "key"],
            set_={"holder": holder, "lease_until": _end()},
            where=sa.or_(table.lease_until <= sa.func.clock_timestamp(), table.holder == holder),
        )
        return self._database.run(lambda c: c.execute(change.returning(table.holder)).scalar_one_or_none()) == holder

    def renew(self, key: str, holder: str) -> bool:
        """False when somebody else has taken it."""
        change = sa.update(build_leases).where(self._of(key), build_leases.c.holder == holder).values(lease_until=_end())
        return self._database.run(lambda c: c.execute(change).rowcount) == 1

    def release(self, key: str, holder: str) -> None:
        gone = sa.delete(build_leases).where(self._of(key), build_leases.c.holder == holder)
        self._database.run(lambda c: c.execute(gone))

    def held(self, key: str) -> bool:
        query = sa.select(sa.exists().where(self._of(key), build_leases.c.lease_until > sa.func.clock_timestamp()))
        return bool(self._database.run(lambda c: c.execute(query).scalar()))

    def _of(self, key: str) -> sa.ColumnElement[bool]:
        return sa.and_(build_leases.c.place == self._place, build_leases.c.key == key)


def _end() -> sa.ColumnElement[object]:
    return sa.func.clock_timestamp() + sa.func.make_interval(0, 0, 0, 0, 0, 0, LEASE_S)
