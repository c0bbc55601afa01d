"""What a sandbox of this backend holds back on this machine, and what it does not."""

from __future__ import annotations

from collections.abc import Collection, Mapping

WALLS = ("own user, no capabilities", "no network but the proxy", "read-only world and layers", "system call filter")
_AS_ROOT = "run as root where control groups can be made"
_LIMITS = {
    "memory": "a limit holds for each process only; " + _AS_ROOT,
    "pids": _AS_ROOT,
    "cpu": _AS_ROOT,
    "disk": "what is written is measured every few seconds and the sandbox ended above disk_mib; a folder without rights is not "
    "counted; run as root with 2 GiB free in /dev/shm",
}


def enforced(limits: Collection[str]) -> tuple[str, ...]:
    return (*WALLS, *(f"{name} limit" for name in _LIMITS if name in limits))


def missing(limits: Collection[str]) -> Mapping[str, str]:
    """limits: those of memory, pids, cpu and disk that the kernel holds."""
    fronting = {"domain fronting": "the allowlist sees names, not what a TLS connection asks for inside"}
    return {**{name: why for name, why in _LIMITS.items() if name not in limits}, **fronting}
