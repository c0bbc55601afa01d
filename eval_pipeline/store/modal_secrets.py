"""Which Secrets this installation has written to Modal, and of which versions. Never a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from eval_pipeline.store.database import Database
from eval_pipeline.store.schema import modal_secrets as table
from eval_pipeline.store.secret_versions import Phase


@dataclass(frozen=True, kw_only=True)
class ModalSecretRow:
    """version: of the whole; versions: by name, as a sync saw them. written_at: None before it is recorded."""

    name: str
    app: str
    phase: Phase
    version: str
    versions: dict[str, str]
    written_at: datetime | None = None


class ModalSecretRows:
    """Of one Modal environment and app."""

    def __init__(self, database: Database, place: str) -> None:
        self._database = database
        self._place = place

    def put(self, row: ModalSecretRow) -> None:
        """Seen there now, whoever wrote it."""
        values = {key: value for key, value in asdict(row).items() if key != "written_at"}
        now = sa.func.clock_timestamp()
        change = insert(table).values(place=self._place, **values)
        written = sa.case((table.c.version == row.version, table.c.written_at), else_=now)
        change = change.on_conflict_do_update(
            index_elements=["place", "name"], set_={**values, "written_at": written, "seen_at": now}
        )
        self._database.run(lambda c: c.execute(change))

    def remove(self, name: str) -> None:
        gone = sa.delete(table).where(table.c.place == self._place, table.c.name == name)
        self._database.run(lambda c: c.execute(gone))

    def all(self) -> list[ModalSecretRow]:
        columns = [table.c[name] for name in ModalSecretRow.__dataclass_fields__]
        query = sa.select(*columns).where(table.c.place == self._place).order_by(table.c.name)
        return [ModalSecretRow(**row) for row in self._database.run(lambda c: c.execute(query).mappings().all())]

    def holding(self, phase: Phase, versions: Mapping[str, str]) -> ModalSecretRow | None:
        """The one that holds exactly these versions of these names."""
        return next((row for row in self.all() if row.phase == phase and row.versions == dict(versions)), None)
