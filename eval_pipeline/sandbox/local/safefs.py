"""File access below a directory whose content an agent controls: no link is followed, no FIFO waited for."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_REGULAR = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_dir(root: Path, parts: Sequence[str], *, make_as: tuple[int, int] | None = None) -> int:
    """A descriptor of root/parts. With `make_as` (uid, gid) missing directories are made. Raises OSError."""
    fd = os.open(root, _DIRECTORY)
    try:
        for part in parts:
            if make_as is not None:
                _make_dir(fd, part, make_as)
            deeper = os.open(part, _DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = deeper
    except OSError:
        os.close(fd)
        raise
    return fd


def _make_dir(dir_fd: int, name: str, owner: tuple[int, int]) -> None:
    try:
        os.mkdir(name, 0o755, dir_fd=dir_fd)
    except FileExistsError:
        return
    os.chown(name, *owner, dir_fd=dir_fd, follow_symlinks=False)


def open_regular(dir_fd: int, name: str) -> int | None:
    """A descriptor of a regular file in the directory, or None when it is missing or anything else."""
    try:
        fd = os.open(name, _REGULAR, dir_fd=dir_fd)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None


def open_beneath(root: Path, parts: Sequence[str]) -> int | None:
    """A descriptor of the regular file root/parts, or None when there is none or a link stands in the way."""
    try:
        dir_fd = open_dir(root, parts[:-1])
    except OSError:
        return None
    try:
        return open_regular(dir_fd, parts[-1])
    finally:
        os.close(dir_fd)


def read_at(fd: int, offset: int, max_bytes: int) -> bytes:
    """Up to `max_bytes` from `offset`; short only at the end of the file."""
    chunks: list[bytes] = []
    while max_bytes > 0 and (chunk := os.pread(fd, min(max_bytes, 1 << 20), offset)):
        chunks.append(chunk)
        offset += len(chunk)
        max_bytes -= len(chunk)
    return b"".join(chunks)


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def write_beneath(root: Path, parts: Sequence[str], data: bytes, owner: tuple[int, int]) -> None:
    """Replace root/parts as a whole. Raises OSError."""
    dir_fd = open_dir(root, parts[:-1], make_as=owner)
    partial = f".{os.getpid()}.{os.urandom(4).hex()}.partial"
    try:
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=dir_fd)
        try:
            os.fchown(fd, *owner)
            write_all(fd, data)
        finally:
            os.close(fd)
        os.rename(partial, parts[-1], src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    finally:
        os.close(dir_fd)


def remove_tree(path: Path) -> None:
    """Remove a tree of any depth and mode; nothing happens when it is gone. Raises OSError when something stays."""
    try:
        shutil.rmtree(path)
        return
    except (OSError, RecursionError):
        if not path.exists():
            return
        # unreadable modes, more levels than descriptors, or somebody removes it too: the slow way knows them all
    for command in (["chmod", "-R", "u+rwx", "--", str(path)], ["rm", "-rf", "--", str(path)]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if path.exists():
        raise OSError(f"{path} could not be removed: {done.stderr.strip()[-400:]}")
