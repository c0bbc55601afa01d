"""Fixtures for everybody: a state directory, a server of our own per worker process, an empty database per test, settings."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg2
import pytest

from eval_pipeline.settings import Settings
from eval_pipeline.store.postgres import embedded_server


@contextmanager
def short_dir() -> Generator[Path]:
    """Short enough for a socket, and other users can traverse it: pytest's own tmp_path is neither."""
    folder = Path(tempfile.mkdtemp(prefix="evt-", dir="/tmp"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        for parent, folders, _ in os.walk(folder):
            for name in folders:
                path = Path(parent, name)
                if not path.is_symlink():
                    path.chmod(stat.S_IMODE(path.stat().st_mode) | stat.S_IRWXU)
        shutil.rmtree(folder)


@pytest.fixture
def state_dir() -> Generator[Path]:
    with short_dir() as folder:
        yield folder


@pytest.fixture(scope="session")
def postgres_server() -> Generator[str]:
    """URL of the database `evals` of a server that only this worker process uses."""
    with short_dir() as folder, embedded_server(Settings(state_dir=folder, worlds_dir=folder)) as url:
        # Nobody needs these databases after a power cut.
        _execute(url, "ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()")
        yield url


@pytest.fixture
def database_url(postgres_server: str) -> Generator[str]:
    """An empty database, dropped afterwards even when the test left connections open."""
    name = f"t_{secrets.token_hex(6)}"
    _execute(postgres_server, f"CREATE DATABASE {name}")
    yield postgres_server.replace("@/evals?", f"@/{name}?")
    _execute(postgres_server, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def settings(state_dir: Path, database_url: str) -> Settings:
    worlds = state_dir / "worlds_src"
    worlds.mkdir()
    return Settings(state_dir=state_dir, worlds_dir=worlds, postgres_url=database_url)


def _execute(url: str, *statements: str) -> None:
    with closing(psycopg2.connect(url.replace("postgresql+psycopg2", "postgresql", 1))) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
