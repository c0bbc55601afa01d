"""The table of what stands in benchmarks."""

from __future__ import annotations

import sqlalchemy as sa

from eval_pipeline.store.schema_base import metadata, now

benchmark_entries = sa.Table(
    "benchmark_entries",
    metadata,
    sa.Column("benchmark", sa.Text, primary_key=True),
    sa.Column("identity", sa.Text, primary_key=True),  # of the arm: what runs, whatever its name
    sa.Column("experiment_id", sa.Text, sa.ForeignKey("evals.experiments.id"), nullable=False),
    sa.Column("arm", sa.Text, nullable=False),
    sa.Column("place", sa.Integer, nullable=False),  # among those that entered with it
    now("entered_at"),
)
