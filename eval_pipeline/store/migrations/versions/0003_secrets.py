"""Versions of secrets; never a value."""

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.execute(TABLES)


TABLES = """
CREATE TABLE evals.secret_versions (
    place TEXT NOT NULL,
    name TEXT NOT NULL,
    phase TEXT NOT NULL,
    version TEXT NOT NULL,
    source TEXT NOT NULL,
    synced_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    last_seen TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    PRIMARY KEY (place, name, phase, version)
);
"""
