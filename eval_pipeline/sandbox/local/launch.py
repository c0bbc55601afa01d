"""Starting, watching and ending one bwrap process tree. Synchronous: called from worker threads.

A sandbox's directory:
  meta.json  who it is, written first         run/    /run/evals, read-only inside: `files` and the inbox
  journal    the runner's records; its flock, held by PID 1 as its stdout, is the proof of life
  bell       the FIFO that is PID 1's stdin   disk/   all that can be written inside:
  status     bwrap's own records                u/ k/   the overlay's upper and work directories
  groups     its control groups' paths          out/    /out      tmp/  /tmp
  stderr     bwrap's and the runner's errors    logs/   /run/evals/logs   shm/  /dev/shm
  over-disk  there when it was ended for writing more than it may

Bell and journal are reachable for PID 1 alone: they are mounted nowhere, and PID 1 is not dumpable. So nothing that runs inside
can forge an exit code, steal a command or learn a secret it was not started with.
"""

from __future__ import annotations

import errno
import json
import os
import select
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from fcntl import F_DUPFD_CLOEXEC, LOCK_EX, LOCK_NB, LOCK_SH, fcntl, flock
from functools import cache
from pathlib import Path

from eval_pipeline.errors import SandboxError
from eval_pipeline.sandbox.base import RUN_DIR
from eval_pipeline.sandbox.local import aside, disk, smallfiles
from eval_pipeline.sandbox.local.places import Places, host_binds, host_paths

START_TIMEOUT_S = 30.0
KILL_TIMEOUT_S = 30.0
_APPENDED = os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
_STATUS_FD, _SECCOMP_FD = 3, 4  # the bell, the journal and stderr come before, and what says that it is ready comes after
_PATH = "/opt/venv/bin:/usr/local/bin:/usr/bin:/bin"
_SBIN = "/usr/sbin:/sbin"  # not on everybody's PATH
_PROXY = "http://127.0.0.1:3128"
_OF_BWRAP = (Path("/proc"), Path("/dev/null"))  # what it mounts itself is made from these

_children: dict[Path, int] = {}  # the outer bwrap processes that are ours to wait for


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a sandbox is made of, and how long it lives at most."""

    layers: tuple[Path, ...]
    world: Path | None
    proxied: bool
    lifetime_s: float


@dataclass(frozen=True)
class Inmate:
    """PID 1 as the host sees it, and the inode of its pid namespace, which no later process can share."""

    pid: int
    pid_namespace: int


def spawn(home: Path, places: Places, plan: Plan, greeting: bytes) -> None:
    """Start the tree, put `greeting` to its bell, and wait until its runner reads the bell. Raises SandboxError with bwrap's own words."""
    ready, theirs = os.pipe()
    opened = [theirs]
    try:
        opened.append(bell := os.open(home / "bell", os.O_RDWR | os.O_CLOEXEC))
        opened.append(journal := os.open(home / "journal", os.O_RDWR | _APPENDED, 0o600))
        flock(journal, LOCK_EX)
        os.write(bell, greeting)
        opened.append(errors := os.open(home / "stderr", os.O_WRONLY | _APPENDED, 0o600))
        opened.append(status := os.open(home / "status", os.O_WRONLY | _APPENDED, 0o600))
        opened.append(program := os.open(places.seccomp, os.O_RDONLY | os.O_CLOEXEC))
        _children[home] = _exec_aside(home, places, plan, [bell, journal, errors, status, program, theirs])
        while opened:
            os.close(opened.pop())
        _await_ready(home, ready)
    finally:
        for fd in (ready, *opened):
            os.close(fd)


def _exec_aside(home: Path, places: Places, plan: Plan, descriptors: list[int]) -> int:
    command = _command(home, places, plan)
    if not disk.capped(home / "disk"):
        return _exec(command, descriptors)
    roots = (places.scratch, places.layers, places.shell, *host_paths(), *_OF_BWRAP)
    needed = [home / "run", *plan.layers, *([plan.world] if plan.world is not None else []), *roots]
    return aside.run(lambda: _exec(command, descriptors), home / "disk", places.scratch, roots, needed)


