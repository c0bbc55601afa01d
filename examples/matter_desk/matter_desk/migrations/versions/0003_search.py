"""Full-text search by passage. No stop words: what a word is worth follows from how many passages hold it."""

from alembic import op

revision, down_revision = "0003", "0002"


def upgrade() -> None:
    op.execute("""
        CREATE TEXT SEARCH DICTIONARY every_word (TEMPLATE = snowball, LANGUAGE = english);
        CREATE TEXT SEARCH CONFIGURATION desk (COPY = simple);
        ALTER TEXT SEARCH CONFIGURATION desk ALTER MAPPING FOR asciiword, word WITH every_word;

        -- length: in words
        CREATE TABLE passages (
            id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, path text NOT NULL REFERENCES documents, text text NOT NULL,
            words tsvector NOT NULL, length int NOT NULL);
        CREATE INDEX passages_by_word ON passages USING gin (words);
        CREATE INDEX passages_by_path ON passages (path);
    """)
