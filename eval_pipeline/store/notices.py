"""What people are told through a webhook: one row a notice, its key made from what happened, sent from here by whoever is there.

A key is recorded once and a notice that was marked as sent is never sent again. A sender that dies between the webhook's answer and the
mark leaves its notice to be sent a second time, with the same key: at least once, with a key to tell two of the same apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from eval_pipeline.store.database import Database, storable
from eval_pipeline.store.schema import notices, strays
from eval_pipeline.store.strays import GRACE_S

LEASE_S = 60
"""A notice that somebody took to send, and of which nothing was heard for so long, is taken again."""


@dataclass(frozen=True, kw_only=True)
class Notice:
    """tries: this one included."""

    key: str
    text: str
    tries: int


@dataclass(frozen=True, kw_only=True)
class Outbox:
    """error: of the last one that could not be sent."""

    waiting: int
    given_up: int
    error: str | None


class Notices:
    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, key: str, text: str) -> bool:
        """False when this was told, or will be, already."""
        return self._database.run(lambda c: _add(c, key, text))

    def add_leaked(self) -> int:
        """One notice for all sandboxes that are leaked and in no notice yet; how many these are."""
        old = strays.c.first_seen_at < sa.func.now() - _seconds(GRACE_S)
        told = sa.update(strays).where(strays.c.told_at.is_(None), old).values(told_at=sa.func.now())

        def work(c: sa.Connection) -> int:
            found = c.execute(told.returning(strays.c.name, strays.c.backend, strays.c.cell, strays.c.first_seen_at)).all()
            if found:
                first = min(found, key=lambda row: row.name)
                lines = [f"{row.name} on {row.backend}, of {row.cell or 'no cell'}" for row in sorted(found)[:10]]
                text = f"{len(found)} leaked sandboxes, which are being ended: {'; '.join(lines)}"
                _add(c, f"leak:{first.name}:{first.first_seen_at.isoformat()}", text)
            return len(found)

        return self._database.run(work)

    def take(self) -> Notice | None:
        """One whose time has come; nobody else gets it for LEASE_S."""
        due = sa.and_(notices.c.sent_at.is_(None), notices.c.given_up_at.is_(None), notices.c.next_try_at <= sa.func.now())
        oldest = sa.select(notices.c.key).where(due).order_by(notices.c.created_at).limit(1).with_for_update(skip_locked=True)
        change = (
            sa.update(notices)
            .where(notices.c.key == oldest.scalar_subquery())
            .values(tries=notices.c.tries + 1, next_try_at=sa.func.now() + _seconds(LEASE_S))
            .returning(notices.c.key, notices.c.text, notices.c.tries)
        )
        row = self._database.run(lambda c: c.execute(change).one_or_none())
        return None if row is None else Notice(key=row.key, text=row.text, tries=row.tries)

    def sent(self, key: str) -> None:
        self._change(key, sent_at=sa.func.now(), error=None)

    def failed(self, key: str, error: str, again_in_s: float | None) -> None:
        """again_in_s None: never."""
        later = {"given_up_at": sa.func.now()} if again_in_s is None else {"next_try_at": sa.func.now() + _seconds(again_in_s)}
        self._change(key, error=storable(error), **later)

    def _change(self, key: str, **values: object) -> None:
        self._database.run(lambda c: c.execute(sa.update(notices).where(notices.c.key == key).values(**values)))

    def outbox(self) -> Outbox:
        open_ = sa.and_(notices.c.sent_at.is_(None), notices.c.given_up_at.is_(None))
        counts = sa.select(sa.func.count().filter(open_), sa.func.count(notices.c.given_up_at))
        last = sa.select(notices.c.error).where(notices.c.error.is_not(None)).order_by(notices.c.next_try_at.desc()).limit(1)
        (waiting, given_up), error = self._database.run(lambda c: (c.execute(counts).one(), c.execute(last).scalar()))
        return Outbox(waiting=waiting, given_up=given_up, error=error)


def _add(c: sa.Connection, key: str, text: str) -> bool:
    row = insert(notices).values(key=key, text=storable(text)).on_conflict_do_nothing().returning(notices.c.key)
    return c.execute(row).first() is not None


def _seconds(seconds: float) -> sa.ColumnElement[object]:
    return sa.func.make_interval(0, 0, 0, 0, 0, 0, seconds)