def _exec(command: list[str], descriptors: list[int]) -> int:
    """Run `command` in a session of its own with exactly these descriptors as 0, 1, 2, ... and an empty environment."""
    high = [fcntl(fd, F_DUPFD_CLOEXEC, 64) for fd in descriptors]  # so that no target number is still a source
    try:
        actions: list[tuple[int, int] | tuple[int, int, int]] = [(os.POSIX_SPAWN_CLOSE, fd) for fd in _inheritable()]
        actions += [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(high)]
        return os.posix_spawn(command[0], command, {}, file_actions=actions, setsid=True, setsigdef=_DEFAULTED)
    finally:
        for fd in high:
            os.close(fd)


def _inheritable() -> list[int]:
    """What we were started with or opened for other children: none of it may be seen from a sandbox."""
    found: list[int] = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with suppress(OSError):  # the listing's own descriptor is closed by now
            if os.get_inheritable(int(name)):
                found.append(int(name))
    return found


_DEFAULTED = [signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD]


def _command(home: Path, places: Places, plan: Plan) -> list[str]:
    command = [] if places.rooted else [*_until(plan.lifetime_s), *drop_root(places)]
    command += [str(places.bwrap), *([] if places.rooted else ["--die-with-parent"]), *namespaces(places)]
    command += ["--new-session", "--as-pid-1", "--hostname", "evals", "--clearenv"]
    for name, value in _environment(plan.proxied).items():
        command += ["--setenv", name, value]
    for layer in _stack(places, plan.layers):
        command += ["--overlay-src", str(layer)]
    disk = home / "disk"
    command += ["--overlay", str(disk / "u"), str(disk / "k"), "/", *host_binds(), "--proc", "/proc", "--dev", "/dev"]
    command += ["--bind", str(disk / "shm"), "/dev/shm", "--remount-ro", "/dev", "--bind", str(disk / "tmp"), "/tmp"]
    if plan.world is not None:
        command += ["--ro-bind", str(plan.world), "/world"]
    command += ["--bind", str(disk / "out"), "/out", "--ro-bind", str(home / "run"), RUN_DIR]
    command += ["--ro-bind", str(places.shell), f"{RUN_DIR}/sh", "--ro-bind", str(places.runner), f"{RUN_DIR}/runner.sh"]
    command += ["--bind", str(disk / "logs"), f"{RUN_DIR}/logs", "--chdir", "/"]
    command += ["--json-status-fd", str(_STATUS_FD), "--seccomp", str(_SECCOMP_FD)]
    return [*command, "--", *(_leave_root_inside(places) if places.rooted else []), f"{RUN_DIR}/sh", f"{RUN_DIR}/runner.sh"]


@cache
def _program(name: str, package: str, why: str) -> str:
    found = shutil.which(name) or shutil.which(name, path=_SBIN)
    if found is None:
        raise SandboxError(f"`{name}` is missing, so {why}", hint=f"install {package}")
    return found


def _until(lifetime_s: float) -> list[str]:
    """The tree's own parent ends it when its time is over: no orchestrator, and no state directory, needs to be there then.

    Not without a user namespace: there bwrap has no right left to signal a child of another user.
    """
    timeout = _program("timeout", "coreutils", "nothing would end a sandbox that was forgotten")
    return [timeout, "--foreground", "--signal=KILL", f"{lifetime_s:.3f}"]


