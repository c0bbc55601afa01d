"""Load a world into the desk's database."""

from __future__ import annotations

import fnmatch
import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

from matter_desk.store import EVERYBODY, SCHEMA, data_dir, database_path
from matter_desk.text import extract, passages, title

DOCUMENT_FOLDERS = ("documents", "blobs")


def main(argv: list[str]) -> int:
    if len(argv) != 1:
        print("usage: restore WORLD_DIRECTORY", file=sys.stderr)
        return 2
    world = Path(argv[0])
    data_dir().mkdir(parents=True, exist_ok=True)
    database_path().unlink(missing_ok=True)
    db = sqlite3.connect(database_path())
    with db:
        db.executescript(SCHEMA)
        load_records(db, world)
        load_documents(db, world)
    db.execute("INSERT INTO passages (passages) VALUES ('optimize')")
    db.commit()
    (count,) = db.execute("SELECT count(*) FROM documents").fetchone()
    db.close()
    print(f"restored {count} documents into {database_path()}")
    return 0


def load_records(db: sqlite3.Connection, world: Path) -> None:
    for table in sorted((world / "database").glob("*.jsonl")):
        rows = [json.loads(line) for line in table.read_text(encoding="utf-8").splitlines() if line.strip()]
        db.executemany("INSERT INTO records VALUES (?, ?, ?)", [(table.stem, row["id"], json.dumps(row)) for row in rows])


def load_documents(db: sqlite3.Connection, world: Path) -> None:
    """A file without text here (a scan, a damaged file, a kind unknown) stays in the matter and says so; no search finds it."""
    permissions = load_permissions(world)
    for file in sorted(path for folder in DOCUMENT_FOLDERS for path in (world / folder).rglob("*") if path.is_file()):
        path = file.relative_to(world).as_posix()
        try:
            text = extract(file)
        except Exception as error:  # noqa: BLE001 - a parser may raise anything on a damaged file, and the rest must load
            print(f"{path}: no text: {error}", file=sys.stderr)
            text = f"[No text can be taken from this file ({error}). It can be neither searched nor quoted.]"
            db.execute("INSERT INTO documents VALUES (?, ?, ?)", (path, f"{file.name} (no text)", text))
        else:
            db.execute("INSERT INTO documents VALUES (?, ?, ?)", (path, title(file, text), text))
            db.executemany("INSERT INTO passages VALUES (?, ?)", [(path, passage) for passage in passages(text)])
        db.executemany("INSERT INTO readers VALUES (?, ?)", [(path, user) for user in readers(permissions, path)])


def load_permissions(world: Path) -> dict[str, Any]:
    """The file is named `permissions` in a snapshot and `permissions.yaml` in a world's source; both hold JSON.

    A world without one restricts nothing.
    """
    file = next((path for path in (world / "permissions", world / "permissions.yaml") if path.is_file()), None)
    return {"default": [EVERYBODY], "rules": []} if file is None else json.loads(file.read_text(encoding="utf-8"))


def readers(permissions: dict[str, Any], path: str) -> list[str]:
    """The first rule that matches the path decides; else the default."""
    for rule in permissions["rules"]:
        if fnmatch.fnmatchcase(path, rule["match"]):
            return list(rule["readers"])
    return list(permissions["default"])
