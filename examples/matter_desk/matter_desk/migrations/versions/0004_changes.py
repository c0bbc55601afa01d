"""Which tables were written to since the world was loaded: the others need no writing out."""

from alembic import op

revision, down_revision = "0004", "0003"

TABLES = ("users", "matters", "playbook_rules", "past_chats", "tabular_reviews", "records")


def upgrade() -> None:
    op.execute("""
        CREATE TABLE changed (name text PRIMARY KEY);
        CREATE FUNCTION mark_changed() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO changed VALUES (TG_TABLE_NAME) ON CONFLICT DO NOTHING;
            RETURN NULL;
        END $$;
    """)
    for table in TABLES:
        op.execute(
            f"CREATE TRIGGER mark_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON {table}"
            " FOR EACH STATEMENT EXECUTE FUNCTION mark_changed()"
        )
