"""The launcher of a shell command: a process tree that sees its workspace, the system's programs and nothing else.

Run as a program: WORKSPACE TIMEOUT_S COMMAND. The launcher is in a Landlock domain of its own, the command in a stricter one
inside it. So the command can't signal the launcher, and the launcher's kill of everybody reaches the command's tree alone.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

from landlockpy import AccessFS, AccessNet, Ruleset, Scope, abi_version, fs_for_abi

from matter_desk import seccomp

NEEDED_ABI = 6
TIMED_OUT = 124
MAX_FILE_BYTES = 32 * 2**20
MAX_PROCESSES = 256
MAX_MEMORY_BYTES = 512 * 2**20
_PR_SET_CHILD_SUBREAPER = 36
_SCOPES = Scope.SIGNAL | Scope.ABSTRACT_UNIX_SOCKET

_READ = AccessFS.READ_FILE | AccessFS.READ_DIR
_WRITE = (
    _READ | AccessFS.EXECUTE | AccessFS.WRITE_FILE | AccessFS.TRUNCATE | AccessFS.REFER | AccessFS.REMOVE_DIR
    | AccessFS.REMOVE_FILE | AccessFS.MAKE_DIR | AccessFS.MAKE_REG | AccessFS.MAKE_SYM | AccessFS.MAKE_FIFO
)  # fmt: skip
_PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib64", sys.prefix, sys.base_prefix)
_FILES = ("/etc/ld.so.cache", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/localtime", "/etc/alternatives")
_DEVICES = ("/dev/zero", "/dev/random", "/dev/urandom")


def unavailable() -> str | None:
    """Why no shell can be offered here; None when one can."""
    if not seccomp.known_machine():
        return f"no system call filter for the machine {os.uname().machine}"
    if (abi := abi_version()) < NEEDED_ABI:
        return f"the kernel has Landlock ABI {abi}, and {NEEDED_ABI} is needed" if abi else "the kernel has no Landlock"
    return None


def main(workspace: str, timeout_s: float, command: str) -> int:
    """The command's exit code, 128+n for a signal, 124 when its time was over."""
    _limit(timeout_s)
    with Ruleset(handled_fs=AccessFS.NONE, handled_net=AccessNet.NONE, scoped=_SCOPES, best_effort=False) as own:
        own.restrict()
    _adopt_orphans()
    pid = os.fork()
    if pid == 0:
        _become(workspace, command)
    code = _wait(pid, time.monotonic() + timeout_s)
    _end_all()
    return code


def _limit(timeout_s: float) -> None:
    cpu_s = int(timeout_s) + 1
    limits = {
        resource.RLIMIT_CPU: cpu_s,
        resource.RLIMIT_FSIZE: MAX_FILE_BYTES,
        resource.RLIMIT_NPROC: MAX_PROCESSES,
        resource.RLIMIT_AS: MAX_MEMORY_BYTES,
        resource.RLIMIT_CORE: 0,
    }
    for kind, value in limits.items():
        _, hard = resource.getrlimit(kind)
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (most, most))
    with contextlib.suppress(OSError):  # when memory runs out, it goes first, not a service
        Path("/proc/self/oom_score_adj").write_text("1000")


def _adopt_orphans() -> None:
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _become(workspace: str, command: str) -> NoReturn:
    try:
        confine(workspace)
        os.chdir(workspace)
        os.execv("/bin/sh", ["sh", "-c", command])
    except BaseException as error:  # noqa: BLE001 - a child that is not confined must end here, whatever happened
        print(f"the command was not started: {error}", file=sys.stderr, flush=True)
    os._exit(126)


def confine(workspace: str) -> None:
    """This thread and all it starts. Raises OSError, or landlockpy's errors, when not all of it can be had."""
    handled = fs_for_abi(abi_version())
    net = AccessNet.BIND_TCP | AccessNet.CONNECT_TCP
    with Ruleset(handled_fs=handled, handled_net=net, scoped=_SCOPES, best_effort=False) as rules:
        for path in dict.fromkeys(os.path.realpath(path) for path in _PROGRAMS if Path(path).is_dir()):
            rules.allow_path(path, _READ | AccessFS.EXECUTE)
        for path in (*_FILES, *_DEVICES):
            if Path(path).exists():
                rules.allow_path(path, _READ if Path(path).is_dir() else AccessFS.READ_FILE)
        rules.allow_path("/dev/null", AccessFS.READ_FILE | AccessFS.WRITE_FILE)
        rules.allow_path(workspace, _WRITE)
        rules.restrict()
    seccomp.install()


def _wait(pid: int, deadline: float) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while (left := deadline - time.monotonic()) > 0:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        signal.sigtimedwait({signal.SIGCHLD}, min(left, 0.5))
    return TIMED_OUT


def _end_all() -> None:
    """Everything of the domain, daemons too: a signal to everybody reaches nobody else."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError, PermissionError):
        os.kill(-1, signal.SIGKILL)
        while True:
            os.waitpid(-1, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2]), sys.argv[3]))
