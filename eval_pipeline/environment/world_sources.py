"""A world by whatever names it: its name, the digest of its snapshot, a folder. As a state, to be compared with another."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from eval_pipeline.domain.world import WorldSpec
from eval_pipeline.errors import NotFound, SpecError
from eval_pipeline.scoring.world_diff import PERMISSION_NAMES
from eval_pipeline.scoring.world_state import State, files_state
from eval_pipeline.specs.library import Library
from eval_pipeline.specs.yaml_file import parse_model
from eval_pipeline.store.artifacts import ArtifactStore
from eval_pipeline.store.records import Records
from eval_pipeline.store.snapshots import restore, scan_world
from eval_pipeline.store.world_files import list_world

_DIGEST = re.compile(r"[0-9a-f]{6,64}")


class WorldSources:
    """records: opened only for a digest. dest_root: where snapshots are restored."""

    def __init__(
        self, library: Library, store: ArtifactStore, records: Callable[[], AbstractContextManager[Records]], dest_root: Path
    ) -> None:
        self._library = library
        self._store = store
        self._records = records
        self._dest_root = dest_root

    def state(self, source: str) -> State:
        """Raises SpecError or NotFound when nothing answers to it, or when it can't be read; StoreError."""
        names = self._library.world_names()
        if source in names:
            world = self._library.world(source)
            return _state(world.folder, world.spec)
        if Path(source).is_dir():
            return self._folder(Path(source))
        if _DIGEST.fullmatch(source):
            return self._snapshot(source)
        hint = f"name one of: {', '.join(names) or 'none is there'}; or a folder, or the digest of a snapshot"
        raise NotFound(f"{source!r} is no world, no folder and no digest", hint=hint)

    def _folder(self, folder: Path) -> State:
        """A world's source folder, or one in world format, such as a dump."""
        written = folder / "world.yaml"
        if written.is_file():
            return _state(folder, parse_model(self._library.file(written), WorldSpec))
        permissions = next((name for name in PERMISSION_NAMES if (folder / name).exists()), None)
        parts = {name: name for name in ("documents", "database", "blobs") if (folder / name).exists()}
        if permissions is not None:
            parts["permissions"] = permissions
        if not parts:
            hint = f"it would have documents, database, blobs or {PERMISSION_NAMES[0]}, or a world.yaml that names them"
            raise SpecError("holds no part of a world", where=str(folder), hint=hint)
        return _state(folder, WorldSpec.model_validate({"id": "folder", "title": "folder", **parts}))

    def _snapshot(self, digest: str) -> State:
        with self._records() as records:
            found = records.ledger.snapshots_like(digest)
        if len(found) != 1:
            named = ", ".join(sorted(snapshot.digest[:12] for snapshot in found[:5]))
            hint = f"write more of it: {named}" if found else "`evals world snapshot` packs a world and prints its digest"
            raise NotFound(f"{len(found) or 'no'} snapshots have a digest that begins with {digest!r}", hint=hint)
        folder = restore(found[0], self._store, self._dest_root)
        places = {entry.path: folder / entry.path for entry in found[0].manifest.entries if entry.type == "file"}
        return files_state(places, found[0].manifest)


def _state(folder: Path, spec: WorldSpec) -> State:
    manifest = scan_world(folder, spec)
    return files_state({file.name: file.path for file in list_world(folder, spec)}, manifest)
