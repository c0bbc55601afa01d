"""Limits of one sandbox: control groups where we may make them, else process limits.

v1 groups are made below our own, so that a limit set on us still holds. v2 forbids that (no group has both processes and
controlled children): there they are made under /sys/fs/cgroup/evals. A sandbox on a memory file system has its files counted as
memory, so its memory limit is memory_mib + disk_mib.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from eval_pipeline.errors import SandboxError
from eval_pipeline.sandbox.base import Limit, Resources
from eval_pipeline.sandbox.local import smallfiles

_MOUNT = Path("/sys/fs/cgroup")
PIDS_MAX = 4096
_CPU_PERIOD_US = 100_000
_OPTIONAL = ("memory.swap.max",)  # not there on a kernel without swap accounting


@dataclass(frozen=True)
class Groups:
    """parents: the directory to make a sandbox's group in, by controller. Empty when there is none we may write."""

    version: int
    parents: Mapping[str, Path]


def find_groups() -> Groups:
    if os.getuid() != 0:
        return Groups(0, {})
    if (_MOUNT / "cgroup.controllers").exists():
        return find_v2(_MOUNT)
    own = dict(_own_groups())
    found = {name: _MOUNT / name / own.get(name, "").lstrip("/") for name in ("pids", "memory", "cpu")}
    return Groups(1, {name: path for name, path in found.items() if os.access(path, os.W_OK)})


def _own_groups() -> list[tuple[str, str]]:
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    return [(name, path) for _, names, path in (line.split(":", 2) for line in lines) for name in names.split(",")]


def find_v2(mount: Path) -> Groups:
    parent = mount / "evals"
    wanted = [name for name in ("pids", "memory", "cpu") if name in (mount / "cgroup.controllers").read_text().split()]
    enable = " ".join(f"+{name}" for name in wanted)
    try:
        (mount / "cgroup.subtree_control").write_text(enable)
        parent.mkdir(exist_ok=True)
        (parent / "cgroup.subtree_control").write_text(enable)
    except OSError:
        return Groups(2, {})
    return Groups(2, dict.fromkeys(wanted, parent))


def settings(version: int, resources: Resources, files_in_memory: bool) -> dict[str, dict[str, str]]:
    """controller -> file -> value."""
    memory = (resources.memory_mib + (resources.disk_mib if files_in_memory else 0)) << 20
    quota = max(1000, int(resources.cpu * _CPU_PERIOD_US))
    if version == 2:
        cpu = {"cpu.max": f"{quota} {_CPU_PERIOD_US}"}
        return {"pids": {"pids.max": str(PIDS_MAX)}, "memory": {"memory.max": str(memory), "memory.swap.max": "0"}, "cpu": cpu}
    cpu = {"cpu.cfs_period_us": str(_CPU_PERIOD_US), "cpu.cfs_quota_us": str(quota)}
    return {"pids": {"pids.max": str(PIDS_MAX)}, "memory": {"memory.limit_in_bytes": str(memory)}, "cpu": cpu}


def make(groups: Groups, name: str, resources: Resources, files_in_memory: bool, record: Path) -> None:
    """Make the sandbox's groups and write their paths to `record` first: an orchestrator in another group removes them too.

    Raises SandboxError when a group can't be made or set.
    """
    wanted = settings(groups.version, resources, files_in_memory)
    smallfiles.write(record, "".join(f"{path}\n" for path in dict.fromkeys(parent / name for parent in groups.parents.values())))
    for controller, parent in groups.parents.items():
        group = parent / name
        try:
            group.mkdir(exist_ok=True)
            for file, value in wanted[controller].items():
                if file not in _OPTIONAL or (group / file).exists():
                    smallfiles.write(f"{group}/{file}", value)
        except OSError as error:
            raise SandboxError(f"the control group {group} could not be set: {error}") from error


def recorded(record: Path) -> list[str]:
    try:
        return smallfiles.read(record).splitlines()
    except FileNotFoundError:
        return []


def hit(group_paths: Sequence[str | Path]) -> list[Limit]:
    """Limits of these groups that were run into. An OOM kill counts only when the group's own limit was what was reached."""
    found: list[Limit] = []
    for path in group_paths:
        v2 = _counters(f"{path}/memory.events")
        reached = v2.get("oom", 0) or _counters(f"{path}/memory.failcnt").get("", 0)
        if reached and (v2.get("oom_kill", 0) or _counters(f"{path}/memory.oom_control").get("oom_kill", 0)):
            found.append(Limit.MEMORY)
        if _counters(f"{path}/pids.events").get("max", 0):
            found.append(Limit.PIDS)
    return found


def _counters(file: str) -> dict[str, int]:
    """`name value` lines; a value alone stands under the empty name. Empty when there is no such file."""
    try:
        lines = [line.rpartition(" ") for line in smallfiles.read(file).splitlines()]
    except OSError:
        return {}
    return {name: int(value) for name, _, value in lines}


def join(record: Path, pid: int) -> None:
    """Put PID 1, before it runs any command, under the limits; its later children inherit them."""
    with suppress(ProcessLookupError):
        for path in recorded(record):
            smallfiles.write(f"{path}/cgroup.procs", str(pid))


def ulimits(groups: Groups, resources: Resources) -> bytes:
    """The runner's own limits, a line for its bell: no core dumps, no file above disk_mib, and memory where no group holds it."""
    words = ["ulimit -c 0", f"ulimit -f {resources.disk_mib * 2048}"]  # a shell counts files in 512 bytes and memory in KiB
    if "memory" not in groups.parents:
        words.append(f"ulimit -d {resources.memory_mib * 1024}")
    return "; ".join(words).encode() + b"\n"


def remove(group_paths: Sequence[str]) -> None:
    """Remove empty groups; the kernel may need a moment after the last process. Raises SandboxError when one stays."""
    for path in group_paths:
        for attempt in range(200):
            try:
                Path(path).rmdir()
                break
            except FileNotFoundError:
                break
            except OSError as error:
                if attempt == 199:
                    raise SandboxError(f"the control group {path} could not be removed: {error.strerror}") from error
                time.sleep(0.005)
