"""Entering the network namespace of a sandbox's process. Only a process of one thread can: it enters the user namespace first."""

from __future__ import annotations

import ctypes
import fcntl
import os

_NS_GET_USERNS = 0xB701
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000


def enter(network: int) -> None:
    """network: a descriptor of the namespace. Raises OSError."""
    owner = fcntl.ioctl(network, _NS_GET_USERNS)
    if not os.path.samestat(os.fstat(owner), os.stat("/proc/self/ns/user")):  # noqa: PTH116
        _setns(owner, _CLONE_NEWUSER)  # the kernel refuses to enter where one is already
    _setns(network, _CLONE_NEWNET)


def _setns(namespace: int, kind: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, kind):
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")
