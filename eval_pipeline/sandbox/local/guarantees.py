"""What a sandbox of this backend holds back on this machine, and what it does not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from eval_pipeline.sandbox.base import USER_NAMESPACE

_WALLS = {
    "own user, no capabilities": "nothing inside is root or can become it",
    "no network but the proxy": "a network namespace without a route; the proxy inside reaches the allowed host names",
    "read-only world and layers": "a cell writes to its own copy",
    "system call filter": "no mounts, namespaces, io_uring, bpf, keyrings or sockets of other families",
}
_ROOTED = "root of this machine sets a sandbox up, and what breaks out of it through the kernel has this machine's rights"
_GROUP = "by a control group, for the sandbox as a whole"
_AS_ROOT = "run as root where control groups can be made"
# name: (how it is held, what is so without it, what would give it)
_LIMITS = {
    "memory": (_GROUP, "a limit holds for each process only", _AS_ROOT),
    "pids": (_GROUP, "nothing limits how many processes a sandbox has", _AS_ROOT),
    "cpu": (_GROUP, "a sandbox takes what is idle", _AS_ROOT),
    "disk": (
        "by a file system of its own",
        "what is written is measured every few seconds and the sandbox ended above disk_mib; a folder without rights is not counted",
        "run as root with 2 GiB free in /dev/shm",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """said: how it is enforced, or why it is not. remedy: None when it is enforced."""

    name: str
    enforced: bool
    said: str
    remedy: str | None = None


def here(limits: Collection[str], *, namespaces: str | None) -> tuple[Guarantee, ...]:
    """limits: those of memory, pids, cpu and disk that the kernel holds. namespaces: None where sandboxes have a user namespace,
    else what would give it."""
    found = [Guarantee(name=name, enforced=True, said=how) for name, how in _WALLS.items()]
    said = "what is root inside is nobody on this machine" if namespaces is None else _ROOTED
    found.append(Guarantee(name=USER_NAMESPACE, enforced=namespaces is None, said=said, remedy=namespaces))
    for name, (how, without, remedy) in _LIMITS.items():
        held = name in limits
        found.append(Guarantee(name=name, enforced=held, said=how if held else without, remedy=None if held else remedy))
    return tuple(found)


def missing(found: Iterable[Guarantee]) -> Mapping[str, str]:
    return {each.name: f"{each.said}; {each.remedy}" for each in found if not each.enforced}
