"""Researches: what is searched for, the experiments that were run for it, and an append-only journal."""

from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    op.execute(TABLES)
    op.execute(APPEND_ONLY)


TABLES = """
CREATE TABLE evals.researches (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    source_digest TEXT NOT NULL,
    goal JSONB NOT NULL,
    run_lock JSONB NOT NULL,
    score_digest TEXT NOT NULL REFERENCES evals.score_locks (digest),
    split JSONB NOT NULL,
    repo TEXT NOT NULL,
    stop_requested TEXT,
    created_by TEXT,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL
);
CREATE INDEX ix_researches_source ON evals.researches (name, source_digest);
CREATE TABLE evals.research_journal (
    research_id TEXT NOT NULL REFERENCES evals.researches (id),
    ordinal INTEGER NOT NULL,
    kind TEXT NOT NULL,
    step INTEGER NOT NULL,
    data JSONB NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    PRIMARY KEY (research_id, ordinal)
);
CREATE TABLE evals.research_runs (
    experiment_id TEXT PRIMARY KEY,
    research_id TEXT NOT NULL REFERENCES evals.researches (id),
    step INTEGER NOT NULL,
    half TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL
);
CREATE INDEX ix_research_runs_research ON evals.research_runs (research_id);
"""

APPEND_ONLY = """
CREATE FUNCTION evals.journal_stays() RETURNS trigger LANGUAGE plpgsql AS $$
begin
    raise exception 'the journal of a research is append-only';
end $$;
CREATE TRIGGER journal_stays BEFORE UPDATE OR DELETE ON evals.research_journal
    FOR EACH ROW EXECUTE FUNCTION evals.journal_stays();
"""
