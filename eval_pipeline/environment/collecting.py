"""Layers that nobody needs any more, found and removed. Cells and builds may go on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from eval_pipeline.environment.locks import BuildLocks
from eval_pipeline.sandbox.base import Backend
from eval_pipeline.store.layers import LayerRow, LayerRows

LEFTOVER = "leftover"


@dataclass(frozen=True, kw_only=True)
class Removed:
    """kind: as in the ledger, or `leftover`: content that no record names. size_bytes: None where it is not known."""

    key: str
    kind: str
    app: str | None
    commit: str | None
    size_bytes: int | None


def with_chains(keys: Iterable[str], rows: Iterable[LayerRow]) -> set[str]:
    """The keys, and all that those of them that are recorded stand on."""
    by_key = {row.key: row for row in rows}
    wanted = set(keys)
    return wanted | {parent for key in wanted if key in by_key for parent in by_key[key].parents}


class Collector:
    """spare: keys that must stay, asked again before each removal."""

    def __init__(self, backend: Backend, rows: LayerRows, locks: BuildLocks, spare: Callable[[], Awaitable[set[str]]]) -> None:
        self._backend = backend
        self._rows = rows
        self._locks = locks
        self._spare = spare

    async def collect(self, unused_s: float, *, dry_run: bool = False) -> list[Removed]:
        """What was removed, or would be: layers unused for so long, and content as old that a crash left."""
        spared = await self._spare()
        everything = await asyncio.to_thread(self._rows.all)
        old = [row for row in await asyncio.to_thread(self._rows.unused, unused_s) if row.key not in spared]
        staying = {row.key for row in everything} - {row.key for row in old}
        below = with_chains(staying, everything)
        recorded = {row.key for row in everything}
        lost = [key for key, age_s in self._backend.contents().items() if age_s > unused_s and key not in recorded | spared]
        removed = [_of(row) for row in old if row.key not in below and (dry_run or await self._remove(row, unused_s))]
        removed += [_leftover(key) for key in lost if dry_run or await self._remove_leftover(key)]
        return removed

    async def _remove(self, row: LayerRow, unused_s: float) -> bool:
        """The record first: whoever looks for the layer then builds it anew, once this lock is free."""
        async with self._locks.hold_if_free(row.key) as free:
            if not free or row.key in await self._spare() or not await asyncio.to_thread(self._rows.drop, row.key, unused_s):
                return False
            await self._backend.remove_layer(row.key, row.ref)
            return True

    async def _remove_leftover(self, key: str) -> bool:
        async with self._locks.hold_if_free(key) as free:
            if not free or key in await self._spare() or await asyncio.to_thread(self._rows.find, key) is not None:
                return False
            await self._backend.remove_layer(key)
            return True


def _of(row: LayerRow) -> Removed:
    return Removed(key=row.key, kind=row.kind, app=row.app, commit=row.commit, size_bytes=row.size_bytes)


def _leftover(key: str) -> Removed:
    return Removed(key=key, kind=LEFTOVER, app=None, commit=None, size_bytes=None)
