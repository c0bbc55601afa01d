"""The matter's records. What has no column here is kept in `extra`, and a table unknown here in `records`: nothing is lost."""

from alembic import op

revision, down_revision = "0001", None


def upgrade() -> None:
    op.execute("""
        CREATE TABLE users (id text PRIMARY KEY, name text, role text, email text, extra json NOT NULL);
        CREATE TABLE matters (
            id text PRIMARY KEY, title text, client text, counterparty text, "user" text, responsible text, opened_on text,
            status text, extra json NOT NULL);
        CREATE TABLE playbook_rules (id text PRIMARY KEY, matter text, topic text, rule text, extra json NOT NULL);
        CREATE TABLE past_chats (
            id text PRIMARY KEY, matter text, "user" text, at text, question text, answer text, extra json NOT NULL);
        CREATE TABLE tabular_reviews (
            id text PRIMARY KEY, matter text, document text, "column" text, value text, reviewed_by text, extra json NOT NULL);
        CREATE TABLE records (kind text, id text, data json NOT NULL, PRIMARY KEY (kind, id));
    """)
