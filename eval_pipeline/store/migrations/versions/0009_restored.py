"""What is taken back from the archive is not put away again at once."""

from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.execute("alter table evals.experiments add column restored_at timestamp with time zone")
