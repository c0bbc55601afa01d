"""The ledger."""

from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.execute(TABLES)
    op.execute(SEED)


TABLES = """
CREATE TABLE evals.hosts (
    id TEXT NOT NULL,
    place TEXT NOT NULL,
    hostname TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    PRIMARY KEY (id)
);

CREATE TABLE evals.installation (
    id UUID NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    PRIMARY KEY (id)
);

CREATE TABLE evals.limits (
    name TEXT NOT NULL,
    value INTEGER NOT NULL,
    PRIMARY KEY (name)
);

CREATE TABLE evals.score_locks (
    digest TEXT NOT NULL,
    lock JSONB NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    PRIMARY KEY (digest)
);

CREATE TABLE evals.snapshots (
    digest TEXT NOT NULL,
    world TEXT NOT NULL,
    archive TEXT NOT NULL,
    archive_bytes BIGINT NOT NULL,
    manifest JSONB NOT NULL,
    size_bytes BIGINT NOT NULL,
    n_files INTEGER NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    PRIMARY KEY (digest)
);

CREATE TABLE evals.verdicts (
    request_digest TEXT NOT NULL,
    judge_version TEXT NOT NULL,
    vote INTEGER NOT NULL,
    bundle TEXT NOT NULL,
    criterion TEXT NOT NULL,
    verdict DOUBLE PRECISION,
    status TEXT NOT NULL,
    reason TEXT,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    PRIMARY KEY (request_digest, judge_version, vote)
);

CREATE INDEX ix_verdicts_bundle ON evals.verdicts (bundle);

CREATE TABLE evals.engines (
    id UUID NOT NULL,
    host_id TEXT NOT NULL,
    pid INTEGER NOT NULL,
    run_id TEXT,
    started_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    lease_until TIMESTAMP WITH TIME ZONE NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (id),
    FOREIGN KEY(host_id) REFERENCES evals.hosts (id)
);

CREATE TABLE evals.experiments (
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    run_lock JSONB NOT NULL,
    run_digest TEXT NOT NULL,
    source_digest TEXT NOT NULL,
    score_digest TEXT NOT NULL,
    repo TEXT NOT NULL,
    baseline TEXT,
    budget_usd NUMERIC,
    committed_usd NUMERIC DEFAULT '0' NOT NULL,
    n_cells INTEGER NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    ran_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    cancel_requested_at TIMESTAMP WITH TIME ZONE,
    archived_at TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (id),
    UNIQUE (run_digest),
    FOREIGN KEY(score_digest) REFERENCES evals.score_locks (digest)
);

CREATE INDEX ix_experiments_source ON evals.experiments (name, source_digest);

CREATE TABLE evals.cells (
    key TEXT NOT NULL,
    experiment_id TEXT NOT NULL,
    ordinal INTEGER NOT NULL,
    cell_digest TEXT NOT NULL,
    state TEXT DEFAULT 'open' NOT NULL,
    outcome TEXT,
    attempt_id BIGINT,
    engine_id UUID,
    fence BIGINT DEFAULT '0' NOT NULL,
    logged_attempt_id BIGINT,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    PRIMARY KEY (key),
    FOREIGN KEY(experiment_id) REFERENCES evals.experiments (id),
    FOREIGN KEY(engine_id) REFERENCES evals.engines (id)
);

CREATE INDEX ix_cells_digest ON evals.cells (cell_digest);

CREATE INDEX ix_cells_experiment ON evals.cells (experiment_id, ordinal);

CREATE TABLE evals.grants (
    engine_id UUID NOT NULL,
    name TEXT NOT NULL,
    amount INTEGER NOT NULL,
    PRIMARY KEY (engine_id, name),
    FOREIGN KEY(engine_id) REFERENCES evals.engines (id),
    FOREIGN KEY(name) REFERENCES evals.limits (name)
);

CREATE TABLE evals.attempts (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    cell_key TEXT NOT NULL,
    number INTEGER NOT NULL,
    fence BIGINT NOT NULL,
    backend TEXT NOT NULL,
    sandbox TEXT NOT NULL,
    host_id TEXT NOT NULL,
    reserved_usd NUMERIC DEFAULT '0' NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    agent_started_at TIMESTAMP WITH TIME ZONE,
    deadline_at TIMESTAMP WITH TIME ZONE,
    ended_at TIMESTAMP WITH TIME ZONE,
    outcome TEXT,
    error TEXT,
    error_class TEXT,
    bundle TEXT,
    usage JSONB,
    usage_source TEXT,
    cost_usd NUMERIC,
    price_version TEXT,
    latency_s DOUBLE PRECISION,
    evidence JSONB,
    discarded TEXT,
    PRIMARY KEY (id),
    CONSTRAINT uq_attempts_cell_number UNIQUE (cell_key, number),
    FOREIGN KEY(cell_key) REFERENCES evals.cells (key),
    FOREIGN KEY(host_id) REFERENCES evals.hosts (id)
);

CREATE INDEX ix_attempts_bundle ON evals.attempts (bundle);
"""

SEED = """
insert into evals.installation (id) values (gen_random_uuid());
insert into evals.limits (name, value) values ('setups', 8), ('running', 64), ('parsers', 2);
"""
