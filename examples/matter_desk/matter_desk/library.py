"""The matter as one user sees it: every query goes through readable(user), so what may not be read doesn't exist."""

from __future__ import annotations

import unicodedata
from typing import Any

from matter_desk.permissions import EVERYBODY, readers
from matter_desk.text import Content, passages, words

# Okapi BM25 over the passages that the user may read, with k1 = 1.2 and b = 0.75; a document counts by its best passage.
_BM25 = """
WITH shelf AS MATERIALIZED (SELECT p.* FROM passages p WHERE p.path IN (SELECT path FROM readable(%(user)s))),
size AS (SELECT count(*)::float8 AS n, greatest(avg(length), 1)::float8 AS mean FROM shelf),
found AS (
    SELECT s.id, s.length, w.lexeme, cardinality(w.positions)::float8 AS times FROM shelf s, unnest(s.words) w
    WHERE s.words @@ %(any)s::tsquery AND w.lexeme = ANY(%(words)s)),
worth AS (
    SELECT lexeme, greatest(ln((n - count(*) + 0.5) / (count(*) + 0.5)), 1e-6) AS idf FROM found, size GROUP BY lexeme, n),
scored AS (
    SELECT id, sum(idf * times * 2.2 / (times + 1.2 * (0.25 + 0.75 * length / mean))) AS score
    FROM found JOIN worth USING (lexeme), size GROUP BY id),
best AS (
    SELECT DISTINCT ON (path) path, text, score FROM scored JOIN shelf USING (id) ORDER BY path, score DESC, id)
SELECT path, d.title, best.text FROM best JOIN documents d USING (path) ORDER BY score DESC, path LIMIT %(top_k)s
"""

# Documents by how many of the words stand in them, whatever the words are worth.
_KEYWORD = """
SELECT path, title, text FROM (
    SELECT *, (SELECT count(*) FROM unnest(%(words)s::text[]) w WHERE position(w IN lower(text)) > 0) AS n
    FROM readable(%(user)s)) d
WHERE n > 0 ORDER BY n DESC, path LIMIT %(top_k)s
"""


class NotThere(Exception):
    """No such document for this user: absent and forbidden look the same."""


class Taken(Exception):
    """The name, or one that some systems take for the same, is another document's."""


def listed(cursor: Any, user: str) -> list[dict[str, Any]]:
    cursor.execute("SELECT path, title, length(text), version FROM readable(%s) ORDER BY path", (user,))
    return [dict(zip(("path", "title", "characters", "version"), found, strict=True)) for found in cursor]


def read(cursor: Any, user: str, path: str) -> dict[str, Any]:
    """Raises NotThere."""
    cursor.execute("SELECT title, text, version, blob FROM readable(%s) WHERE path = %s", (user, path))
    if (found := cursor.fetchone()) is None:
        raise NotThere(path)
    return {"path": path} | dict(zip(("title", "text", "version", "blob"), found, strict=True))


def search(cursor: Any, user: str, query: str, method: str, top_k: int) -> list[dict[str, Any]]:
    """The best documents, each with a passage. method: one of METHODS."""
    asked = sorted({word.lower() for word in words(query)})
    if not asked:
        return []
    if method == "keyword":
        cursor.execute(_KEYWORD, {"user": user, "words": asked, "top_k": top_k})
        return [{"path": path, "title": title, "passage": _around(text, asked)} for path, title, text in cursor]
    cursor.execute("SELECT tsvector_to_array(to_tsvector('desk', %s))", (" ".join(asked),))
    (lexemes,) = cursor.fetchone()
    either = " | ".join(f"'{lexeme}'" for lexeme in lexemes)
    cursor.execute(_BM25, {"user": user, "words": lexemes, "any": either, "top_k": top_k})
    return [dict(zip(("path", "title", "passage"), found, strict=True)) for found in cursor]


def _around(text: str, asked: list[str]) -> str:
    """The line with most of the words."""
    return max(text.splitlines(), key=lambda line: sum(word in line.lower() for word in asked))[:600]


def shelve(cursor: Any, path: str, digest: str, found: Content, permissions: dict[str, Any], *, restored: bool) -> None:
    """Add a document that is new to the matter."""
    values = (path, found.title, found.text, digest, digest if restored else None)
    cursor.execute("INSERT INTO documents (path, title, text, blob, restored) VALUES (%s, %s, %s, %s, %s)", values)
    cursor.executemany("INSERT INTO readers VALUES (%s, %s)", [(path, user) for user in readers(permissions, path)])
    _index(cursor, path, found)


def revise(cursor: Any, user: str, path: str, digest: str, found: Content) -> int:
    """Make `digest` the document's present version; its number. Raises NotThere."""
    before = read(cursor, user, path)
    cursor.execute(
        "INSERT INTO versions (path, version, blob) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
        (path, before["version"], before["blob"]),
    )
    cursor.execute(
        "UPDATE documents SET title = %s, text = %s, blob = %s, version = version + 1 WHERE path = %s RETURNING version",
        (found.title, found.text, digest, path),
    )
    (version,) = cursor.fetchone()
    cursor.execute("INSERT INTO versions (path, version, blob, author) VALUES (%s, %s, %s, %s)", (path, version, digest, user))
    cursor.execute("DELETE FROM passages WHERE path = %s", (path,))
    _index(cursor, path, found)
    return version


def create(cursor: Any, user: str, path: str, digest: str, found: Content) -> None:
    """Raises NotThere when the user could not read it, and Taken."""
    cursor.execute("SELECT permissions FROM world")
    (permissions,) = cursor.fetchone()
    if not {user, EVERYBODY}.intersection(readers(permissions, path)):
        raise NotThere(path)
    cursor.execute("SELECT path FROM documents")
    if _folded(path) in {_folded(other) for (other,) in cursor}:
        raise Taken(path)
    shelve(cursor, path, digest, found, permissions, restored=False)
    cursor.execute("INSERT INTO versions (path, version, blob, author) VALUES (%s, 1, %s, %s)", (path, digest, user))


def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def _index(cursor: Any, path: str, found: Content) -> None:
    if not found.searchable:
        return
    for passage in passages(found.text):
        spoken = words(passage)
        cursor.execute(
            "INSERT INTO passages (path, text, words, length) VALUES (%s, %s, to_tsvector('desk', %s), %s)",
            (path, passage, " ".join(spoken), len(spoken)),
        )
