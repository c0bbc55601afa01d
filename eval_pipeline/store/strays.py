"""Sandboxes that nobody owned when somebody looked: since when, by Postgres' clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from eval_pipeline.store.database import Database
from eval_pipeline.store.schema import strays, surveys

GRACE_S = 120.0
"""A sandbox that nobody has owned for so long is leaked: nobody is about to end it."""


class Strays:
    """Of one backend at one place."""

    def __init__(self, database: Database, backend: str, place: str) -> None:
        self._database = database
        self._where = {"backend": backend, "place": place}
        self._here = sa.and_(strays.c.backend == backend, strays.c.place == place)

    def seen(self, unowned: Mapping[str, str | None]) -> dict[str, float]:
        """What a survey found, name -> its cell or None; returns name -> seconds since it was first found so, without a break."""
        rows = [{**self._where, "name": name, "cell": cell} for name, cell in unowned.items()]
        stamp = insert(surveys).values(**self._where)
        stamp = stamp.on_conflict_do_update(index_elements=["backend", "place"], set_={"surveyed_at": sa.func.now()})
        age_s = sa.cast(sa.extract("epoch", sa.func.now() - strays.c.first_seen_at), sa.Double).label("age_s")

        def work(c: sa.Connection) -> dict[str, float]:
            c.execute(stamp)
            c.execute(sa.delete(strays).where(self._here, strays.c.name.not_in(list(unowned))))
            if rows:
                c.execute(insert(strays).on_conflict_do_nothing(), rows)
            return {row.name: row.age_s for row in c.execute(sa.select(strays.c.name, age_s).where(self._here))}

        return self._database.run(work)

    def ended(self, names: Iterable[str]) -> None:
        self._database.run(lambda c: c.execute(sa.delete(strays).where(self._here, strays.c.name.in_(list(names)))))


def leaked(database: Database) -> int | None:
    """Leaked sandboxes that are there, as the last survey of each place found them; None when nobody ever looked."""
    looked = sa.select(sa.func.count()).select_from(surveys)
    old = strays.c.first_seen_at < sa.func.now() - sa.func.make_interval(0, 0, 0, 0, 0, 0, GRACE_S)
    found = sa.select(sa.func.count()).select_from(strays).where(old)
    n_surveys, n_leaked = database.run(lambda c: (c.execute(looked).scalar_one(), c.execute(found).scalar_one()))
    return n_leaked if n_surveys else None
