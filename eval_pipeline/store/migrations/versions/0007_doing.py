"""What an engine's cells wait for; attempts that whoever has a place for it brings to their end."""

from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.execute("alter table evals.engines add column kind text not null default 'engine', add column doing jsonb")
    op.execute("alter table evals.attempts add column handover jsonb")
