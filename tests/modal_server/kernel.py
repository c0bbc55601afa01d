"""What a virtual machine has and a sandbox of the loopback server has not: enough of this machine's kernel for a container engine.

It has namespaces and a control group of its own, and is root there: for apps of our own tests, not for hostile ones.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

_END_S = 20.0
_JOIN = 'echo $$ >"$0/cgroup.procs" && exec "$@"'
# A group with processes can't hand its controllers to groups below, so they move one down
_BOOT = """mount -t cgroup2 none /sys/fs/cgroup && mkdir -p /sys/fs/cgroup/init || exit 70
for pid in $(cat /sys/fs/cgroup/cgroup.procs); do echo "$pid" >/sys/fs/cgroup/init/cgroup.procs; done 2>/dev/null
exec "$@"
"""


def _cgroup_root() -> Path:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        if rest.startswith("cgroup2 "):
            return Path(fields.split()[4])
    raise RuntimeError("no cgroup2 is mounted on this machine")


class Kernel:
    def __init__(self, name: str) -> None:
        self._group = _cgroup_root() / f"evals-loopback-{name}"
        self._group.mkdir()

    def joined(self) -> list[str]:
        return ["sh", "-c", _JOIN, str(self._group)]

    def privileges(self) -> list[str]:
        return ["--unshare-cgroup", "--cap-add", "ALL"]

    def file_systems(self) -> list[str]:
        """Of /proc/sys only what belongs to the network namespace can be written."""
        fuse = ["--dev-bind", "/dev/fuse", "/dev/fuse"] if Path("/dev/fuse").exists() else []
        return ["--bind", "/proc/sys/net", "/proc/sys/net", "--ro-bind", "/sys", "/sys", "--tmpfs", "/sys/fs/cgroup", *fuse]

    def booted(self) -> list[str]:
        return ["sh", "-c", _BOOT, "sh"]

    async def end(self) -> None:
        """Every process is gone with its namespace; the groups go from the bottom up."""
        await asyncio.to_thread(self._remove)

    def _remove(self) -> None:
        deadline = time.monotonic() + _END_S
        while self._group.exists():
            below = sorted((path for path in self._group.rglob("*") if path.is_dir()), reverse=True)
            try:
                for path in [*below, self._group]:
                    path.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
