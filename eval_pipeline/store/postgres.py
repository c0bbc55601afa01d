"""The database everything shares: an embedded server that lives as long as some process uses it, or one given by its URL.

Two lock files in the state directory. `postgres.users`: every user holds it shared. `postgres.lock`: held exclusively while
somebody starts, stops or leaves. Locks die with their process, so a killed user leaves the server running for the next one.
Authentication is by the kernel's word for the peer of the socket (peer): root and the server's own user are let in.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg2
import psycopg2.errors
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from eval_pipeline.errors import LedgerUnavailable, SpecError
from eval_pipeline.host import own_state_dir, reachable_root
from eval_pipeline.settings import Settings
from eval_pipeline.store import postgres_cluster as pg
from eval_pipeline.store.looking import looks

DATABASE = "evals"
LOCK_TIMEOUT_S = pg.START_TIMEOUT_S + 2 * pg.STOP_TIMEOUT_S  # as long as its holder may wait itself
_DRIVER = "postgresql+psycopg2"


@dataclass(frozen=True, kw_only=True)
class ServerStatus:
    """pid and data_dir: None for a server that is not ours. url: None before the first start. version: None when not known."""

    running: bool
    pid: int | None
    url: str | None
    data_dir: Path | None
    version: str | None


@contextmanager
def embedded_server(settings: Settings) -> Generator[str]:
    """The URL of the database `evals`, for as long as the context is open; `settings.postgres_url` when that is set.

    A process that outlives this one enters the context itself. Raises LedgerUnavailable with the reason and the way out, SpecError for
    a URL that is none, or without one on a machine that can't keep a server.
    """
    if settings.postgres_url is not None:
        yield normalised(settings.postgres_url)
        return
    if sys.platform != "linux":
        raise SpecError(
            f"the embedded PostgreSQL is kept by what Linux tells of its processes, and this is {sys.platform}",
            hint="name a server of your own: export EVALS_POSTGRES_URL=postgresql://user:password@host:5432/database",
        )
    with _registered(settings) as url:
        yield url


def normalised(url: str) -> str:
    """Raises SpecError for anything but PostgreSQL through psycopg2."""
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise _bad_url("not a database URL") from error
    if parsed.drivername not in ("postgres", "postgresql", _DRIVER):
        raise _bad_url(f"the scheme {parsed.drivername!r} is not supported")
    return _DRIVER + url[url.index(":") :]


def _bad_url(what: str) -> SpecError:
    # The URL itself may hold a password.
    return SpecError(f"EVALS_POSTGRES_URL: {what}", hint="write postgresql://user:password@host:5432/database")


@contextmanager
def _registered(settings: Settings) -> Generator[str]:
    with _state_errors(settings):
        own_state_dir(settings.state_dir)
        users = _open(_users_file(settings))
    try:
        with _state_errors(settings), _locked(settings):
            fcntl.flock(users, fcntl.LOCK_SH)
            url = _running(settings)
        yield url
    finally:
        try:
            _leave(settings, users)
        finally:
            os.close(users)


def _leave(settings: Settings, users: int) -> None:
    with _state_errors(settings), _locked(settings):
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        pg.stop(_cluster(settings))


def _running(settings: Settings) -> str:
    cluster = _cluster(settings)
    found = pg.socket_dir(cluster)
    if found is not None and pg.answers(found, DATABASE):
        return _url(found)
    directory = pg.ensure_running(cluster)
    try:
        _create_database(directory)
    except psycopg2.Error as error:
        raise pg.failure(cluster, f"the database {DATABASE!r} can't be made or reached", str(error)) from error
    return _url(directory)


def _create_database(directory: Path) -> None:
    with closing(pg.connect(directory)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("SELECT FROM pg_database WHERE datname = %s", (DATABASE,))
            if cursor.rowcount == 0:
                # what a killed starter asked for may come true meanwhile
                with suppress(psycopg2.errors.DuplicateDatabase, psycopg2.errors.UniqueViolation):
                    cursor.execute(f"CREATE DATABASE {DATABASE}")


def _url(directory: Path) -> str:
    return f"{_DRIVER}://{pg.ROLE}@/{DATABASE}?host={directory}&port={pg.PORT}"


def _cluster(settings: Settings) -> pg.Cluster:
    return pg.make_cluster(_home(settings))


def _home(settings: Settings) -> Path:
    return reachable_root(settings.state_dir) / "postgres"


def restart_if_down(settings: Settings) -> bool:
    """For a user of the server that finds it gone. True when it answers now, under the same URL as before.

    A server that is not ours is only asked. Raises LedgerUnavailable when ours can't be started again.
    """
    if settings.postgres_url is not None:
        return _version(normalised(settings.postgres_url)) is not None
    with _state_errors(settings), _locked(settings):
        return pg.answers(pg.ensure_running(_cluster(settings)))


def server_status(settings: Settings) -> ServerStatus:
    """Looks only: starts nothing, makes nothing, waits at most for a connection's time-out."""
    if settings.postgres_url is not None:
        url = normalised(settings.postgres_url)
        version = _version(url)
        return ServerStatus(running=version is not None, pid=None, url=url, data_dir=None, version=version)
    cluster = pg.find_cluster(_home(settings)) if _users_file(settings).exists() else None
    if cluster is None:
        return ServerStatus(running=False, pid=None, url=None, data_dir=None, version=None)
    directory = pg.socket_dir(cluster)
    url = _url(directory) if directory else None
    return ServerStatus(
        running=directory is not None and pg.answers(directory),
        pid=pg.server_pid(cluster),
        url=url,
        data_dir=cluster.data,
        version=(_version(url) if url else None) or pg.data_major(cluster),
    )


def _version(url: str) -> str | None:
    try:
        connection = psycopg2.connect("postgresql" + url.removeprefix(_DRIVER), connect_timeout=5)
    except psycopg2.OperationalError:
        return None
    with closing(connection):
        return connection.get_parameter_status("server_version")


def _users_file(settings: Settings) -> Path:
    return settings.state_dir / "postgres.users"


@contextmanager
def _locked(settings: Settings) -> Generator[None]:
    lock = _open(settings.state_dir / "postgres.lock")
    try:
        _take(lock)
        yield
    finally:
        os.close(lock)


def _take(lock: int) -> None:
    for _ in looks(LOCK_TIMEOUT_S, lambda: f"process {_holder(lock)}, which starts, stops or leaves PostgreSQL", every_s=0.01):
        with suppress(BlockingIOError):
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    raise LedgerUnavailable(
        f"process {_holder(lock)} has been starting or stopping PostgreSQL for {LOCK_TIMEOUT_S:.0f} s",
        hint="see whether it is stopped (kill -CONT), or end it: what it began goes on in the next command",
    )


def _holder(lock: int) -> str:
    """Its pid, as the kernel lists the holders of locks."""
    inode = str(os.fstat(lock).st_ino)
    words = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    return next((held[4] for held in words if held[1] == "FLOCK" and held[5].rpartition(":")[2] == inode), "that is gone")


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


@contextmanager
def _state_errors(settings: Settings) -> Generator[None]:
    try:
        yield
    except OSError as error:
        hint = "set EVALS_STATE_DIR to a directory of your own on a disk with space, or EVALS_POSTGRES_URL to a server"
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        what = f"the disk of {settings.state_dir} is full" if full else f"the state directory {settings.state_dir} can't be used"
        raise LedgerUnavailable(f"{what}: {error}", hint=hint) from error
