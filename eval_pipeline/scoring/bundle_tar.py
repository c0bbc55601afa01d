"""The members of a stored output bundle, one after the other. No link is followed, whatever a member says it is."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO

MEMBER_MAX_BYTES = 2**40


def bundle_members(bundle: Path | BinaryIO) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
    """Each with its content if it is a regular file, to be read before the next. In memory stands one member, however many there are.

    bundle: its path, or a stream that need not seek. Raises tarfile.TarError, OSError or TypeError when the bundle itself is broken.
    """
    name, stream = (bundle, None) if isinstance(bundle, Path) else (None, bundle)
    with tarfile.open(name, "r|gz", stream, encoding="utf-8", errors="surrogateescape") as archive:
        for member in archive:
            # A tar file remembers every member, and there may be very many
            archive.members.clear()  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]
            if not 0 <= member.size <= MEMBER_MAX_BYTES:
                raise tarfile.ReadError(f"{member.name!r} claims {member.size} bytes")  # tarfile would skip them, for ever
            yield member, archive.extractfile(member) if member.isreg() else None


def work_bytes(bundle: Path | BinaryIO) -> int:
    """How much an agent handed in: its result with the answer, and its files. Raises as `bundle_members`."""
    members = ((member.name.removeprefix("./"), member.size) for member, _ in bundle_members(bundle))
    return sum(size for name, size in members if name == "out/result.json" or name.startswith("out/files/"))
