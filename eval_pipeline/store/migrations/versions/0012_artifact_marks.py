"""Artifacts that nothing refers to, since when."""

from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.execute(TABLES)


TABLES = """
CREATE TABLE evals.artifact_marks (
    store TEXT NOT NULL,
    digest TEXT NOT NULL,
    marked_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    PRIMARY KEY (store, digest)
);
"""
