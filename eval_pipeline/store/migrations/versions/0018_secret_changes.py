"""When a secret's value came to be, where its source knows."""

from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    op.execute("ALTER TABLE evals.secret_versions ADD COLUMN changed_at TIMESTAMP WITH TIME ZONE")
