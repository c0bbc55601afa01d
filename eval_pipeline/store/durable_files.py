"""Files that are whole or not there, and stay when the machine fails."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import BinaryIO

COPY_BYTES = 1 << 16
"""More is given back to the kernel after each use and asked of it anew: with 1 MiB, worlds were restored with twice the CPU."""
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)


def write_atomically(source: BinaryIO, target: Path, folder: Path) -> None:
    """Through a temporary file in `folder`, on the same file system; durable on return. The file is read-only."""
    handle, name = tempfile.mkstemp(prefix=".unfinished-", dir=folder)
    try:
        with os.fdopen(handle, "wb") as sink:
            shutil.copyfileobj(source, sink, COPY_BYTES)
            sink.flush()
            os.fchmod(handle, 0o444)
            os.fsync(handle)
        Path(name).rename(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_directory(target.parent)


def link_atomically(path: Path, target: Path, folder: Path) -> bool:
    """As `write_atomically`, without a copy. False where there can be no link: on another file system, or on one that has none."""
    name = folder / f".unfinished-{uuid.uuid4().hex}"
    try:
        os.link(path, name)
    except OSError as error:
        if error.errno in _NO_LINK:
            return False
        raise
    try:
        with name.open("rb") as linked:
            os.fchmod(linked.fileno(), 0o444)
            os.utime(linked.fileno())
            os.fsync(linked.fileno())
        name.rename(target)
    finally:
        name.unlink(missing_ok=True)
    sync_directory(target.parent)
    return True


def sync_directory(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
