"""Where imported tables are kept: `imports/NAME.json` in the state directory, whole files, never changed in place."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Literal

from eval_pipeline.analysis.imported.files import MAX_JSON, MIB, parsed, whole
from eval_pipeline.analysis.imported.table import ImportedTable
from eval_pipeline.domain.ids import check_slug
from eval_pipeline.errors import NotFound, SpecError
from eval_pipeline.store.durable_files import write_atomically

Kept = Literal["new", "unchanged", "replaced"]


class Shelf:
    """Two that write the same name at once: one of them is kept, whole."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / "imports"

    def put(self, table: ImportedTable, *, replace: bool = False) -> Kept:
        """Raises SpecError when another table has its name, unless it may be replaced, and for one that is too large."""
        if len(table.stored) > MAX_JSON:
            raise SpecError(f"{table.name} would be larger than {MAX_JSON // MIB} MiB", hint="import fewer files under one name")
        path = self._path(table.name)
        there = path.is_file()
        if there and path.stat().st_size == len(table.stored) and path.read_bytes() == table.stored:
            return "unchanged"
        if not replace and (other := self.get(table.name)) is not None:
            if other.digest == table.digest:
                return "unchanged"
            said = f"{table.name} is the name of another import, of {', '.join(sources_of(other)[:3])}"
            raise SpecError(said, hint="give it another name (--as NAME), or put this in its place (--replace)")
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(io.BytesIO(table.stored), path, self._folder)
        return "replaced" if there else "new"

    def get(self, name: str) -> ImportedTable | None:
        """None: nothing has that name. Raises SpecError for one that is damaged."""
        try:
            path = self._path(check_slug(name))
        except ValueError:
            return None
        hint = f"evals import remove {name}, or import it again with --replace"
        return parsed(whole(path), ImportedTable, str(path), hint) if path.is_file() else None

    def named(self, name: str) -> ImportedTable:
        """Raises NotFound, and SpecError for one that is damaged."""
        found = self.get(name)
        if found is None:
            raise self._not_found(name)
        return found

    def names(self) -> list[str]:
        """Of what is there, whole or damaged."""
        return sorted(path.stem for path in self._folder.glob("*.json")) if self._folder.is_dir() else []

    def remove(self, name: str, *, dry_run: bool = False) -> None:
        """Also one that is damaged. Raises NotFound."""
        if name not in self.names():
            raise self._not_found(name)
        if not dry_run:
            self._path(name).unlink()

    def _not_found(self, name: str) -> NotFound:
        known = ", ".join(self.names()[:10])
        return NotFound(f"there is no import {name!r}", hint=f"known: {known or 'none; see evals import --help'}")

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"


def sources_of(table: ImportedTable) -> list[str]:
    return sorted({source.file for arm in table.arms for source in arm.sources})
