"""How long an attempt's sandbox was there, and what it cost."""

from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.execute(COLUMNS)


COLUMNS = """
ALTER TABLE evals.attempts
    ADD COLUMN reserved_sandbox_usd NUMERIC DEFAULT 0 NOT NULL,
    ADD COLUMN sandbox_usd_per_s NUMERIC,
    ADD COLUMN sandbox_rate TEXT,
    ADD COLUMN sandbox_started_at TIMESTAMP WITH TIME ZONE,
    ADD COLUMN sandbox_s DOUBLE PRECISION,
    ADD COLUMN sandbox_cost_usd NUMERIC;
"""
