"""The matter's database: one SQLite file, read through the eyes of one user."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from pathlib import Path
from typing import Any

SCHEMA = """
CREATE TABLE records (kind TEXT NOT NULL, id TEXT NOT NULL, data TEXT NOT NULL, PRIMARY KEY (kind, id));
CREATE TABLE documents (path TEXT PRIMARY KEY, title TEXT NOT NULL, text TEXT NOT NULL);
CREATE TABLE readers (path TEXT NOT NULL REFERENCES documents, user TEXT NOT NULL, PRIMARY KEY (path, user));
CREATE VIRTUAL TABLE passages USING fts5 (path UNINDEXED, text, tokenize = 'porter unicode61');
"""

EVERYBODY = "*"
METHODS = ("bm25", "keyword")
READABLE = "documents JOIN readers ON readers.path = documents.path AND readers.user IN (:user, '*')"

_WORD = re.compile(r"[^\W_]+")


def data_dir() -> Path:
    return Path(os.environ.get("MATTER_DESK_DATA") or "/srv/matter_desk")


def database_path() -> Path:
    return data_dir() / "matter.sqlite"


class Desk:
    """Every query goes through READABLE: what the user may not read doesn't exist here.

    user: None means the user of the world's matter; in a world of documents alone that is everybody.
    """

    def __init__(self, path: Path, user: str | None = None) -> None:
        self._db = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
        self.matter = next(iter(self.records("matters")), {"title": "untitled", "user": EVERYBODY})
        self.user = user or str(self.matter["user"])

    def records(self, kind: str) -> list[dict[str, Any]]:
        rows = self._db.execute("SELECT data FROM records WHERE kind = ? ORDER BY id", (kind,))
        return [json.loads(data) for (data,) in rows]

    def documents(self) -> list[dict[str, Any]]:
        query = f"SELECT documents.path, title, length(text) FROM {READABLE} ORDER BY documents.path"
        rows = self._db.execute(query, {"user": self.user})
        return [{"path": path, "title": title, "characters": characters} for path, title, characters in rows]

    def read(self, path: str) -> str | None:
        """None when there is no such document for this user; absent and forbidden look the same."""
        query = f"SELECT text FROM {READABLE} WHERE documents.path = :path"
        row = self._db.execute(query, {"user": self.user, "path": path}).fetchone()
        return None if row is None else str(row[0])

    def search(self, query: str, method: str, top_k: int) -> list[dict[str, Any]]:
        """The best documents, each with a passage; `method` is one of METHODS."""
        words = sorted({word.lower() for word in _WORD.findall(query)})
        if not words:
            return []
        return self._bm25(words, top_k) if method == "bm25" else self._keyword(words, top_k)

    def _bm25(self, words: list[str], top_k: int) -> list[dict[str, Any]]:
        """Documents by their best passage."""
        rows = self._db.execute(
            f"SELECT documents.path, title, passages.text FROM {READABLE} JOIN passages ON passages.path = documents.path"
            " WHERE passages MATCH :match ORDER BY bm25(passages), documents.path",
            {"match": " OR ".join(f'"{word}"' for word in words), "user": self.user},
        )
        best: dict[str, dict[str, Any]] = {}
        for path, title, text in rows:
            best.setdefault(path, {"path": path, "title": title, "passage": text})
        return list(best.values())[:top_k]

    def _keyword(self, words: list[str], top_k: int) -> list[dict[str, Any]]:
        """Documents by how many of the words stand in them, whatever the words are worth."""
        query = f"SELECT documents.path, title, text FROM {READABLE}"
        rows = self._db.execute(query, {"user": self.user}).fetchall()
        counted = [(sum(word in text.lower() for word in words), path, title, text) for path, title, text in rows]
        ranked = sorted((row for row in counted if row[0]), key=lambda row: (-row[0], row[1]))
        return [{"path": path, "title": title, "passage": _around(text, words)} for _, path, title, text in ranked[:top_k]]


def _around(text: str, words: list[str]) -> str:
    """The line with most of the words."""
    return max(text.splitlines(), key=lambda line: sum(word in line.lower() for word in words))[:600]
