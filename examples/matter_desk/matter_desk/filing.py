"""The records as a session may see and write them."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import Any

from matter_desk import records
from matter_desk.library import NotThere, read
from matter_desk.records import Row
from matter_desk.sessions import Session

# A row of another matter is never seen; a chat is its user's; a review is seen with the document that it is about.
_VISIBLE = {
    "users": "true",
    "matters": "id = %(matter)s",
    "playbook_rules": "(matter IS NULL OR matter = %(matter)s)",
    "past_chats": '(matter IS NULL OR matter = %(matter)s) AND "user" = %(user)s',
    "tabular_reviews": "(matter IS NULL OR matter = %(matter)s)"
    " AND (document IS NULL OR document IN (SELECT path FROM readable(%(user)s)))",
}
_WRITABLE = {"past_chats": {"question", "answer"}, "tabular_reviews": {"document", "column", "value"}}


class RowRefused(Exception):
    """What is wrong with a table's name or a row."""


def visible(cursor: Any, session: Session, table: str) -> list[Row]:
    if table not in _VISIBLE:
        raise RowRefused(f"there is no table {table!r}; known: {', '.join(_VISIBLE)}")
    return records.select(cursor, table, _VISIBLE[table], vars(session))


def save(cursor: Any, session: Session, table: str, row: Row) -> Row:
    """The row as it was saved: with an id, the session's matter, and the session's user as who wrote it."""
    wanted = _WRITABLE.get(table)
    if wanted is None or row.keys() != wanted or not all(isinstance(value, str) for value in row.values()):
        shapes = "; ".join(f"{name}: {', '.join(sorted(columns))}" for name, columns in _WRITABLE.items())
        raise RowRefused(f"a row to save is one of these, all texts: {shapes}")
    if table == "tabular_reviews":
        try:
            read(cursor, session.user, row["document"])
        except NotThere:
            raise RowRefused(f"there is no document {row['document']!r} that you may read") from None
        by = {"reviewed_by": session.user}
    else:
        by = {"user": session.user, "at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
    saved = {"id": f"{table[0]}-{secrets.token_hex(6)}"} | ({"matter": session.matter} if session.matter else {}) | row | by
    records.insert(cursor, table, [saved])
    return saved
