"""Sandboxes that nobody owns, and notices that are sent once."""

from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.execute(TABLES)


TABLES = """
CREATE TABLE evals.surveys (
    backend TEXT NOT NULL,
    place TEXT NOT NULL,
    surveyed_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    PRIMARY KEY (backend, place)
);

CREATE TABLE evals.strays (
    backend TEXT NOT NULL,
    place TEXT NOT NULL,
    name TEXT NOT NULL,
    cell TEXT,
    first_seen_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    told_at TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (backend, place, name)
);

CREATE TABLE evals.notices (
    key TEXT NOT NULL,
    text TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    tries INTEGER DEFAULT 0 NOT NULL,
    next_try_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    sent_at TIMESTAMP WITH TIME ZONE,
    given_up_at TIMESTAMP WITH TIME ZONE,
    error TEXT,
    PRIMARY KEY (key)
);
"""
