"""Load a world: an empty database, its migrations, the records, the documents, who may read them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matter_desk import cluster, postgres, records
from matter_desk.blobs import Blobs
from matter_desk.library import shelve
from matter_desk.permissions import load_permissions
from matter_desk.places import blob_dir, data_dir
from matter_desk.text import content

DOCUMENT_FOLDERS = ("documents", "blobs")


def main(argv: list[str]) -> int:
    if len(argv) != 1:
        print("usage: restore WORLD_DIRECTORY", file=sys.stderr)
        return 2
    world = Path(argv[0]).absolute()
    cluster.make_cluster()
    with cluster.running():
        cluster.start_over()
        cluster.migrate()
        connection = postgres.connect()
        with postgres.transaction(connection) as cursor:
            count = load(cursor, world)
        connection.autocommit = True
        connection.cursor().execute("VACUUM ANALYZE")
        connection.close()
    print(f"restored {count} documents into {data_dir()}")
    return 0


def load(cursor: Any, world: Path) -> int:
    """How many documents the world has."""
    permissions = load_permissions(world)
    cursor.execute("INSERT INTO world VALUES (%s, %s)", (str(world), json.dumps(permissions)))
    for table in sorted((world / "database").glob("*.jsonl")):
        records.insert(cursor, table.stem, rows(table))
    cursor.execute("TRUNCATE changed")
    blobs = Blobs(blob_dir())
    blobs.clear()
    files = sorted(path for folder in DOCUMENT_FOLDERS for path in (world / folder).rglob("*") if path.is_file())
    for file in files:
        path, digest, found = file.relative_to(world).as_posix(), blobs.link(file), content(file.name, file.read_bytes())
        if not found.searchable:
            print(f"{path}: {found.text}", file=sys.stderr)
        shelve(cursor, path, digest, found, permissions, restored=True)
    return len(files)


def rows(table: Path) -> Iterator[dict[str, Any]]:
    """Raises ValueError, with the line, for what is no record."""
    for number, line in enumerate(table.read_text(encoding="utf-8").split("\n"), start=1):
        if line.strip():
            row = json.loads(line)
            if not isinstance(row, dict) or "id" not in row:
                raise ValueError(f"{table}:{number}: a record is a JSON object with an `id`; got {line[:80]}")
            yield row
