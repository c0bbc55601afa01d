"""What the ledger's tables are made of."""

from __future__ import annotations

import sqlalchemy as sa

SCHEMA = "evals"
metadata = sa.MetaData(schema=SCHEMA)

Time = sa.DateTime(timezone=True)
Money = sa.Numeric()  # exact, and without bound: what an agent claims to have used may be absurd


def now(name: str) -> sa.Column[object]:
    return sa.Column(name, Time, nullable=False, server_default=sa.func.now())
