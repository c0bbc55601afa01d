"""The ids of a backend's layers that can't be listed there: found in the ledger, and kept here until they are recorded."""

from __future__ import annotations

from datetime import UTC, datetime

from eval_pipeline.store.layers import BASE, LayerRow, LayerRows


class LedgerRefs:
    """A layer is recorded by whoever built it; one whose builder died before that is built again."""

    def __init__(self, rows: LayerRows) -> None:
        self._rows = rows
        self._fresh: dict[str, tuple[str, datetime | None]] = {}

    def get(self, key: str) -> str | None:
        row = self._rows.find(key)
        if row is not None:
            self._fresh.pop(key, None)  # from now on the record tells: any host may strike it off
        ref, expires_at = self._fresh.get(key, (None, None)) if row is None else (row.ref, row.expires_at)
        return ref if expires_at is None or expires_at > datetime.now(UTC) else None

    def expires_at(self, key: str) -> datetime | None:
        return self._fresh.get(key, ("", None))[1]

    def put(self, key: str, ref: str, expires_at: datetime) -> str:
        self._fresh[key] = (ref, expires_at)
        return ref

    def keep(self, key: str, ref: str, built_s: float) -> str:
        row = LayerRow(
            backend=self._rows.backend,
            place=self._rows.place,
            key=key,
            kind=BASE,
            app="",
            base=key,
            commit=None,
            tree="",
            world=None,
            parents=[],
            ref=ref,
            digest=None,
            size_bytes=None,
            built_s=built_s,
        )
        self._rows.add(row)
        return ref

    def remove(self, key: str) -> None:
        self._fresh.pop(key, None)

    def gone(self, ref: str) -> None:
        """Whatever stands for it is built again."""
        self._fresh = {key: held for key, held in self._fresh.items() if held[0] != ref}
        self._rows.remove(row.key for row in self._rows.all() if row.ref == ref)
