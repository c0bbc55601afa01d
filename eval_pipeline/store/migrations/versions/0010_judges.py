"""What judges were asked, each of their calls with its money, and how many may be made."""

from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.execute(TABLES)
    op.execute(SEED)


TABLES = """
ALTER TABLE evals.verdicts ADD COLUMN quotes JSONB;

CREATE TABLE evals.judge_requests (
    question_digest TEXT NOT NULL,
    request_digest TEXT NOT NULL,
    unseen JSONB NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    PRIMARY KEY (question_digest, request_digest)
);

CREATE TABLE evals.judge_calls (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    experiment_id TEXT NOT NULL,
    cell_key TEXT NOT NULL,
    criterion TEXT NOT NULL,
    request_digest TEXT NOT NULL,
    judge_version TEXT NOT NULL,
    pool TEXT NOT NULL,
    reserved_usd NUMERIC DEFAULT '0' NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    deadline_at TIMESTAMP WITH TIME ZONE NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE,
    status TEXT,
    error TEXT,
    usage JSONB,
    cost_usd NUMERIC,
    latency_s DOUBLE PRECISION,
    PRIMARY KEY (id),
    FOREIGN KEY(experiment_id) REFERENCES evals.experiments (id)
);

CREATE INDEX ix_judge_calls_experiment ON evals.judge_calls (experiment_id, cell_key);

CREATE INDEX ix_judge_calls_open ON evals.judge_calls (pool) WHERE ended_at IS NULL;
"""

SEED = """
insert into evals.limits (name, value) values ('judge calls', 8), ('judge calls per minute', 300);
"""
