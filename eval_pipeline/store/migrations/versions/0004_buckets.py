"""How often something may be done, for the whole installation."""

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.execute(TABLES)


TABLES = """
CREATE TABLE evals.buckets (
    name TEXT NOT NULL,
    tokens DOUBLE PRECISION NOT NULL,
    counted_at TIMESTAMP WITH TIME ZONE NOT NULL,
    PRIMARY KEY (name)
);
"""
