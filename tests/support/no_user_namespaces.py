"""`python no_user_namespaces.py COMMAND...`: run it as root with every user's id, in a place where no user namespace can be made.

The place is itself a user namespace, so nothing of the machine is changed: its own limit of further ones is 0, as on a machine
with `user.max_user_namespaces = 0`. What is mounted in it ends with it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

_NEWUSER, _NEWNS = 0x10000000, 0x00020000


def main(command: list[str]) -> None:
    (entered, enter), (mapped, map_) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        _enter(enter, mapped, command)
    os.close(enter)
    os.read(entered, 1)
    for name in ("uid_map", "gid_map"):
        Path(f"/proc/{child}/{name}").write_text("0 0 4294967295")
    os.write(map_, b".")
    _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))


def _enter(entered: int, mapped: int, command: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEWUSER | _NEWNS):
        os._exit(99)
    os.write(entered, b".")
    os.read(mapped, 1)
    Path("/proc/sys/user/max_user_namespaces").write_text("0")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
