"""The tables of researches."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from eval_pipeline.store.schema_base import metadata, now

researches = sa.Table(
    "researches",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("source_digest", sa.Text, nullable=False),
    sa.Column("goal", JSONB, nullable=False),
    sa.Column("run_lock", JSONB, nullable=False),  # all cases of both halves, with the baseline as the one arm
    sa.Column("score_digest", sa.Text, sa.ForeignKey("evals.score_locks.digest"), nullable=False),
    sa.Column("split", JSONB, nullable=False),
    sa.Column("repo", sa.Text, nullable=False),
    sa.Column("stop_requested", sa.Text),  # why, until whoever drives it has written so into the journal
    sa.Column("created_by", sa.Text),
    now("created_at"),
    sa.Index("ix_researches_source", "name", "source_digest"),
)

research_journal = sa.Table(
    "research_journal",
    metadata,
    sa.Column("research_id", sa.Text, sa.ForeignKey(researches.c.id), primary_key=True),
    sa.Column("ordinal", sa.Integer, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("step", sa.Integer, nullable=False),
    sa.Column("data", JSONB, nullable=False),
    now("created_at"),
)

research_runs = sa.Table(  # written before the experiment is
    "research_runs",
    metadata,
    sa.Column("experiment_id", sa.Text, primary_key=True),
    sa.Column("research_id", sa.Text, sa.ForeignKey(researches.c.id), nullable=False),
    sa.Column("step", sa.Integer, nullable=False),
    sa.Column("half", sa.Text, nullable=False),
    now("created_at"),
    sa.Index("ix_research_runs_research", "research_id"),
)
