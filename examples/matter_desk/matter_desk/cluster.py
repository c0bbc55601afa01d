"""The life of the database cluster outside the supervisor: made once, started for a restore, its schema brought up to date."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Generator
from pathlib import Path

from matter_desk.places import cluster, make_run_dir
from matter_desk.postgres import DATABASE, ROLE, connect, program, server_argv, wait_until_up

STOP_TIMEOUT_S = 30.0


def make_cluster() -> None:
    """Nothing happens when there is one."""
    if (cluster() / "PG_VERSION").exists():
        return
    shutil.rmtree(cluster(), ignore_errors=True)  # an initdb that was interrupted
    cluster().parent.mkdir(parents=True, exist_ok=True)
    locale = ["--encoding=UTF8", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]
    # `trust`: whoever reaches the socket is this user already
    auth = [f"--username={ROLE}", "--auth-local=trust", "--auth-host=reject"]
    command = [program("initdb"), "-D", str(cluster()), "--wal-segsize=1", "--no-sync", "--no-instructions", *locale, *auth]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def running() -> Generator[None]:
    """A server for the time of the block, stopped cleanly: what it wrote is checkpointed."""
    make_run_dir()
    server = subprocess.Popen(server_argv(), stdin=subprocess.DEVNULL)
    try:
        wait_until_up(server, "postgres").close()
        yield
    finally:
        server.send_signal(signal.SIGINT)
        if server.wait(STOP_TIMEOUT_S) != 0:
            raise RuntimeError(f"postgres did not stop cleanly: it ended with {server.returncode}")


def start_over() -> None:
    """An empty database, whatever there was."""
    connection = connect("postgres")
    connection.autocommit = True
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE IF EXISTS {DATABASE}")
            cursor.execute(f"CREATE DATABASE {DATABASE} STRATEGY file_copy")
    finally:
        connection.close()


def migrate(revision: str = "head") -> None:
    """Run the migrations that the database has not had."""
    from alembic import command
    from alembic.config import Config
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    config = Config()
    config.set_main_option("script_location", os.fspath(Path(__file__).parent / "migrations"))
    engine = create_engine("postgresql+psycopg2://", creator=connect, poolclass=NullPool)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
