"""Layers, warm sandboxes, and what a snapshot was made with."""

from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.execute(TABLES)


TABLES = """
ALTER TABLE evals.snapshots ADD COLUMN made_with JSONB;

CREATE TABLE evals.layers (
    backend TEXT NOT NULL,
    place TEXT NOT NULL,
    key TEXT NOT NULL,
    kind TEXT NOT NULL,
    app TEXT NOT NULL,
    base TEXT NOT NULL,
    commit TEXT,
    tree TEXT NOT NULL,
    world TEXT,
    parents TEXT[] NOT NULL,
    ref TEXT NOT NULL,
    digest TEXT,
    size_bytes BIGINT,
    built_s DOUBLE PRECISION,
    state TEXT,
    expires_at TIMESTAMP WITH TIME ZONE,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    used_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    PRIMARY KEY (backend, place, key)
);

CREATE INDEX ix_layers_images ON evals.layers (backend, place, app, kind);

CREATE TABLE evals.warm_sandboxes (
    name TEXT NOT NULL,
    backend TEXT NOT NULL,
    place TEXT NOT NULL,
    spec_digest TEXT NOT NULL,
    app TEXT NOT NULL,
    world TEXT NOT NULL,
    ready_s DOUBLE PRECISION,
    expires_at TIMESTAMP WITH TIME ZONE NOT NULL,
    attempt_id BIGINT,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    PRIMARY KEY (name)
);

CREATE INDEX ix_warm_sandboxes_spec ON evals.warm_sandboxes (spec_digest);
"""
