"""Attempts whose agents have ended and that somebody else than their engine brings to their end."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from eval_pipeline.domain.cell import CellState
from eval_pipeline.domain.handover import Handover
from eval_pipeline.store import steps
from eval_pipeline.store.database import Database
from eval_pipeline.store.holding import fence_lost, take
from eval_pipeline.store.rows import Claim
from eval_pipeline.store.schema import HANDED_OVER, attempts, cells, engines


def hand_over(database: Database, claim: Claim, attempt_id: int, handover: Handover) -> None:
    """The cell is not ours from here on. Raises FenceLost."""
    if not steps.hand_over(database, claim, attempt_id, handover):
        raise fence_lost(claim)


def claim_handed_over(
    database: Database, worker_id: str, most: int, *, backends: Sequence[str], but: Sequence[str] = ()
) -> list[Claim]:
    """Take up to `most` cells that nobody alive is bringing to their end, the oldest first.

    backends: whose sandboxes this worker can reach; of others the output must be stored. but: cells to leave to others.
    """
    living = sa.exists().where(
        engines.c.id == cells.c.engine_id, engines.c.ended_at.is_(None), engines.c.lease_until > sa.func.now()
    )
    stored = attempts.c.handover["bundle"].as_string().is_not(None)
    ended = sa.exists().where(HANDED_OVER, sa.or_(stored, attempts.c.backend.in_(backends)))
    free = (
        sa.select(cells.c.key)
        .where(cells.c.state != CellState.DONE, ended, sa.or_(cells.c.engine_id.is_(None), ~living))
        .where(cells.c.key != sa.all_(sa.literal(list(but), sa.ARRAY(sa.Text))))
        .order_by(cells.c.updated_at)
        .limit(most)
        .with_for_update(of=cells, skip_locked=True)
    )
    return database.run(lambda c: take(c, worker_id, [row.key for row in c.execute(free)]))


def give_back(database: Database, claim: Claim) -> None:
    """The cell is free for others; nothing happens when it is not ours."""
    steps.give_back(database, claim)
