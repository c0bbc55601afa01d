"""A World and its Snapshot: what is packed, and the digest that names it."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Literal, Self

from pydantic import model_validator

from eval_pipeline.domain.base import Spec
from eval_pipeline.domain.canonical import digest
from eval_pipeline.domain.ids import Slug

SNAPSHOT_FORMAT = 1


class MadeWith(Spec):
    """The app that dumped the world. commit: None for a working tree. schema_version: None when its manifest states none."""

    app: Slug
    commit: str | None = None
    schema_version: int | None = None


class WorldSpec(Spec):
    """`world.yaml`. The four paths are relative to its folder; None means the world has no such part.

    schema_version: of its records and permissions, as a person wrote it; made_with: as `evals world save` did. Neither is a
    part of the snapshot or of its digest.
    """

    id: Slug
    title: str
    documents: str | None = None
    database: str | None = None
    permissions: str | None = None
    blobs: str | None = None
    schema_version: int | None = None
    made_with: MadeWith | None = None

    @model_validator(mode="after")
    def _one_version(self) -> Self:
        saved = self.made_with.schema_version if self.made_with else None
        if self.schema_version is not None and saved is not None and self.schema_version != saved:
            raise ValueError(f"schema_version is {self.schema_version}, but made_with says {saved}: remove the wrong one")
        return self

    @property
    def version(self) -> int | None:
        """The schema version of its records; None: nobody said."""
        return self.made_with.schema_version if self.schema_version is None and self.made_with else self.schema_version

    def parts(self) -> dict[str, str]:
        """Name of the part (its place in the snapshot) -> its path in the world's folder."""
        named = {"documents": self.documents, "database": self.database, "permissions": self.permissions, "blobs": self.blobs}
        return {part: path for part, path in named.items() if path is not None}


class SnapshotEntry(Spec):
    """One file or directory. `path` is relative to the snapshot's root and uses `/`.

    size and sha256 are 0 and "" for a directory.
    """

    path: str
    type: Literal["file", "dir"]
    executable: bool = False
    size: int = 0
    sha256: str = ""


class SnapshotManifest(Spec):
    """Everything that identifies a snapshot, sorted by the bytes of the path. No mtime, no owner."""

    format: int = SNAPSHOT_FORMAT
    entries: tuple[SnapshotEntry, ...]

    @property
    def digest(self) -> str:
        return digest([self.format, [[e.path, e.type, e.executable, e.size, e.sha256] for e in self.entries]])

    @property
    def size_bytes(self) -> int:
        return sum(entry.size for entry in self.entries)

    @property
    def n_files(self) -> int:
        return sum(entry.type == "file" for entry in self.entries)


def colliding_names(paths: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs of different paths that are one on a file system that folds case or normalises Unicode."""
    seen: dict[str, str] = {}
    pairs: list[tuple[str, str]] = []
    for path in paths:
        folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())
        other = seen.setdefault(folded, path)
        if other != path:
            pairs.append((other, path))
    return pairs
