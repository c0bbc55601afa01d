"""The ids of a backend's layers that can't be listed there: found in the ledger, and kept here until they are recorded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from eval_pipeline.store.layers import LayerRow, LayerRows


class LedgerRefs:
    """A layer is recorded by whoever built it; one whose builder died before that is built again."""

    def __init__(self, rows: LayerRows, ttl: timedelta) -> None:
        self._rows = rows
        self._ttl = ttl
        self._fresh: dict[str, tuple[str, datetime]] = {}

    def get(self, key: str) -> str | None:
        row = self._rows.find(key)
        if row is not None:
            return row.ref if self._expires_at(row) > datetime.now(UTC) else None
        ref, expires_at = self._fresh.get(key, ("", datetime.min.replace(tzinfo=UTC)))
        return ref if expires_at > datetime.now(UTC) else None

    def _expires_at(self, row: LayerRow) -> datetime:
        return row.expires_at or (row.created_at or datetime.now(UTC)) + self._ttl

    def put(self, key: str, ref: str, expires_at: datetime) -> str:
        self._fresh[key] = (ref, expires_at)
        return ref

    def remove(self, key: str) -> None:
        self._fresh.pop(key, None)

    def gone(self, ref: str) -> None:
        """Whatever stands for it is built again."""
        self._fresh = {key: held for key, held in self._fresh.items() if held[0] != ref}
        self._rows.remove(row.key for row in self._rows.all() if row.ref == ref)
