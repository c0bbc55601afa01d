"""This machine: who it is, and the places and users that unprivileged helpers can reach."""

from __future__ import annotations

import getpass
import hashlib
import os
import pwd
import socket
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from eval_pipeline.errors import InfrastructureError

SANDBOX_USER = "evals-sandbox"
POSTGRES_USER = "evals-postgres"


@dataclass(frozen=True)
class Identity:
    """The uid and gid that a helper process runs under; never 0."""

    uid: int
    gid: int


@dataclass(frozen=True)
class HostIdentity:
    """id: this boot of this machine with this state directory: who holds local sandboxes. place: the same whatever the boot."""

    id: str
    place: str
    hostname: str


def host_identity(state_dir: Path) -> HostIdentity:
    """Only the same `id` may adopt a local sandbox; only the same `place` may declare it lost (a reboot ended it)."""
    hostname = socket.gethostname()
    place = hashlib.sha256("\0".join([_read("/etc/machine-id"), hostname, str(state_dir.resolve())]).encode()).hexdigest()[:32]
    boot = _read("/proc/sys/kernel/random/boot_id")
    return HostIdentity(hashlib.sha256(f"{place}\0{boot}".encode()).hexdigest()[:32], place, hostname)


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def unprivileged(user: str) -> Identity:
    """The identity to run a helper under: ourselves, or as root the system user `user`, made when absent.

    bwrap started as uid 0 leaves the host's sysctls writable, and PostgreSQL refuses uid 0.
    """
    if os.getuid() != 0:
        return Identity(os.getuid(), os.getgid())
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        command = ["useradd", "--system", "--no-create-home", "--home-dir", "/nonexistent"]
        made = subprocess.run([*command, "--shell", "/usr/sbin/nologin", user], capture_output=True, text=True, check=False)
        try:
            entry = pwd.getpwnam(user)  # another process may have made it meanwhile
        except KeyError:
            raise InfrastructureError(
                f"the system user {user!r} is missing and useradd could not make it: {made.stderr.strip() or made.returncode}",
                hint=f"run as a normal user, or create the user yourself: useradd --system {user}",
            ) from None
    return Identity(entry.pw_uid, entry.pw_gid)


# What sandboxes, and the database's own user, must get to; as root everything else in a state directory is root's alone.
_PRIVATE = ("artifacts", "dagster", "engines", "locks", "logs", "ports", "runs", "tmp")


def own_state_dir(state_dir: Path) -> Path:
    """Made when absent, mode 0700. As root 0711, for helpers of other users to pass through, and what is not theirs in it 0700."""
    root = os.getuid() == 0
    try:
        state_dir.mkdir(parents=True)
    except FileExistsError:
        return state_dir
    state_dir.chmod(0o711 if root else 0o700)
    for name in _PRIVATE if root else ():
        (state_dir / name).mkdir(mode=0o700, exist_ok=True)
    return state_dir


def reachable_root(state_dir: Path) -> Path:
    """A directory that unprivileged helpers can traverse: `state_dir`, or as root below a private home a twin of it.

    The twin is /var/lib/evals/<12 hex of the state directory's path>, mode 0711.
    """
    own_state_dir(state_dir)
    if os.getuid() != 0 or _traversable(state_dir):
        return state_dir
    twin = Path("/var/lib/evals") / hashlib.sha256(str(state_dir.resolve()).encode()).hexdigest()[:12]
    for folder in (twin.parent, twin):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o711)
    return twin


def _traversable(path: Path) -> bool:
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (path, *path.resolve().parents))


def login() -> str:
    """user@host."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a uid without a name, as in containers
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"
