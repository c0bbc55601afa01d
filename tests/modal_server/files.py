"""What the file system helper inside a sandbox does, done from outside below its root. Links resolve as they would inside."""

from __future__ import annotations

import ctypes
import errno
import grp
import json
import os
import pwd
import shutil
import stat
from pathlib import PurePosixPath
from typing import Any

_OPENAT2 = 437
_RESOLVE_IN_ROOT = 0x10
_KINDS = {
    errno.ENOENT: "NotFound",
    errno.EISDIR: "IsDirectory",
    errno.ENOTDIR: "NotDirectory",
    errno.EACCES: "PermissionDenied",
    errno.EPERM: "PermissionDenied",
    errno.EEXIST: "PathAlreadyExists",
    errno.ENOTEMPTY: "DirectoryNotEmpty",
}
_libc = ctypes.CDLL(None, use_errno=True)


class _How(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def open_in(root: int, path: str, flags: int, mode: int = 0) -> int:
    how = _How(flags | os.O_CLOEXEC, mode, _RESOLVE_IN_ROOT)
    fd = _libc.syscall(_OPENAT2, root, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how))
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    return fd


def run(root: int, command: str, stdin: bytes) -> tuple[int, bytes, bytes]:
    """Exit code, stdout and stderr of one command of the helper."""
    ((name, options),) = json.loads(command).items()
    try:
        return 0, _COMMANDS[name](root, options, stdin), b""
    except OSError as error:
        kind = _KINDS.get(error.errno or 0, "Other")
        return 1, b"", json.dumps({"error_kind": kind, "message": error.strerror or str(error)}).encode()


def _read(root: int, options: dict[str, Any], _: bytes) -> bytes:
    fd = open_in(root, options["path"], os.O_RDONLY)
    with os.fdopen(fd, "rb") as file:
        return file.read()


def _write(root: int, options: dict[str, Any], stdin: bytes) -> bytes:
    path = PurePosixPath(options["path"])
    _make_directories(root, path.parent)
    fd = open_in(root, str(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    with os.fdopen(fd, "wb") as file:
        file.write(stdin)
    return b""


def _make_directories(root: int, path: PurePosixPath) -> None:
    for parent in [*reversed(path.parents), path][1:]:
        above = open_in(root, str(parent.parent), os.O_PATH | os.O_DIRECTORY)
        try:
            os.mkdir(parent.name, 0o755, dir_fd=above)
        except FileExistsError:
            pass
        finally:
            os.close(above)


def _make_directory(root: int, options: dict[str, Any], _: bytes) -> bytes:
    path = PurePosixPath(options["path"])
    if options["parents"]:
        _make_directories(root, path)
    else:
        _at(root, path, lambda name, fd: os.mkdir(name, 0o755, dir_fd=fd))
    return b""


def _remove(root: int, options: dict[str, Any], _: bytes) -> bytes:
    def remove(name: str, fd: int) -> None:
        if not stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=fd)
        elif options["recursive"]:
            shutil.rmtree(name, dir_fd=fd)
        else:
            os.rmdir(name, dir_fd=fd)

    _at(root, PurePosixPath(options["path"]), remove)
    return b""


def _at(root: int, path: PurePosixPath, act: Any) -> Any:
    above = open_in(root, str(path.parent), os.O_PATH | os.O_DIRECTORY)
    try:
        return act(path.name, above)
    finally:
        os.close(above)


def _stat(root: int, options: dict[str, Any], _: bytes) -> bytes:
    path = PurePosixPath(options["path"])
    return json.dumps(_at(root, path, lambda name, fd: _info(path, name, fd))).encode()


def _list(root: int, options: dict[str, Any], _: bytes) -> bytes:
    path = PurePosixPath(options["path"])
    fd = open_in(root, str(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        return json.dumps([_info(path / name, name, fd) for name in sorted(os.listdir(fd))]).encode()  # noqa: PTH208
    finally:
        os.close(fd)


def _info(path: PurePosixPath, name: str, fd: int) -> dict[str, Any]:
    status = os.stat(name or ".", dir_fd=fd, follow_symlinks=False)
    kind = "directory" if stat.S_ISDIR(status.st_mode) else "symlink" if stat.S_ISLNK(status.st_mode) else "file"
    return {
        "name": name,
        "path": str(path),
        "type": kind,
        "size": status.st_size,
        "mode": status.st_mode,
        "permissions": stat.filemode(status.st_mode),
        "owner": _name(pwd.getpwuid, status.st_uid),
        "group": _name(grp.getgrgid, status.st_gid),
        "modified_time": status.st_mtime,
        "symlink_target": os.readlink(name, dir_fd=fd) if kind == "symlink" else None,
    }


def _name(look_up: Any, number: int) -> str:
    try:
        return look_up(number)[0]
    except KeyError:
        return str(number)


_COMMANDS = {
    "ReadFile": _read,
    "WriteFile": _write,
    "MakeDirectory": _make_directory,
    "Remove": _remove,
    "Stat": _stat,
    "ListFiles": _list,
}
