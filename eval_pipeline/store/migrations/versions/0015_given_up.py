"""Which attempts had what they left removed: nobody takes their results over any more."""

from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.execute("ALTER TABLE evals.attempts ADD COLUMN given_up_at TIMESTAMP WITH TIME ZONE")
