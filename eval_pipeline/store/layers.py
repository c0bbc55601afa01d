"""The layers that were built: what each is made of, where its content lies, and when a cell last stood on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, insert

from eval_pipeline.store.database import Database
from eval_pipeline.store.schema import layers

BASE, IMAGE, RUNTIME, PREPARED = "base", "image", "runtime", "prepared"


@dataclass(frozen=True, kw_only=True)
class LayerRow:
    """place: where `ref` means something. parents: keys, lowest first. base: what the image stands on.

    commit: None for a working tree. world: the snapshot's digest of a prepared layer, else None.
    state: artifact of the app's own dump of a prepared layer, taken before any agent; None when the app dumps nothing.
    digest, size_bytes: of the content, where the backend can tell. built_s: how long its commands and its sealing took; None when its record was lost.
    expires_at: when the platform ends it by itself; None: it does not. created_at, used_at: None before it is written.
    kind BASE: what images of any app stand on, where that has an id that can't be found otherwise; app and tree are empty then.
    """

    backend: str
    place: str
    key: str
    kind: str
    app: str
    base: str
    commit: str | None
    tree: str
    world: str | None
    parents: list[str]
    ref: str
    digest: str | None
    size_bytes: int | None
    built_s: float | None
    state: str | None = None
    expires_at: datetime | None = None
    created_at: datetime | None = None
    used_at: datetime | None = None


class LayerRows:
    """The layers of one backend at one place."""

    def __init__(self, database: Database, backend: str, place: str) -> None:
        self._database = database
        self.backend = backend
        self.place = place
        self._mine = sa.and_(layers.c.backend == backend, layers.c.place == place)

    def _run(self, work: Callable[[sa.Connection], Any]) -> Any:
        return self._database.run(work)

    def add(self, row: LayerRow) -> None:
        """Again for a key: what stood there is replaced, because the content was built anew."""
        values = {name: value for name, value in asdict(row).items() if name not in ("created_at", "used_at")}
        times = {"created_at": sa.func.now(), "used_at": sa.func.now()}
        change = insert(layers).values(values).on_conflict_do_update(constraint=layers.primary_key, set_=values | times)
        self._run(lambda c: c.execute(change))

    def find(self, key: str) -> LayerRow | None:
        return self.of_keys([key]).get(key)

    def of_keys(self, keys: Iterable[str]) -> dict[str, LayerRow]:
        return {row.key: row for row in self._select(layers.c.key.in_(list(keys)))}

    def images(self, app: str, base: str | None = None) -> list[LayerRow]:
        """Newest first; base None: on any base."""
        same = [layers.c.kind == IMAGE, layers.c.app == app, *([] if base is None else [layers.c.base == base])]
        return self._select(*same)

    def all(self) -> list[LayerRow]:
        """Newest first."""
        return self._select()

    def used(self, keys: Iterable[str]) -> None:
        change = sa.update(layers).where(self._mine, layers.c.key.in_(list(keys))).values(used_at=sa.func.now())
        self._run(lambda c: c.execute(change))

    def touch(self, keys: Iterable[str]) -> bool:
        """As used now, all of them; False when one is not recorded any more. From then on `drop` leaves them."""
        wanted = set(keys)
        change = sa.update(layers).where(self._mine, layers.c.key.in_(wanted)).values(used_at=sa.func.now())
        return self._run(lambda c: c.execute(change).rowcount) == len(wanted)

    def unused(self, seconds: float) -> list[LayerRow]:
        """Those that nobody used for so long, the highest first: none of them stands on a later one."""
        rows = self._select(self._older(seconds))
        return sorted(rows, key=lambda row: len(row.parents), reverse=True)

    def drop(self, key: str, seconds: float) -> bool:
        """Take it off the record, unless it was used meanwhile or another one stands on it. Whether it is gone."""
        above = sa.alias(layers)
        stands = sa.exists().where(
            above.c.backend == self.backend, above.c.place == self.place, above.c.parents.contains(sa.cast([key], ARRAY(sa.Text)))
        )
        gone = sa.delete(layers).where(self._mine, layers.c.key == key, self._older(seconds), ~stands)
        return self._run(lambda c: c.execute(gone).rowcount) == 1

    def _older(self, seconds: float) -> sa.ColumnElement[bool]:
        return layers.c.used_at < sa.func.now() - sa.func.make_interval(0, 0, 0, 0, 0, 0, seconds)

    def remove(self, keys: Iterable[str]) -> None:
        self._run(lambda c: c.execute(sa.delete(layers).where(self._mine, layers.c.key.in_(list(keys)))))

    def _select(self, *conditions: sa.ColumnElement[bool]) -> list[LayerRow]:
        query = sa.select(layers).where(self._mine, *conditions).order_by(layers.c.created_at.desc())
        return [LayerRow(**row) for row in self._run(lambda c: c.execute(query).mappings().all())]
