"""The tables of what people say of judged criteria."""

from __future__ import annotations

import sqlalchemy as sa

from eval_pipeline.store.schema_base import metadata, now

reviews = sa.Table(
    "reviews",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("experiment_id", sa.Text, sa.ForeignKey("evals.experiments.id"), nullable=False),
    sa.Column("kind", sa.Text, nullable=False),  # random: says something of all cells; doubt: picked for what the judge said
    sa.Column("seed", sa.BigInteger, nullable=False),
    sa.Column("n_cells", sa.Integer),  # how many were asked for; null: all there are
    now("created_at"),
    sa.Index("ix_reviews_experiment", "experiment_id"),
)

review_items = sa.Table(
    "review_items",
    metadata,
    sa.Column("review_id", sa.BigInteger, sa.ForeignKey(reviews.c.id), primary_key=True),
    sa.Column("cell_key", sa.Text, primary_key=True),
    sa.Column("criterion", sa.Text, primary_key=True),
    sa.Column("question_digest", sa.Text, nullable=False),  # cells that left the same share it, and its labels
    sa.Column("place", sa.Integer, nullable=False),  # in the order people see
    sa.Column("raters", sa.Integer, nullable=False),  # how many people are to label it
    sa.Index("ix_review_items_question", "question_digest"),
)

labels = sa.Table(  # of a rater's labels of one question the last one holds
    "labels",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("question_digest", sa.Text, nullable=False),
    sa.Column("rater", sa.Text, nullable=False),
    sa.Column("verdict", sa.Double),  # null: this person can't tell either
    sa.Column("note", sa.Text),
    now("created_at"),
    sa.Index("ix_labels_question", "question_digest"),
)
