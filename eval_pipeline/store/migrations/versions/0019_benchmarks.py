"""Which arms of which experiments stand in one table, and since when."""

from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    op.execute(TABLE)


TABLE = """
CREATE TABLE evals.benchmark_entries (
    benchmark TEXT NOT NULL,
    identity TEXT NOT NULL,
    experiment_id TEXT NOT NULL,
    arm TEXT NOT NULL,
    place INTEGER NOT NULL,
    entered_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    PRIMARY KEY (benchmark, identity),
    FOREIGN KEY(experiment_id) REFERENCES evals.experiments (id)
)
"""
