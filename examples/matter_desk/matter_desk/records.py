"""Rows of the matter's tables, as JSON objects and as the database keeps them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

Row = dict[str, Any]

# table -> the columns that hold a text; a key without a column, or with another value than a text, goes to `extra`
TABLES: dict[str, tuple[str, ...]] = {
    "users": ("name", "role", "email"),
    "matters": ("title", "client", "counterparty", "user", "responsible", "opened_on", "status"),
    "playbook_rules": ("matter", "topic", "rule"),
    "past_chats": ("matter", "user", "at", "question", "answer"),
    "tabular_reviews": ("matter", "document", "column", "value", "reviewed_by"),
}


def insert(cursor: Any, table: str, rows: Iterable[Row]) -> None:
    """A table that is not in TABLES goes to `records`."""
    if table not in TABLES:
        values = [(table, row["id"], json.dumps(row)) for row in rows]
        cursor.executemany("INSERT INTO records VALUES (%s, %s, %s)", values)
        return
    columns = TABLES[table]
    marks = ", ".join(["%s"] * (len(columns) + 2))
    cursor.executemany(f"INSERT INTO {table} VALUES ({marks})", [_to_columns(columns, row) for row in rows])


def select(cursor: Any, table: str, where: str = "true", values: Row | None = None) -> list[Row]:
    """Sorted by id. `where` is SQL about the table's columns."""
    columns = TABLES[table]
    names = ", ".join(f'"{name}"' for name in ("id", *columns, "extra"))
    cursor.execute(f"SELECT {names} FROM {table} WHERE {where} ORDER BY id", values or {})
    return [_from_columns(columns, found) for found in cursor]


def others(cursor: Any) -> Iterator[tuple[str, Row]]:
    """(table, row) of the tables that are not in TABLES, sorted."""
    cursor.execute("SELECT kind, data FROM records ORDER BY kind, id")
    yield from cursor


def _to_columns(columns: tuple[str, ...], row: Row) -> tuple[Any, ...]:
    texts = {name: row[name] for name in ("id", *columns) if _is_text(row.get(name))}
    extra = {name: value for name, value in row.items() if name not in texts}
    return (texts.get("id", str(row["id"])), *(texts.get(name) for name in columns), json.dumps(extra))


def _is_text(value: Any) -> bool:
    """As PostgreSQL understands it."""
    return isinstance(value, str) and "\0" not in value and value.encode("utf-8", "replace").decode() == value


def _from_columns(columns: tuple[str, ...], found: tuple[Any, ...]) -> Row:
    texts = dict(zip(("id", *columns), found, strict=False))
    return {name: value for name, value in texts.items() if value is not None} | found[-1]
