"""Inside a transaction: a cell that is held by its fence, its open attempts, and money that is held for one."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import sqlalchemy as sa

from eval_pipeline.errors import BudgetExceeded, Cancelled, FenceLost
from eval_pipeline.store.rows import Claim, OpenAttempt, read_attempt
from eval_pipeline.store.schema import attempts, cells, experiments
from eval_pipeline.store.spending import require_month


def open_attempts(c: sa.Connection, keys: Sequence[str]) -> dict[str, OpenAttempt]:
    query = sa.select(attempts).where(attempts.c.cell_key.in_(keys), attempts.c.ended_at.is_(None)).order_by(attempts.c.number)
    return {row.cell_key: read_attempt(row) for row in c.execute(query)}


def hold(c: sa.Connection, claim: Claim, **values: Any) -> str:
    """Change the cell if the claim still holds and return its state; FenceLost otherwise."""
    held = sa.and_(cells.c.key == claim.key, cells.c.fence == claim.fence, cells.c.engine_id == claim.engine_id)
    change = sa.update(cells).where(held).values(updated_at=sa.func.now(), **values).returning(cells.c.state)
    state = c.execute(change).scalar()
    if state is None:
        raise fence_lost(claim)
    return state


def fence_lost(claim: Claim) -> FenceLost:
    return FenceLost(f"{claim.key}: another engine owns this cell now (our fence was {claim.fence})")


def reserve(c: sa.Connection, key: str, amount_usd: Decimal, *, first: bool) -> None:
    """first: of the cell's attempts. Raises Cancelled and BudgetExceeded."""
    row = c.execute(sa.select(experiments).where(experiments.c.id == key.partition("/")[0]).with_for_update()).one()
    if row.cancel_requested_at is not None:
        raise Cancelled(f"{row.id} is being cancelled")
    if row.budget_usd is not None and row.committed_usd + amount_usd > row.budget_usd:
        raise BudgetExceeded(
            f"{row.id}: {row.committed_usd:f} of {row.budget_usd:f} USD are spent or reserved; the next cell reserves {amount_usd:f}",
            hint="raise budget.cost_usd in the experiment's file and run it again: it goes on with what is open",
        )
    if first and row.budget_cells is not None and row.begun_cells >= row.budget_cells:
        raise BudgetExceeded(
            f"{row.id}: {row.begun_cells} of {row.n_cells} cells were begun, and its budget is {row.budget_cells}",
            hint="raise budget.cells in the experiment's file and run it again: it goes on with what is open",
        )
    require_month(c, row.id, amount_usd)
    more = {"committed_usd": experiments.c.committed_usd + amount_usd, "begun_cells": experiments.c.begun_cells + int(first)}
    c.execute(sa.update(experiments).where(experiments.c.id == row.id).values(more))


def take(c: sa.Connection, engine_id: str, keys: Sequence[str]) -> list[Claim]:
    """The cells that were locked, now the engine's, in tensor order."""
    if not keys:
        return []
    change = (
        sa.update(cells)
        .where(cells.c.key.in_(keys))
        .values(engine_id=engine_id, fence=cells.c.fence + 1, updated_at=sa.func.now())
        .returning(cells.c.key, cells.c.fence, cells.c.ordinal)
    )
    rows = sorted(c.execute(change), key=lambda row: row.ordinal)
    left = open_attempts(c, keys)
    return [Claim(key=row.key, engine_id=engine_id, fence=row.fence, open_attempt=left.get(row.key)) for row in rows]
