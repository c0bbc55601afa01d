"""Worlds on a volume: uploaded once under the digest of their content, and mounted read-only from there."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from eval_pipeline.errors import StoreError

if TYPE_CHECKING:
    from eval_pipeline.sandbox.modal_client import Shelf

FOLDER = "worlds"
_EMPTY = ".evals-empty"
_PART = 200
_READ_AT_ONCE = 16


@dataclass(frozen=True)
class Held:
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Inventory:
    """digest: over paths, execute bits and content. files: by relative path."""

    digest: str
    files: dict[str, Held]

    @property
    def sizes(self) -> dict[str, int]:
        return {name: held.size_bytes for name, held in self.files.items()}

    @property
    def record(self) -> bytes:
        """What lies beside a world that arrived whole."""
        return json.dumps({"files": {name: [held.size_bytes, held.sha256] for name, held in self.files.items()}}).encode()


def take_inventory(world: Path) -> Inventory:
    total = hashlib.sha256(b"world 1\0")
    files: dict[str, Held] = {}
    for path in sorted(path for path in world.rglob("*") if path.is_file() and not path.is_symlink()):
        name, status = str(path.relative_to(world)), path.stat()
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{name}\0{bool(status.st_mode & stat.S_IXUSR)}\0{content}\0".encode())
        files[name] = Held(status.st_size, content)
    return Inventory(total.hexdigest()[:32], files)


class Worlds:
    """The record of a world is written last: what has none is incomplete, and its upload goes on where it was."""

    def __init__(self) -> None:
        self._known: dict[Path, asyncio.Task[str]] = {}

    async def path_of(self, world: Path, shelf: Shelf) -> str:
        """Where on the volume `world` lies, uploaded when it isn't there. Raises StoreError when what lies there is not what left."""
        task = self._known.get(world)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._known[world] = asyncio.ensure_future(self._there(world, shelf))
        return await asyncio.shield(task)

    async def _there(self, world: Path, shelf: Shelf) -> str:
        inventory = await asyncio.to_thread(take_inventory, world)
        target, record = f"{FOLDER}/{inventory.digest}", f"{FOLDER}/{inventory.digest}.json"
        known = await shelf.read(record)
        if known is None:
            await self._upload(world, inventory, target, shelf)
            await shelf.put({record: io.BytesIO(inventory.record)})
        elif known != inventory.record or (inventory.files and await shelf.names(target) != inventory.sizes):
            raise StoreError(
                f"somebody has changed {target} on Modal's volume, and a world there never changes",
                hint=f"end what stands on it and remove {target} and {record} (`modal volume rm`): it is uploaded again",
            )
        return target

    async def _upload(self, world: Path, inventory: Inventory, target: str, shelf: Shelf) -> None:
        if not inventory.files:
            await shelf.put({f"{target}/{_EMPTY}": io.BytesIO(b"")})  # a volume knows no folder without a file
            return
        there = await shelf.names(target)
        await self._put(world, [name for name, size in inventory.sizes.items() if there.get(name) != size], target, shelf)
        wrong = await _differing(inventory, list(inventory.files), target, shelf)
        if wrong:  # of the right size, and from an upload that went wrong
            await self._put(world, wrong, target, shelf)
            wrong = await _differing(inventory, wrong, target, shelf)
        if wrong := wrong or sorted((await shelf.names(target)).keys() ^ inventory.files.keys()):
            raise StoreError(
                f"the world {inventory.digest} is not on Modal's volume as it left: {', '.join(wrong[:3])}", hint="run it again"
            )

    async def _put(self, world: Path, names: Sequence[str], target: str, shelf: Shelf) -> None:
        """In parts: what an interrupted upload has brought there is not sent again."""
        for start in range(0, len(names), _PART):
            await shelf.put({f"{target}/{name}": world / name for name in names[start : start + _PART]})


async def _differing(inventory: Inventory, names: Sequence[str], target: str, shelf: Shelf) -> list[str]:
    """Those whose content, read back, is another or is not there."""
    turns = asyncio.Semaphore(_READ_AT_ONCE)

    async def differs(name: str) -> bool:
        async with turns:
            return await shelf.sha256(f"{target}/{name}") != inventory.files[name].sha256

    found = await asyncio.gather(*map(differs, names))
    return [name for name, is_other in zip(names, found, strict=True) if is_other]
