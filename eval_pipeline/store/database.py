"""The connection to Postgres: one pool a process, upgrades under a lock, one retry rule."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from eval_pipeline.errors import LedgerUnavailable
from eval_pipeline.store.prepared import Step, run_together
from eval_pipeline.store.schema import SCHEMA

Result = TypeVar("Result")

_PAUSED_TOO_LONG = "25P03"
VERSION_TABLE = "evals_alembic_version"
PAUSED_S = 15
_MIGRATIONS = Path(__file__).parent / "migrations"
_UPGRADE_LOCK = 0x6576616C73  # "evals"


class Database:
    """Runs transactions, and statements that are one each (on `steps`).

    on_outage: called when Postgres does not answer, before each new try (it may restart a server).
    """

    def __init__(
        self, url: str, *, pool_size: int = 8, patience_s: float = 5.0, on_outage: Callable[[], object] = lambda: None
    ) -> None:
        self.url = url
        self._patience_s = patience_s
        self._on_outage = on_outage
        self.engine = _engine(url, pool_size)
        event.listen(self.engine, "connect", _release_when_paused)
        # A pool of its own: a connection whose mode is set back on its return asks the server, and is lost to the pool with it.
        self.steps = _engine(url, pool_size, isolation_level="AUTOCOMMIT")
        event.listen(self.steps, "connect", _by_keys)

    def run(self, work: Callable[[sa.Connection], Result]) -> Result:
        """`work` in one transaction, repeated while Postgres is away, so it must be idempotent under its own commit.

        Raises LedgerUnavailable after `patience_s` seconds without an answer.
        """

        def transaction() -> Result:
            with self.engine.begin() as connection:
                return work(connection)

        return self._patiently(transaction)

    def step(self, statement: Step, values: Mapping[str, object]) -> Any:
        """One statement, a transaction by itself; the first value it returns, None when it returns no row. Repeated as in `run`."""
        return self.together([(statement, values)])

    def together(self, steps: Sequence[tuple[Step, Mapping[str, object]]]) -> Any:
        """Several in one transaction, each seeing what those before it did; of the last one what `step` returns."""

        def once() -> Any:
            with self.steps.connect() as connection:
                return run_together(connection, steps)

        return self._patiently(once)

    def _patiently(self, once: Callable[[], Result]) -> Result:
        deadline = time.monotonic() + self._patience_s
        pause_s = 0.05
        while True:
            try:
                return once()
            except DBAPIError as error:
                if not _is_outage(error):
                    raise
                if time.monotonic() > deadline:
                    raise LedgerUnavailable(
                        f"Postgres has not answered for {self._patience_s:.0f} s: {error.orig}",
                        hint="check the server (`evals doctor`); the same command goes on where it stopped",
                    ) from error
                self._on_outage()
                time.sleep(pause_s)
                pause_s = min(pause_s * 2, 2.0)

    def now(self) -> datetime:
        """By the clock that all share: Postgres'."""
        return self.run(lambda connection: connection.execute(sa.select(sa.func.now())).scalar_one())

    def migrate(self, end_dead: Callable[[], object] = lambda: None) -> None:
        """Bring the schema to the newest revision. Refused with LedgerUnavailable while an engine's lease lives and work is due.

        end_dead: ends the leases of engines that are known to be gone; called first, on the ledger's old form.
        """
        revision = self.run(_revision)
        if revision == newest_revision():
            return
        if revision is not None:
            end_dead()
        with self.engine.begin() as connection:
            connection.execute(sa.text("select pg_advisory_xact_lock(:key)"), {"key": _UPGRADE_LOCK})
            connection.execute(sa.text(f"create schema if not exists {SCHEMA}"))
            revision = _revision(connection)
            if revision == newest_revision():
                return
            if revision is not None and _lease_lives(connection):
                raise LedgerUnavailable(
                    "the ledger needs an upgrade, but an engine is working with the old form",
                    hint="wait until it is done (`evals experiment list`), then run the command again",
                )
            _upgrade(connection)

    def close(self) -> None:
        self.engine.dispose()
        self.steps.dispose()


def _engine(url: str, pool_size: int, **more: Any) -> sa.Engine:
    return sa.create_engine(url, pool_size=pool_size, max_overflow=0, pool_pre_ping=False, pool_recycle=1800, **more)


def _release_when_paused(connection: Any, _: object) -> None:
    """A process that was paused amid a transaction must not keep its locks from everybody else."""
    with connection.cursor() as cursor:
        cursor.execute(f"set idle_in_transaction_session_timeout = '{PAUSED_S}s'")
    connection.commit()


def _by_keys(connection: Any, _: object) -> None:
    """Steps find their rows by keys: a plan that was made when a table was small must not read all of it once it is large.

    Without just-in-time compilation: before version 18 what is switched off so counts as too costly to go without.
    """
    with connection.cursor() as cursor:
        cursor.execute("set enable_seqscan = off; set jit = off")


def newest_revision() -> str:
    """Of the migrations here. Their files are named after them: Alembic takes a third of a second to say the same."""
    return max(path.name for path in (_MIGRATIONS / "versions").glob("[0-9]*.py")).partition("_")[0]


def _revision(connection: sa.Connection) -> str | None:
    """What the ledger was last brought to; None before anything was."""
    if connection.execute(sa.select(sa.func.to_regclass(f"{SCHEMA}.{VERSION_TABLE}"))).scalar() is None:
        return None
    return connection.execute(sa.text(f"select version_num from {SCHEMA}.{VERSION_TABLE}")).scalar()


def _upgrade(connection: sa.Connection) -> None:
    import alembic.command
    import alembic.config

    config = alembic.config.Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    alembic.command.upgrade(config, "head")


def _lease_lives(connection: sa.Connection) -> bool:
    query = sa.text(f"select exists (select 1 from {SCHEMA}.engines where ended_at is null and lease_until > now())")
    return bool(connection.execute(query).scalar())


def _is_outage(error: DBAPIError) -> bool:
    """The server is away or going, or the transaction lost a deadlock: nothing is wrong with the statement."""
    if error.connection_invalidated or isinstance(error, InterfaceError):
        return True
    code = getattr(error.orig, "pgcode", None)
    if code == _PAUSED_TOO_LONG:
        return True
    return isinstance(error, OperationalError) and (code is None or code.startswith(("08", "40", "57P", "53")))


def storable(text: str | None) -> str | None:
    """The text as Postgres can hold it: NUL and lone surrogates are written as escapes."""
    return None if text is None else text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


def storable_json(value: Any) -> Any:
    """The same for every text in a JSON value, keys included: JSONB refuses what text columns do."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, list):
        return [storable_json(item) for item in cast(list[Any], value)]
    if isinstance(value, dict):
        return {storable(key): storable_json(item) for key, item in cast(dict[str, Any], value).items()}
    return value
