"""Starting a sandbox's process where few file systems are mounted.

bwrap reads the whole table of mounts for each of its own mounts: beside a thousand sandboxes a start would take ten times as long as
beside none, and on a host with many mounts any start does. Once a process, a mount namespace is made without what no sandbox needs;
for each start a thread of its own makes one like it, which holds the sandbox's disk as well, starts the process there, and ends.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_CLONE_FS, _CLONE_NEWNS = 0x00000200, 0x00020000
_REC, _PRIVATE = 16384, 1 << 18
_DETACH_NOFOLLOW = 2 | 8
_OPEN_TREE, _MOVE_MOUNT = 428, 429  # the same on every machine; the C library has no names for them before glibc 2.36
_OPEN_TREE_CLONE, _MOVE_FROM_DESCRIPTOR = 1, 4
_AT_FDCWD = -100
_OWN = "/proc/thread-self/ns/mnt"
_libc = ctypes.CDLL(None, use_errno=True)


def run(work: Callable[[], T], disk: Path, others: Path, roots: tuple[Path, ...], needed: Sequence[Path]) -> T:
    """`work`'s result, called where few mounts are: those that `roots` lie on or hold, and `disk`, itself a mount. others: a
    directory below which no other mount is needed.

    Called where everything is when such a namespace can't be made, or when anything `needed` is not the same there. A process keeps
    one namespace for all calls with the same `roots`.
    """

    def enter() -> None:
        _enter(base, tree, disk)
        if _identities(needed) != seen:  # on a mount that was left out, or came later
            raise OSError

    try:
        seen = _identities(needed)
        base = _base(others, roots)
        tree = _checked(_libc.syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(disk), _OPEN_TREE_CLONE | os.O_CLOEXEC))
    except OSError:
        return work()
    try:
        return _in_a_thread(enter, work)
    except _NotThere:
        return work()
    finally:
        os.close(tree)


class _NotThere(OSError):
    """The place to work in could not be made: a slower start is all that is lost."""


def _in_a_thread(enter: Callable[[], None], work: Callable[[], T]) -> T:
    """`work`'s result, where `enter` has led this one thread, which ends with it. Raises _NotThere when it led nowhere."""
    results: list[T] = []
    raised: list[BaseException] = []

    def apart() -> None:
        try:
            try:
                enter()
            except OSError as error:
                raise _NotThere from error
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised by the caller's thread
            raised.append(error)

    thread = threading.Thread(target=apart, name="aside")
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return results[0]


def _enter(base: int, tree: int, disk: Path) -> None:
    """Nothing done here reaches the host: in `base` every mount is private, and so are its copies."""
    _checked(_libc.unshare(_CLONE_FS))
    _checked(_libc.setns(base, _CLONE_NEWNS))
    _checked(_libc.unshare(_CLONE_NEWNS))
    _checked(_libc.syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(disk), _MOVE_FROM_DESCRIPTOR))


def _identities(paths: Sequence[Path]) -> list[tuple[int, int]]:
    found = [os.stat(path) for path in paths]  # noqa: PTH116
    return [(status.st_dev, status.st_ino) for status in found]


@cache
def _base(others: Path, roots: tuple[Path, ...]) -> int:
    """A descriptor of the namespace, open as long as the process lives. Raises OSError."""
    resolved = [path.resolve() for path in roots]

    def is_needed(mount: Path) -> bool:
        return others not in mount.parents and any(mount.is_relative_to(r) or r.is_relative_to(mount) for r in resolved)

    gone = [mount for mount in _mounted() if not is_needed(mount)]
    return _in_a_thread(lambda: _leave_out(gone), lambda: os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC))


def _leave_out(gone: Sequence[Path]) -> None:
    _checked(_libc.unshare(_CLONE_NEWNS))
    _checked(_libc.mount(None, b"/", None, _REC | _PRIVATE, None))
    for path in reversed(gone):
        _libc.umount2(os.fsencode(path), _DETACH_NOFOLLOW)  # one may have gone with the one below it


def _mounted() -> list[Path]:
    lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    return [Path(os.fsdecode(line.split()[4].decode("unicode_escape").encode("latin-1"))) for line in lines]


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
