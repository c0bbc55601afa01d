"""Documents, their versions, and who may read them."""

from alembic import op

revision, down_revision = "0002", "0001"


def upgrade() -> None:
    op.execute("""
        CREATE TABLE world (root text NOT NULL, permissions json NOT NULL);

        -- blob: the digest of the present version. restored: that of the world's file; NULL for a document made here
        CREATE TABLE documents (
            path text PRIMARY KEY, title text NOT NULL, text text NOT NULL, version int NOT NULL DEFAULT 1, blob text NOT NULL,
            restored text);
        CREATE TABLE versions (
            path text REFERENCES documents, version int, blob text NOT NULL, author text, at timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (path, version));
        CREATE TABLE readers (path text REFERENCES documents, "user" text, PRIMARY KEY (path, "user"));

        -- Every query for a user goes through it: what the user may not read doesn't exist.
        CREATE FUNCTION readable(who text) RETURNS SETOF documents LANGUAGE sql STABLE AS $$
            SELECT d.* FROM documents d
            WHERE EXISTS (SELECT FROM readers r WHERE r.path = d.path AND r."user" IN (who, '*'))
        $$;
    """)
