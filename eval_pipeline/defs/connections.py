"""Dagster's connections to Postgres, kept for as long as an engine lives."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import dagster as dg
import sqlalchemy as sa

MORE_AT_ONCE = 20  # threads of a run that write at the same time


@contextmanager
def keeping_connections(instance: dg.DagsterInstance) -> Generator[None]:
    """Each of Dagster's storages makes a connection for each of its statements: 300 in a run of 40 cells, 4 ms of CPU each.

    Here it keeps one, and asks before each use whether that is still alive: the server may have been started anew since. What Dagster
    offers its webserver (`optimize_for_webserver`) does not ask. tests/defs holds the name `_engine` to the pinned version.
    """
    storages: list[Any] = [instance.run_storage, instance.event_log_storage, instance.schedule_storage]
    for storage in storages:
        storage._engine = sa.create_engine(
            storage._engine.url,
            isolation_level="AUTOCOMMIT",
            pool_size=1,
            max_overflow=MORE_AT_ONCE,
            pool_pre_ping=True,
            pool_recycle=1800,
        )
    try:
        yield
    finally:
        for storage in storages:
            storage._engine.dispose()
