"""The score locks of an experiment in the order they held: the last one does."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from eval_pipeline.domain.lock import ScoreLock
from eval_pipeline.store.database import Database
from eval_pipeline.store.schema import experiments, score_locks, scorings


@dataclass(frozen=True, kw_only=True)
class Scoring:
    score: ScoreLock
    since: datetime


class Scorings:
    def __init__(self, database: Database) -> None:
        self._database = database

    def set(self, experiment: str, score: ScoreLock) -> None:
        """From now on the experiment is scored by this lock. What was said under another one stays."""

        def work(c: sa.Connection) -> None:
            keep(c, score)
            change = sa.update(experiments).where(experiments.c.id == experiment).values(score_digest=score.digest)
            c.execute(change)
            note(c, experiment, score.digest)

        self._database.run(work)

    def history(self, experiment: str) -> list[Scoring]:
        """Oldest first."""
        query = (
            sa.select(scorings.c.created_at, score_locks.c.lock)
            .join(score_locks, score_locks.c.digest == scorings.c.score_digest)
            .where(scorings.c.experiment_id == experiment)
            .order_by(scorings.c.id)
        )
        rows = self._database.run(lambda c: c.execute(query).all())
        return [Scoring(score=ScoreLock.model_validate(row.lock, strict=False), since=row.created_at) for row in rows]


def keep(c: sa.Connection, score: ScoreLock) -> None:
    c.execute(insert(score_locks).values(digest=score.digest, lock=score.model_dump(mode="json")).on_conflict_do_nothing())


def note(c: sa.Connection, experiment: str, digest: str) -> None:
    """Nothing happens when it is the one that holds."""
    last = (
        sa.select(scorings.c.score_digest).where(scorings.c.experiment_id == experiment).order_by(scorings.c.id.desc()).limit(1)
    )
    if c.execute(last).scalar() != digest:
        c.execute(insert(scorings).values(experiment_id=experiment, score_digest=digest))
