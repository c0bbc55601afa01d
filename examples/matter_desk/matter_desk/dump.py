"""Write the matter's present state in the format of a world. A file that is still the world's is a link to it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from matter_desk import postgres, records
from matter_desk.blobs import Blobs
from matter_desk.permissions import permissions_file
from matter_desk.places import blob_dir

FOLDERS = ("documents", "blobs", "database")


def main(argv: list[str]) -> int:
    if len(argv) != 1:
        print("usage: dump DIRECTORY", file=sys.stderr)
        return 2
    target = Path(argv[0])
    if target.exists():
        shutil.rmtree(target)  # of an earlier try
    target.mkdir(parents=True)
    connection = postgres.connect()
    connection.set_session(isolation_level="REPEATABLE READ", readonly=True)
    with postgres.transaction(connection) as cursor:
        dump(cursor, target)
    connection.close()
    return 0


def dump(cursor: Any, target: Path) -> None:
    cursor.execute("SELECT root FROM world")
    world = Path(cursor.fetchone()[0])
    for folder in folders(world):
        (target / folder).mkdir(parents=True, exist_ok=True)
    if (file := permissions_file(world)) is not None:
        (target / file.name).symlink_to(file)
    dump_documents(cursor, world, target)
    dump_records(cursor, world, target)


def folders(world: Path) -> Iterator[str]:
    """Those of the world, empty ones too."""
    for top in FOLDERS:
        for folder, _, _ in os.walk(world / top):
            yield os.path.relpath(folder, world)


def dump_documents(cursor: Any, world: Path, target: Path) -> None:
    blobs = Blobs(blob_dir())
    cursor.execute("SELECT path, blob, restored FROM documents")
    for path, blob, restored in cursor:
        place = target / path
        if blob == restored:
            place.symlink_to(world / path)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(blobs.path(blob), place)


def dump_records(cursor: Any, world: Path, target: Path) -> None:
    cursor.execute("SELECT name FROM changed")
    changed = {name for (name,) in cursor}
    written = {table: records.select(cursor, table) for table in records.TABLES if table in changed}
    if "records" in changed:
        written |= {table: [row for _, row in found] for table, found in groupby(records.others(cursor), lambda pair: pair[0])}
    for table, rows in written.items():
        (target / "database").mkdir(exist_ok=True)
        lines = [json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n" for row in rows]
        (target / "database" / f"{table}.jsonl").write_text("".join(lines), encoding="utf-8")
    for file in (world / "database").glob("*.jsonl"):
        known = file.stem in records.TABLES
        if file.stem not in written and (not known or file.stem not in changed):
            (target / "database" / file.name).symlink_to(file)
