"""What runs elsewhere takes nothing of what this machine's sandboxes share."""

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.execute("insert into evals.limits (name, value) values ('modal setups', 64), ('modal running', 10000);")
