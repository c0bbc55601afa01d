"""Sealed layers: directories that appear whole or not at all."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import stat
import time
from pathlib import Path

from eval_pipeline.sandbox.base import LayerContent
from eval_pipeline.sandbox.local.places import exclusive
from eval_pipeline.sandbox.local.safefs import remove_tree
from eval_pipeline.sandbox.local.script import check_key


def find(layers: Path, key: str) -> Path | None:
    """The layer's directory; its record is written last, so a directory without one is no layer, nor is one emptied since."""
    path = layers / check_key(key)
    try:
        names = json.loads(_record(path).read_bytes()).get("names")
        return path if names is None or names == sorted(os.listdir(path)) else None  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError, ValueError, AttributeError):
        return None


def content(layers: Path, key: str) -> LayerContent | None:
    path = find(layers, key)
    if path is None:
        return None
    record = json.loads(_record(path).read_text())
    return LayerContent(digest=record["digest"], size_bytes=record["size_bytes"])


def remove(layers: Path, key: str) -> None:
    """Its record goes first: from then on it is no layer, whatever is left of it."""
    path = layers / check_key(key)
    with exclusive(layers / f".{key}.lock"):
        _record(path).unlink(missing_ok=True)
        remove_tree(path)


def ages(layers: Path) -> dict[str, float]:
    """Every directory that is, was or would have been a layer -> seconds since it came there."""
    now, found = time.time(), dict[str, float]()
    for path in layers.iterdir():
        if not path.name.startswith(".") and path.is_dir():
            found[path.name] = now - path.stat().st_ctime
    return found


def _record(path: Path) -> Path:
    return path.with_name(f"{path.name}.layer.json")


def seal(layers: Path, key: str, content: Path) -> Path:
    """Rename `content` (same file system, nobody writing) to the layer `key`. The first one sealed wins."""
    with exclusive(layers / f".{check_key(key)}.lock"):
        if (sealed := find(layers, key)) is not None:
            return sealed
        digest, size = tree_digest(content)
        _sync_filesystem(layers)
        path = layers / key
        remove_tree(path)  # half a layer: its record was never written
        content.rename(path)
        path.chmod(0o755)
        partial = _record(path).with_suffix(".partial")
        with partial.open("w") as file:
            json.dump({"key": key, "digest": digest, "size_bytes": size, "names": sorted(os.listdir(path))}, file)  # noqa: PTH208
        partial.rename(_record(path))
        _sync_filesystem(layers)
    return path


def tree_digest(root: Path) -> tuple[str, int]:
    """sha256 over sorted (path, type, permissions, content), and the bytes in files."""
    total, size = hashlib.sha256(), 0
    for folder, folders, files in os.walk(root):
        folders.sort()
        for name in sorted(folders + files):
            path = Path(folder, name)
            status = path.lstat()
            kind = stat.S_IFMT(status.st_mode)
            content = b""
            if kind == stat.S_IFREG:
                content = _file_digest(path)
                size += status.st_size
            elif kind == stat.S_IFLNK:
                content = os.fsencode(path.readlink())
            head = f"{stat.filemode(status.st_mode)} {status.st_rdev} {len(content)} ".encode()
            total.update(head + os.fsencode(path.relative_to(root)) + b"\0" + content)
    return total.hexdigest(), size


def _file_digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _sync_filesystem(path: Path) -> None:
    """One syncfs instead of an fsync for each of a layer's thousands of files."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(fd):
            raise OSError(ctypes.get_errno(), "syncfs failed", str(path))
    finally:
        os.close(fd)
