"""What a sandbox may write in sum: a file system of its own with that size where we may mount one, else measured now and then.

Everything that can be written inside lies in one directory: the upper layer, /out, /tmp, /dev/shm and the commands' logs.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
import threading
import time
from functools import cached_property
from pathlib import Path

from eval_pipeline.sandbox.local.places import Places

PARTS = ("u", "k", "out", "logs", "tmp", "shm")
_NOSUID_NODEV = 2 | 4
_DETACH_NOFOLLOW = 2 | 8
_PAGE_BYTES = 4096
_EVERY_S = 2.0
_REST = 4  # after a measurement nothing is measured for so many times as long as it took
_libc = ctypes.CDLL(None, use_errno=True)
_measuring = threading.Lock()
_rest_until = 0.0


def can_cap(places: Places) -> bool:
    """Whether the sandboxes of cells get a file system of their own; found by mounting one."""
    if not (places.drops_root and places.scratch_is_memory):
        return False
    with tempfile.TemporaryDirectory(dir=places.builds) as folder:
        # In a mount namespace of its own: who is killed in the midst of it leaves no mount behind
        probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "-o", "size=1m", "evals", folder]
        return subprocess.run(probe, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0


def make(folder: Path, places: Places, disk_mib: int, *, in_memory: bool) -> None:
    """Make `folder` and its parts; of its own size when it lies in memory and we may mount."""
    folder.mkdir()
    if in_memory and places.drops_root:
        _mount(folder, disk_mib)
    for part in [folder / name for name in PARTS]:
        part.mkdir()
        part.chmod(0o755)
        if places.drops_root:
            os.chown(part, places.identity.uid, places.identity.gid)


def _mount(folder: Path, size_mib: int) -> None:
    # A file takes a page at least, so as many names as pages
    options = f"size={size_mib << 20},nr_inodes={(size_mib << 20) // _PAGE_BYTES},mode=0711"
    _libc.mount(b"evals", os.fsencode(folder), b"tmpfs", _NOSUID_NODEV, options.encode())


def capped(folder: Path) -> bool:
    """As os.path.ismount, which looks up every directory above as well."""
    try:
        return os.lstat(folder).st_dev != os.lstat(folder.parent).st_dev
    except FileNotFoundError:
        return False


def unmount(folder: Path) -> None:
    """Give the memory back at once; nothing happens when nothing is mounted."""
    while capped(folder) and _libc.umount2(os.fsencode(folder), _DETACH_NOFOLLOW) == 0:
        pass


def full(folder: Path) -> bool:
    """Whether a capped one has no room for a further page or a further name."""
    if not capped(folder):
        return False
    status = os.statvfs(folder)
    return status.f_bavail == 0 or status.f_favail == 0


class Watch:
    """Finds that an uncapped directory holds more than it may. All watches of a process together take at most a fifth of a core."""

    def __init__(self, folder: Path, disk_mib: int) -> None:
        self._folder = folder
        self._max_bytes = disk_mib << 20
        self._next = 0.0

    def is_due(self) -> bool:
        """Whether `over` would measure, which takes a while."""
        return time.monotonic() >= max(self._next, _rest_until) and not self._is_capped

    @cached_property
    def _is_capped(self) -> bool:
        return capped(self._folder)

    def over(self) -> bool:
        global _rest_until
        if not self.is_due() or not _measuring.acquire(blocking=False):
            return False
        began = time.monotonic()
        try:
            used = used_bytes(self._folder)
            ended = time.monotonic()
            self._next, _rest_until = ended + _EVERY_S, ended + _REST * (ended - began)
        finally:
            _measuring.release()
        return used > self._max_bytes


def used_bytes(folder: Path) -> int:
    """Blocks taken below `folder`. `du`, because it goes down any number of levels; what it may not enter is not counted."""
    done = subprocess.run(["du", "-sxB1", "--", str(folder)], capture_output=True, text=True, check=False)
    words = done.stdout.split()
    return int(words[0]) if words else 0
