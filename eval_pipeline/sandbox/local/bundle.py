"""The output bundle: what an agent left, packed without trusting any of it."""

from __future__ import annotations

import io
import json
import os
import stat
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast

from eval_pipeline.sandbox.base import SKIPPED_NAME, STATE_DIR, Collected, world_path
from eval_pipeline.sandbox.local.safefs import open_dir, open_regular

MAX_BYTES = 1 << 30
MAX_DEPTH = 64
MAX_ENTRIES = 200_000
MAX_SKIPPED = 1000
_COPY_BYTES = 1 << 18
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a character device",
}


@dataclass
class _Packing:
    tar: tarfile.TarFile
    max_bytes: int
    left_entries: int
    n_files: int = 0
    size_bytes: int = 0
    skipped: dict[str, str] = field(default_factory=dict[str, str])

    def skip(self, where: str, why: str) -> None:
        if len(self.skipped) < MAX_SKIPPED:
            self.skipped[where] = why
        else:
            self.skipped["..."] = "more was left out than is named here"

    def add(self, info: tarfile.TarInfo, content: IO[bytes] | None = None) -> None:
        self.tar.addfile(info, content)
        self.tar.members.clear()  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue] - it remembers every member, and there may be very many


class _Exactly(io.RawIOBase):
    """`size` bytes of a file that may shrink while it is read; what is missing reads as zeros and `short` says so."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd, self._left, self.short = fd, size, False

    def read(self, size: int = -1, /) -> bytes:
        want = self._left if size < 0 else min(size, self._left)
        data = os.read(self._fd, want) if want and not self.short else b""
        if len(data) < want and not data:
            self.short = True
            data = bytes(want)
        self._left -= len(data)
        return data if len(data) == want else data + self.read(want - len(data))


def pack(out_dir: Path, logs_dir: Path, dest: Path, max_bytes: int = MAX_BYTES, max_entries: int = MAX_ENTRIES) -> Collected:
    """Write `out/...`, `logs/...` and, if need be, `skipped.json` to the tar `dest`, which is not there when that fails. Equal content gives equal bytes.

    Regular files and directories, and links into the world below `out/state/`, `max_entries` in each of the two trees. Once the files' sizes sum up to `max_bytes` the ones that don't fit are skipped;
    the app's state comes after all that the agent wrote, so that a large one costs no transcript;
    a file that shrank meanwhile is listed too, its missing end being zeros.
    """
    dest.parent.mkdir(parents=True, exist_ok=True)
    try:
        with dest.open("wb") as raw:
            packed = _write(raw, out_dir, logs_dir, max_bytes, max_entries)
    except OSError:
        dest.unlink(missing_ok=True)
        raise
    return Collected(n_files=packed.n_files, size_bytes=packed.size_bytes, skipped=packed.skipped)


def _write(raw: io.BufferedIOBase, out_dir: Path, logs_dir: Path, max_bytes: int, max_entries: int) -> _Packing:
    # GNU names are raw bytes, so a name that is not UTF-8 survives
    names: Any = {"encoding": "utf-8", "errors": "surrogateescape"}
    with tarfile.TarFile(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT, copybufsize=_COPY_BYTES, **names) as tar:
        packing = _Packing(tar, max_bytes, max_entries)
        for prefix, root in (("out", out_dir), ("logs", logs_dir)):
            packing.left_entries = max_entries
            with suppress(PermissionError):
                root.chmod(0o700)  # an agent that closed its own output must not look like a fault of ours
            fd = open_dir(root, ())
            try:
                _pack_dir(packing, fd, prefix, "" if prefix == "out" else "../logs/", 1)
            finally:
                os.close(fd)
        if packing.skipped:
            told = json.dumps(packing.skipped).encode()
            info = tarfile.TarInfo(SKIPPED_NAME)
            info.size = len(told)
            packing.add(info, io.BytesIO(told))
    return packing


def _pack_dir(packing: _Packing, dir_fd: int, arcname: str, shown: str, depth: int) -> None:
    for name, mode in _entries(packing, dir_fd, shown):
        where = shown + name
        if stat.S_ISDIR(mode):
            if depth >= MAX_DEPTH:
                packing.skip(where, f"deeper than {MAX_DEPTH} directories")
                continue
            _pack_subdir(packing, dir_fd, name, f"{arcname}/{name}", where, depth)
        elif stat.S_ISREG(mode):
            _pack_file(packing, dir_fd, name, f"{arcname}/{name}", where)
        elif stat.S_ISLNK(mode) and f"/{arcname}/".startswith(f"{STATE_DIR}/"):
            _pack_link(packing, dir_fd, name, f"{arcname}/{name}", where)
        else:
            packing.skip(where, _KINDS.get(stat.S_IFMT(mode), "not a regular file"))


def _entries(packing: _Packing, dir_fd: int, shown: str) -> Iterator[tuple[str, int]]:
    """By name, as far as the bundle's number of entries goes; which of too many are taken is up to the file system."""
    with os.scandir(dir_fd) as listing:
        names = [entry.name for entry in islice(listing, packing.left_entries)]
        if next(listing, None) is not None:
            packing.skip(shown or "./", "holds more entries than the bundle has left")
    packing.left_entries -= len(names)
    for name in sorted(names, key=lambda name: (shown + name == "state", os.fsencode(name))):
        try:
            yield name, os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode
        except FileNotFoundError:
            continue  # removed since the listing
        except OSError as error:
            packing.skip(shown + name, f"could not be looked at: {error.strerror}")


def _pack_subdir(packing: _Packing, dir_fd: int, name: str, arcname: str, where: str, depth: int) -> None:
    try:
        deeper = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    except OSError as error:
        packing.skip(where, f"could not be opened: {error.strerror}")
        return
    try:
        info = tarfile.TarInfo(arcname)
        info.type, info.mode = tarfile.DIRTYPE, 0o755
        packing.add(info)
        _pack_dir(packing, deeper, arcname, where + "/", depth + 1)
    finally:
        os.close(deeper)


def _pack_link(packing: _Packing, dir_fd: int, name: str, arcname: str, where: str) -> None:
    try:
        target = os.readlink(name, dir_fd=dir_fd)
    except OSError as error:
        packing.skip(where, f"could not be read: {error.strerror}")
        return
    if world_path(target) is None:
        packing.skip(where, "a symbolic link that does not lead to a plain path below /world")
        return
    info = tarfile.TarInfo(arcname)
    info.type, info.linkname = tarfile.SYMTYPE, target
    packing.add(info)


def _pack_file(packing: _Packing, dir_fd: int, name: str, arcname: str, where: str) -> None:
    fd = open_regular(dir_fd, name)
    if fd is None:
        packing.skip(where, "could not be opened")
        return
    try:
        status = os.fstat(fd)
        if packing.size_bytes + status.st_size > packing.max_bytes:
            packing.skip(where, f"too large: {status.st_size} bytes, the bundle holds {packing.max_bytes}")
            return
        info = tarfile.TarInfo(arcname)
        info.size, info.mode = status.st_size, 0o755 if status.st_mode & 0o100 else 0o644
        content = _Exactly(fd, status.st_size)
        packing.add(info, cast(IO[bytes], content))
        if content.short:
            packing.skip(where, "shrank while it was read")
    finally:
        os.close(fd)
    packing.n_files += 1
    packing.size_bytes += status.st_size
