"""Worlds on a volume: uploaded once under the digest of their content, and mounted read-only from there."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from eval_pipeline.errors import StoreError

if TYPE_CHECKING:
    from eval_pipeline.sandbox.modal_client import Shelf

FOLDER = "worlds"
_EMPTY = ".evals-empty"


@dataclass(frozen=True)
class Inventory:
    """digest: over paths, execute bits and content. files: relative path -> size."""

    digest: str
    files: dict[str, int]


def take_inventory(world: Path) -> Inventory:
    total = hashlib.sha256(b"world 1\0")
    files: dict[str, int] = {}
    for path in sorted(path for path in world.rglob("*") if path.is_file() and not path.is_symlink()):
        name, status = str(path.relative_to(world)), path.stat()
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{name}\0{bool(status.st_mode & stat.S_IXUSR)}\0{content}\0".encode())
        files[name] = status.st_size
    return Inventory(total.hexdigest()[:32], files)


class Worlds:
    """The record of a world is written last: what has none is incomplete, and its upload goes on where it was."""

    def __init__(self) -> None:
        self._known: dict[Path, asyncio.Task[str]] = {}

    async def path_of(self, world: Path, shelf: Shelf) -> str:
        """Where on the volume `world` lies, uploaded when it isn't there. Raises StoreError when it arrived otherwise than it left."""
        task = self._known.get(world)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._known[world] = asyncio.ensure_future(self._upload(world, shelf))
        return await asyncio.shield(task)

    async def _upload(self, world: Path, shelf: Shelf) -> str:
        inventory = await asyncio.to_thread(take_inventory, world)
        target, record = f"{FOLDER}/{inventory.digest}", f"{FOLDER}/{inventory.digest}.json"
        if await shelf.read(record) is not None:
            return target
        if inventory.files:
            await shelf.put({f"{target}/{name}": world / name for name in inventory.files})
        else:
            await shelf.put({f"{target}/{_EMPTY}": io.BytesIO(b"")})  # a volume knows no folder without a file
        arrived = await shelf.names(target)
        if inventory.files and arrived != inventory.files:
            wrong = sorted(set(arrived.items()) ^ set(inventory.files.items()))[:3]
            raise StoreError(f"the world {inventory.digest} is not on Modal's volume as it left: {wrong}", hint="run it again")
        await shelf.put({record: io.BytesIO(json.dumps({"files": inventory.files}).encode())})
        return target
