"""What people say of judged criteria, and which of them they were asked about."""

from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.execute(TABLES)


TABLES = """
CREATE TABLE evals.reviews (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    experiment_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    seed BIGINT NOT NULL,
    n_cells INTEGER,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    PRIMARY KEY (id),
    FOREIGN KEY(experiment_id) REFERENCES evals.experiments (id)
);

CREATE INDEX ix_reviews_experiment ON evals.reviews (experiment_id);

CREATE TABLE evals.review_items (
    review_id BIGINT NOT NULL,
    question_digest TEXT NOT NULL,
    cell_key TEXT NOT NULL,
    criterion TEXT NOT NULL,
    place INTEGER NOT NULL,
    raters INTEGER NOT NULL,
    PRIMARY KEY (review_id, cell_key, criterion),
    FOREIGN KEY(review_id) REFERENCES evals.reviews (id)
);

CREATE INDEX ix_review_items_question ON evals.review_items (question_digest);

CREATE TABLE evals.labels (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    question_digest TEXT NOT NULL,
    rater TEXT NOT NULL,
    verdict DOUBLE PRECISION,
    note TEXT,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    PRIMARY KEY (id)
);

CREATE INDEX ix_labels_question ON evals.labels (question_digest);
"""