def namespaces(places: Places) -> list[str]:
    """All of them; without a user namespace root keeps inside, until the runner starts, what leaving uid 0 takes."""
    if not places.rooted:
        inside = ["--uid", str(places.inside.uid), "--gid", str(places.inside.gid)]
        return ["--unshare-all", "--unshare-user", *inside, "--disable-userns", "--cap-drop", "ALL"]
    kinds = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    kept = [word for name in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP") for word in ("--cap-add", name)]
    return [*kinds, "--cap-drop", "ALL", *kept]


def _stack(places: Places, layers: tuple[Path, ...]) -> tuple[Path, ...]:
    """Lowest first. Where root mounts and runs setpriv inside, no layer may say where /bin, /lib64 or a mount point is, who a user
    is or what is preloaded: there the skeleton is on top."""
    return (*layers, places.skeleton) if places.rooted else (places.skeleton, *layers)


def drop_root(places: Places) -> list[str]:
    """posix_spawn can't change the user, and forking a large orchestrator costs more than this extra exec. chroot to where we are: unlike
    setpriv it does not ask who the user is, which takes longer than the rest of it."""
    if not places.drops_root:
        return []
    chroot = _program("chroot", "coreutils", "a sandbox can't leave uid 0")
    return [chroot, f"--userspec=+{places.identity.uid}:+{places.identity.gid}", "--groups=", "/"]


def _leave_root_inside(places: Places) -> list[str]:
    program = str(Path(_program("setpriv", "util-linux", "a sandbox can't leave uid 0")).resolve())
    if not program.startswith("/usr/"):
        raise SandboxError(
            f"{program} would come from the sandbox's own files, and root runs it", hint="install util-linux in /usr"
        )
    user = [f"--reuid={places.identity.uid}", f"--regid={places.identity.gid}", "--clear-groups", "--inh-caps=-all"]
    return [program, *user, "--ambient-caps=-all", "--bounding-set=-all", "--no-new-privs"]


def _environment(proxied: bool) -> dict[str, str]:
    env = {"PATH": _PATH, "HOME": "/tmp", "LANG": "C.UTF-8", "EVALS_OUTPUT": "/out", "EVALS_WORLD": "/world"}
    if proxied:
        env |= {name: _PROXY for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")}
        env |= {name: "localhost,127.0.0.1" for name in ("NO_PROXY", "no_proxy")}
    return env


def _await_ready(home: Path, ready: int) -> None:
    """ready: a pipe that says something once the runner reads its bell, and ends with whoever could have said so."""
    if not _readable(ready, START_TIMEOUT_S):
        kill(home)
        raise SandboxError(f"the sandbox was not ready within {START_TIMEOUT_S:.0f} s: {last_words(home)}")
    if not os.read(ready, 1):
        reap(home)
        raise SandboxError(f"the sandbox did not start: {last_words(home) or 'bwrap said nothing'}")


def _readable(fd: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout_s * 1e3))


def last_words(home: Path) -> str:
    """The end of what bwrap and the runner said on their standard error."""
    path = home / "stderr"
    return path.read_bytes()[-1000:].decode(errors="replace").strip() if path.exists() else ""


def was_ready(home: Path) -> bool:
    """Whether its runner ever reached the bell."""
    try:
        with (home / "journal").open("rb") as journal:
            return journal.read(6) == b"ready\n"
    except FileNotFoundError:
        return False


def alive(home: Path) -> bool:
    try:
        fd = os.open(f"{home}/journal", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        flock(fd, LOCK_SH | LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def ring(home: Path, line: bytes) -> bool:
    """Put one line to the runner; False when nobody listens any more."""
    try:
        fd = os.open(f"{home}/bell", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENOENT):
            return False
        raise
    try:
        os.write(fd, line)
    except BrokenPipeError:
        return False
    except BlockingIOError:
        pass  # full of lines it has still to read; every line is sent again by whoever polls
    finally:
        os.close(fd)
    return True


def inmate(home: Path) -> Inmate | None:
    """None until bwrap has written its first complete status line."""
    try:
        first, newline, _ = smallfiles.read(f"{home}/status").partition("\n")
    except FileNotFoundError:
        return None
    if not newline:
        return None
    status = json.loads(first)
    return Inmate(int(status["child-pid"]), int(status["pid-namespace"]))


def kill(home: Path) -> None:
    """End the whole tree and see it gone. PID 1's death takes every process of its namespace; the outer bwrap's would not."""
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while alive(home):
        _kill_inmate(home)
        if time.monotonic() > deadline:
            raise SandboxError(f"the sandbox in {home} did not end within {KILL_TIMEOUT_S:.0f} s of SIGKILL")
        time.sleep(0.0005)
    reap(home)


def _kill_inmate(home: Path) -> None:
    found = inmate(home)
    if found is None:
        return
    try:
        pidfd = os.pidfd_open(found.pid)
    except ProcessLookupError:
        return
    try:
        # A dying process has no namespace to show, or may not show it
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if os.stat(f"/proc/{found.pid}/ns/pid").st_ino != found.pid_namespace:  # noqa: PTH116
                return
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            _readable(pidfd, 1.0)
    finally:
        os.close(pidfd)


def reap(home: Path) -> None:
    """Wait for the outer bwrap when it is our child; an adopted one is init's."""
    if (pid := _children.pop(home, None)) is not None:
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
