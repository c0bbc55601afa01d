"""Can this machine isolate a sandbox at all? Runs by path with Python >= 3.11 and nothing installed; ends within 10 s.

Exit 0: yes, or with `--unsafe-no-isolation` that sandboxes can be started without; one line on standard error.
Exit 2: no; what is missing and the remedy on standard error.
"""

from __future__ import annotations

import ctypes
import os
import platform
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MACHINES = ("x86_64", "aarch64")
TIMEOUT_S = 4.0
_NOBODY = 65534
# CLONE_NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWPID | NEWNET
_NAMESPACES = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000
_NEWUSER = 0x10000000
_NOSUID_NODEV = 2 | 4
_REC_PRIVATE = 16384 | 1 << 18
ISOLATED, ROOTED = "isolated", "rooted"
_FLAG = "--unsafe-no-isolation"
_LAST_RESORT = (
    f"as a last resort, as root: {_FLAG} (or EVALS_UNSAFE_NO_ISOLATION=1) runs agents without a user namespace, "
    "so that one that breaks out through the kernel has this machine's rights"
)
_SWITCHES = {
    "kernel.unprivileged_userns_clone": ("0", "1"),
    "kernel.apparmor_restrict_unprivileged_userns": ("1", "0"),
    "user.max_user_namespaces": ("0", "15000"),
    "user.max_net_namespaces": ("0", "15000"),
    "user.max_mnt_namespaces": ("0", "15000"),
}


@dataclass(frozen=True)
class Found:
    """way: how a sandbox is started here: isolated, rooted (by root, without a user namespace), or None: not at all."""

    way: str | None
    said: str
    remedy: str | None = None


def look(*, unsafe: bool) -> Found:
    """Try it. unsafe: the user permits sandboxes without a user namespace."""
    if (lack := _lack()) is not None:
        return Found(None, f"sandboxes can't be isolated here: {lack[0]}", lack[1])
    failure = _attempt(_NEWUSER)
    if failure is None:
        needless = f"; {_FLAG} is not needed and changes nothing" if unsafe else ""
        return Found(ISOLATED, f"sandboxes can be isolated here{needless}")
    said, better = f"sandboxes can't be isolated here: {failure}", remedy(failure)
    if not unsafe:
        return Found(None, said, f"{better}; {_LAST_RESORT}")
    if os.getuid() != 0:
        return Found(None, f"{said}; and only root can start them without ({_FLAG})", f"{better}; or run as root")
    if (failure := _attempt(0)) is not None:
        return Found(
            None, f"{said}; nor can root start them without: {failure}", f"{better}; or give the container CAP_SYS_ADMIN"
        )
    return Found(ROOTED, f"UNSAFE: {said}; by {_FLAG} they run without a user namespace. Better: {better}")


def can_isolate() -> bool:
    return why_not() is None


def why_not() -> str | None:
    """What is missing and the remedy; None: sandboxes can be isolated here.

    Tried in a process of its own: ours may have threads, and a forked one of them may not.
    """
    done = subprocess.run([sys.executable, "-I", "-S", __file__], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else done.stderr.strip()


def _lack() -> tuple[str, str] | None:
    """(what is missing whatever is permitted, the remedy)."""
    if sys.platform != "linux":
        return (
            f"sandboxes need Linux, this is {sys.platform}",
            "`make install` and `backend: modal` in the experiment run its cells on Modal from here (README, On Modal); else a Linux machine",
        )
    if platform.machine() not in MACHINES:
        return f"no system call filter for {platform.machine()}", f"use a machine of type {' or '.join(MACHINES)}"
    missing = [name for name in ("setsid", "setpriv") if shutil.which(name) is None]
    return (f"{' and '.join(missing)} missing", "install util-linux") if missing else None


def remedy(failure: str) -> str:
    """The exact command for the switch that is off, else the likely cause."""
    commands = [f"sysctl -w {name}={on}" for name, (off, on) in _SWITCHES.items() if _sysctl(name) == off]
    if commands:
        return "as root: " + " && ".join(commands)
    if "overlay" in failure:
        return "load the module (modprobe overlay) on a kernel >= 5.11, with the state directory on a local file system"
    return "in a container: --security-opt seccomp=unconfined --security-opt apparmor=unconfined; else ask for user namespaces"


def _sysctl(name: str) -> str | None:
    try:
        return Path("/proc/sys", name.replace(".", "/")).read_text().strip()
    except OSError:
        return None


def _attempt(user_namespace: int) -> str | None:
    """Do in a child what bwrap does for a sandbox, with or without a user namespace; the first step that failed, or None."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _child(folder, writing, user_namespace)
        os.close(writing)
        try:
            if not select.select([reading], [], [], TIMEOUT_S)[0]:
                os.kill(child, signal.SIGKILL)
                return f"namespaces could not be made within {TIMEOUT_S:.0f} s"
            return os.read(reading, 4096).decode() or None
        finally:
            os.close(reading)
            os.waitpid(child, 0)


def _child(folder: str, report: int, user_namespace: int) -> None:
    step = "leaving uid 0"
    try:
        if os.getuid() == 0 and user_namespace:
            os.setgroups([])
            os.setgid(_NOBODY)
            os.setuid(_NOBODY)
        uid, gid = os.getuid(), os.getgid()
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: a changed uid hides our own /proc entries
        step = f"making {'user, ' if user_namespace else ''}mount, network and pid namespaces"
        _check(libc.unshare(_NAMESPACES | user_namespace))
        if user_namespace:
            step = "mapping our user into a user namespace"
            for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {uid} 1"), ("gid_map", f"1000 {gid} 1")):
                Path("/proc/self", name).write_text(text)
        step = "mounting a tmpfs"
        _check(libc.mount(None, b"/", None, _REC_PRIVATE, None))  # else the host would have what is mounted here
        _check(libc.mount(b"tmpfs", folder.encode(), b"tmpfs", _NOSUID_NODEV, None))
        lower, upper, work, root = (f"{folder}/{name}" for name in ("lower", "upper", "work", "root"))
        for path in (lower, upper, work, root):
            Path(path).mkdir()
        step = "mounting an overlay"
        options = f"lowerdir={lower},upperdir={upper},workdir={work},userxattr".encode()
        _check(libc.mount(b"overlay", root.encode(), b"overlay", _NOSUID_NODEV, options))
    except OSError as error:
        os.write(report, f"{step} failed: {error.strerror}".encode())
    finally:
        os._exit(0)


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def main(argv: Sequence[str]) -> int:
    found = look(unsafe=_FLAG in argv)
    print(found.said if found.remedy is None else f"{found.said}\nremedy: {found.remedy}", file=sys.stderr)
    return 2 if found.way is None else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
