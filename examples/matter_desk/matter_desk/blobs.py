"""Blob storage: the bytes of every version of every document, named after their SHA-256.

A file of the world is not copied: its blob is a link to it, because a world may be large and never changes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path


class Blobs:
    def __init__(self, root: Path) -> None:
        self._root = root

    def clear(self) -> None:
        shutil.rmtree(self._root, ignore_errors=True)

    def put(self, data: bytes) -> str:
        """Its digest."""
        digest = hashlib.sha256(data).hexdigest()
        place = self._place(digest)
        if not place.exists():
            with tempfile.NamedTemporaryFile(dir=place.parent, delete=False) as fresh:
                fresh.write(data)
            os.replace(fresh.name, place)  # noqa: PTH105
        return digest

    def link(self, file: Path) -> str:
        """The digest of a file that stays as and where it is."""
        with file.open("rb") as source:
            digest = hashlib.file_digest(source, "sha256").hexdigest()
        place = self._place(digest)
        if not place.is_symlink():
            place.symlink_to(file)
        return digest

    def path(self, digest: str) -> Path:
        return self._root / digest[:2] / digest

    def read(self, digest: str) -> bytes:
        return self.path(digest).read_bytes()

    def _place(self, digest: str) -> Path:
        place = self.path(digest)
        place.parent.mkdir(parents=True, exist_ok=True)
        return place
