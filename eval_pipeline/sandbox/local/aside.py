"""Starting a sandbox's process where the other sandboxes' file systems are not mounted.

bwrap reads the whole table of mounts for each of its own mounts, so beside a thousand sandboxes a start would take ten times as
long as beside none. A thread of its own makes a mount namespace without them, starts the process there, and ends.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path

_CLONE_NEWNS = 0x00020000
_NOSUID_NODEV, _BIND, _MOVE, _REC, _SLAVE = 2 | 4, 4096, 8192, 16384, 1 << 19
_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


def run(work: Callable[[], int], home: Path, root: Path, spare: Path) -> int:
    """`work`'s result, called where of the mount `root` only `home`, with what is mounted in it, is left. spare: an empty directory.

    Called where everything is when such a namespace can't be made.
    """
    results: list[int | BaseException] = []

    def apart() -> None:
        try:
            _leave_only(home, root, spare)
        except OSError:
            return  # a slower start is all that is lost
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread
            results.append(error)

    thread = threading.Thread(target=apart, name="aside")
    thread.start()
    thread.join()
    if not results:
        return work()
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


def _leave_only(home: Path, root: Path, spare: Path) -> None:
    """First nothing done here may reach the host; then `home` is put by, `root` taken away and made anew, and `home` put back."""
    if _libc.unshare(_CLONE_NEWNS):
        raise _error(Path("/"))
    _mount(None, Path("/"), _REC | _SLAVE)
    _mount(home, spare, _BIND | _REC)
    if _libc.umount2(os.fsencode(root), _DETACH):
        raise _error(root)
    _mount(Path("none"), root, _NOSUID_NODEV, "tmpfs", "size=1m,mode=0711")
    for folder in [*reversed(home.relative_to(root).parents), home.relative_to(root)]:
        (root / folder).mkdir(mode=0o711, exist_ok=True)
    _mount(spare, home, _MOVE)


def _mount(source: Path | None, target: Path, flags: int, kind: str = "", options: str = "") -> None:
    given = None if source is None else os.fsencode(source)
    if _libc.mount(given, os.fsencode(target), kind.encode() or None, flags, options.encode() or None):
        raise _error(target)


def _error(path: Path) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), str(path))
