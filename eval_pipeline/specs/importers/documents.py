"""Which file on disk a name in a table means."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from eval_pipeline.errors import SpecError


class DocumentIndex:
    """The names in a folder, as they are on disk."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = sorted(names)

    @classmethod
    def of(cls, folder: Path) -> DocumentIndex:
        try:
            return cls(path.name for path in folder.iterdir())
        except OSError as error:
            hint = "name the folder that holds the documents"
            raise SpecError(f"the documents can't be listed: {error.strerror}", where=str(folder), hint=hint) from None

    def find(self, name: str, where: str) -> str:
        """The name on disk: equal after trimming and Unicode normalisation, else equal but for case; one only."""
        for key in (_exact, _folded):
            found = [candidate for candidate in self._names if key(candidate) == key(name)]
            if len(found) == 1:
                return found[0]
            if found:
                listed = ", ".join(map(repr, found))
                hint = "keep one of them, or give them different names"
                raise SpecError(f"the document {name!r} is ambiguous: the folder holds {listed}", where=where, hint=hint)
        close = difflib.get_close_matches(name, self._names, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"the folder holds {len(self._names)} documents"
        raise SpecError(f"the document {name!r} is missing", where=where, hint=hint)


def _exact(name: str) -> str:
    return unicodedata.normalize("NFC", name.strip())


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", _exact(name).casefold())


def check_readable(path: Path, where: str) -> None:
    """Raise SpecError when `path` is no file or its content can't be had. A link might lead to any file of this machine."""
    check_no_link(path, where)
    if not path.is_file():
        raise SpecError(f"the document {path.name!r} is not a file", where=where)
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise SpecError(f"the document {path.name!r} can't be read: {error.strerror}", where=where) from None


def check_no_link(path: Path, where: str) -> None:
    if path.is_symlink():
        raise SpecError(f"{path.name!r} is a link, and a world holds files", where=where, hint="put a copy in its place")
