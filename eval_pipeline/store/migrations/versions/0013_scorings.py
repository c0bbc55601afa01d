"""Under which locks an experiment was scored, one after the other."""

from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.execute(TABLES)
    op.execute("insert into evals.scorings (experiment_id, score_digest) select id, score_digest from evals.experiments")


TABLES = """
CREATE TABLE evals.scorings (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    experiment_id TEXT NOT NULL,
    score_digest TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    PRIMARY KEY (id),
    FOREIGN KEY(experiment_id) REFERENCES evals.experiments (id),
    FOREIGN KEY(score_digest) REFERENCES evals.score_locks (digest)
);

CREATE INDEX ix_scorings_experiment ON evals.scorings (experiment_id, id);
"""
