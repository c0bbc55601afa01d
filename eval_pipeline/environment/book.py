"""The ledger's record of a backend's layers, held against what is really there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from eval_pipeline.sandbox.base import Backend
from eval_pipeline.store.layers import LayerRow, LayerRows


class LayerBook:
    def __init__(self, backend: Backend, rows: LayerRows) -> None:
        self._backend = backend
        self.rows = rows

    async def known(self, key: str) -> LayerRow | None:
        """The recorded layer, while it and all below it are there."""
        row = await asyncio.to_thread(self.rows.find, key)
        if row is None:
            return None
        chain = [*row.parents, key]
        if not await asyncio.to_thread(self.rows.touch, chain):  # first: what is in use is not collected
            return None
        recorded = await asyncio.to_thread(self.rows.of_keys, chain)
        there = len(recorded) == len(chain) and await self.there({part.key: part.ref for part in recorded.values()})
        return row if there else None

    async def there(self, refs: Mapping[str, str]) -> bool:
        """Whether each key still stands for its ref."""
        return await asyncio.to_thread(lambda: all(self._backend.layer(key) == ref for key, ref in refs.items()))

    async def chain(self, row: LayerRow) -> list[LayerRow]:
        """Lowest first, itself last."""
        below = await asyncio.to_thread(self.rows.of_keys, row.parents)
        return [*(below[parent] for parent in row.parents), row]

    def images(self, app: str, base: str) -> list[LayerRow]:
        """Those that are there, newest first."""
        return [row for row in self.rows.images(app, base) if self._backend.layer(row.key) is not None]

    async def record(
        self,
        kind: str,
        key: str,
        ref: str,
        *,
        app: str,
        base: str,
        commit: str | None,
        tree: str,
        built_s: float | None,
        parents: list[str] | None = None,
        world: str | None = None,
        state: str | None = None,
    ) -> LayerRow:
        content = await asyncio.to_thread(self._backend.layer_content, key)
        row = LayerRow(
            backend=self.rows.backend,
            place=self.rows.place,
            key=key,
            kind=kind,
            app=app,
            base=base,
            commit=commit,
            tree=tree,
            world=world,
            parents=parents or [],
            ref=ref,
            digest=None if content is None else content.digest,
            size_bytes=None if content is None else content.size_bytes,
            built_s=built_s,
            state=state,
            expires_at=self._backend.layer_expires_at(key),
        )
        await asyncio.to_thread(self.rows.add, row)
        return row
