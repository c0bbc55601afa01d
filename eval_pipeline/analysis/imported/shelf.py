"""Where imported tables are kept: `imports/NAME.json` in the state directory, whole files, never changed in place."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Literal

from eval_pipeline.analysis.imported.files import MAX_JSON, MIB, parsed, whole
from eval_pipeline.analysis.imported.table import ImportedTable
from eval_pipeline.domain.ids import check_slug
from eval_pipeline.errors import NotFound, SpecError
from eval_pipeline.store.artifacts import write_atomically

Kept = Literal["new", "unchanged", "replaced"]


class Shelf:
    """Two that write the same name at once: one of them is kept, whole."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / "imports"

    def put(self, table: ImportedTable, *, replace: bool = False) -> Kept:
        """Raises SpecError when another table has its name, unless it may be replaced, and for one that is too large."""
        if len(table.stored) > MAX_JSON:
            raise SpecError(f"{table.name} would be larger than {MAX_JSON // MIB} MiB", hint="import fewer files under one name")
        there = self.get(table.name)
        if there is not None and there.digest == table.digest:
            return "unchanged"
        if there is not None and not replace:
            said = f"{table.name} is the name of another import, of {', '.join(sources_of(there)[:3])}"
            raise SpecError(said, hint="give it another name (--as NAME), or put this in its place (--replace)")
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(io.BytesIO(table.stored), self._path(table.name), self._folder)
        return "new" if there is None else "replaced"

    def get(self, name: str) -> ImportedTable | None:
        """None: nothing has that name."""
        try:
            path = self._path(check_slug(name))
        except ValueError:
            return None
        return parsed(whole(path), ImportedTable, str(path)) if path.is_file() else None

    def named(self, name: str) -> ImportedTable:
        """Raises NotFound."""
        found = self.get(name)
        if found is None:
            known = ", ".join(table.name for table in self.all()[:10])
            raise NotFound(f"there is no import {name!r}", hint=f"known: {known or 'none; see evals import --help'}")
        return found

    def all(self) -> list[ImportedTable]:
        """By name."""
        paths = sorted(self._folder.glob("*.json")) if self._folder.is_dir() else []
        return [parsed(whole(path), ImportedTable, str(path)) for path in paths]

    def remove(self, name: str) -> None:
        """Raises NotFound."""
        self._path(self.named(name).name).unlink()

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"


def sources_of(table: ImportedTable) -> list[str]:
    return sorted({source.file for arm in table.arms for source in arm.sources})
