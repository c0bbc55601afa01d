"""Builds that one of several hosts does, and the Secrets that were written to Modal; never a value."""

from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.execute(TABLES)


TABLES = """
CREATE TABLE evals.build_leases (
    place TEXT NOT NULL,
    key TEXT NOT NULL,
    holder TEXT NOT NULL,
    lease_until TIMESTAMP WITH TIME ZONE NOT NULL,
    PRIMARY KEY (place, key)
);

CREATE TABLE evals.modal_secrets (
    place TEXT NOT NULL,
    name TEXT NOT NULL,
    app TEXT NOT NULL,
    phase TEXT NOT NULL,
    version TEXT NOT NULL,
    versions JSONB NOT NULL,
    written_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    seen_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    PRIMARY KEY (place, name)
);
"""
