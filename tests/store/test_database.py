"""The connection: migrations, what they refuse, outages and what counts as one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import alembic.autogenerate
import alembic.config
import alembic.migration
import alembic.script
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError, ProgrammingError
from support.clusters import with_cluster
from support.ledgers import HERE, Books

import eval_pipeline.store.database as database_module
from eval_pipeline.errors import LedgerUnavailable
from eval_pipeline.settings import Settings
from eval_pipeline.store.database import VERSION_TABLE, Database, newest_revision, storable, storable_json
from eval_pipeline.store.postgres import embedded_server, restart_if_down, server_status
from eval_pipeline.store.prepared import Step
from eval_pipeline.store.schema import SCHEMA, installation, limits, metadata

pytestmark = pytest.mark.slow

MIGRATE = "import sys; from eval_pipeline.store.database import Database; Database(sys.argv[1]).migrate()"


@contextmanager
def opened(url: str, **more: object) -> Generator[Database]:
    database = Database(url, **more)  # pyright: ignore[reportArgumentType]
    try:
        yield database
    finally:
        database.close()


def differences(url: str) -> list[object]:
    """Between the database and the schema's metadata; looked at from outside the schema, else its tables count as nobody's."""

    def ours(name: str | None, kind: str, _: object) -> bool:
        return kind != "schema" or name == SCHEMA

    opts = {
        "version_table": VERSION_TABLE,
        "version_table_schema": SCHEMA,
        "include_schemas": True,
        "include_name": ours,
        "compare_type": True,
        "compare_server_default": True,
    }
    outside = sa.make_url(url).update_query_dict({"options": "-csearch_path=public"}).render_as_string(hide_password=False)
    with opened(outside) as database:
        return database.run(
            lambda c: list(
                alembic.autogenerate.compare_metadata(alembic.migration.MigrationContext.configure(c, opts=opts), metadata)
            )
        )


def test_the_migrations_make_the_schema(empty_database_url: str) -> None:
    with opened(empty_database_url) as database:
        database.migrate()
        assert differences(empty_database_url) == []
        database.run(lambda c: c.execute(sa.text(f"alter table {SCHEMA}.limits add column extra int, alter value type bigint")))
        assert len(differences(empty_database_url)) == 2  # it does see them


def test_the_newest_revision_is_the_one_that_alembic_goes_to() -> None:
    config = alembic.config.Config()
    config.set_main_option("script_location", str(Path(database_module.__file__).parent / "migrations"))
    assert alembic.script.ScriptDirectory.from_config(config).get_heads() == [newest_revision()]


def test_migrating_again_changes_nothing(empty_database_url: str) -> None:
    with opened(empty_database_url) as database:
        database.migrate()
        first = database.run(lambda c: c.execute(sa.select(installation.c.id)).scalars().all())
        database.migrate()
        assert database.run(lambda c: c.execute(sa.select(installation.c.id)).scalars().all()) == first
        assert len(first) == 1


@pytest.mark.slow
def test_four_processes_that_migrate_at_once(empty_database_url: str) -> None:
    running = [subprocess.Popen([sys.executable, "-c", MIGRATE, empty_database_url], stderr=subprocess.PIPE) for _ in range(4)]
    ended = [(process.communicate(timeout=60)[1], process.returncode) for process in running]
    assert all(code == 0 for _, code in ended), ended
    with opened(empty_database_url) as database:
        assert differences(empty_database_url) == []
        assert database.run(lambda c: c.execute(sa.select(sa.func.count()).select_from(installation)).scalar()) == 1


@pytest.fixture
def outdated(database_url: str) -> Generator[Books]:
    """A ledger with an engine, stamped as of a revision that is no more the newest."""
    books = Books(database_url)
    books.engine()
    books.database.run(lambda c: c.execute(sa.text(f"update {SCHEMA}.{VERSION_TABLE} set version_num = '0000'")))
    yield books
    books.database.close()


def test_an_upgrade_is_refused_while_an_engine_lives(outdated: Books) -> None:
    with pytest.raises(LedgerUnavailable, match="needs an upgrade, but an engine is working") as caught:
        outdated.database.migrate()
    assert "experiment list" in (caught.value.hint or "")
    assert outdated.leases.living() != []


@pytest.mark.parametrize("how", ["closed", "expired", "found dead"])
def test_an_upgrade_is_not_refused_for_an_engine_that_is_gone(outdated: Books, how: str) -> None:
    (engine,) = outdated.leases.living()
    if how != "found dead":
        outdated.leases.close_engine(engine.id) if how == "closed" else outdated.expire(engine.id)
    with pytest.raises(Exception, match="'0000'"):  # it went on, and there is no such revision to start from
        outdated.database.migrate(end_dead=lambda: outdated.leases.close_engine(engine.id))


def test_a_living_engine_hinders_nobody_when_no_upgrade_is_due(database_url: str) -> None:
    books = Books(database_url)
    books.leases.open_engine("00000000-0000-0000-0000-000000000000", HERE, 1, None)
    books.database.migrate()
    books.database.close()


def test_a_ledger_from_the_future_is_said_to_be_one(database_url: str) -> None:
    with opened(database_url) as database:
        database.run(lambda c: c.execute(sa.text(f"update {SCHEMA}.{VERSION_TABLE} set version_num = '9999'")))
        with pytest.raises(Exception, match="9999"):
            database.migrate()


@pytest.fixture
def role(empty_database_url: str) -> Generator[str]:
    """A role that may make a schema in this database and nothing else."""
    with opened(empty_database_url) as owner:
        name = f"r_{owner.engine.url.database}"
        for statement in ("create role {}", f"grant create on database {owner.engine.url.database} to {{}}"):
            owner.run(lambda c, statement=statement: c.execute(sa.text(statement.format(name))))
        yield name
        for statement in ("drop owned by {}", "drop role {}"):
            owner.run(lambda c, statement=statement: c.execute(sa.text(statement.format(name))))


@pytest.mark.parametrize("named", ["evals", "other"])
def test_roles_named_like_the_schema_and_otherwise(empty_database_url: str, role: str, named: str) -> None:
    """The one's search path leads into the ledger's schema, the other's does not; the version table is found by both."""
    with opened(empty_database_url) as database:
        assert database.engine.url.username == "evals"  # the embedded server's own role
        if named == "other":

            def become(c: sa.Connection) -> None:
                c.execute(sa.text(f"set role {role}"))

            event.listen(database.engine, "begin", become)
        database.migrate()
    with opened(empty_database_url) as database:
        database.migrate()
        path = database.run(lambda c: c.execute(sa.text("select current_schema()")).scalar())
        assert path == SCHEMA
        assert differences(empty_database_url) == []


def test_mistakes_are_not_outages(database_url: str) -> None:
    calls: list[int] = []

    def work(c: sa.Connection) -> None:
        calls.append(1)
        c.execute(sa.text("select nonsense"))

    with opened(database_url) as database:
        with pytest.raises(ProgrammingError):
            database.run(work)
        database.migrate()
        with pytest.raises(IntegrityError):
            database.run(lambda c: c.execute(sa.insert(limits).values(name="setups", value=1)))
    assert calls == [1]


def test_a_transaction_that_fails_leaves_nothing(database_url: str) -> None:
    with opened(database_url) as database:
        database.migrate()

        def work(c: sa.Connection) -> None:
            c.execute(sa.update(limits).values(value=0))
            raise KeyError("mine")

        with pytest.raises(KeyError):
            database.run(work)
        assert 0 not in database.run(lambda c: c.execute(sa.select(limits.c.value)).scalars().all())


def test_a_connection_that_is_ended_from_outside_is_made_again(database_url: str) -> None:
    with opened(database_url) as database, opened(database_url) as other:
        pid = database.run(lambda c: c.execute(sa.text("select pg_backend_pid()")).scalar())
        other.run(lambda c: c.execute(sa.text(f"select pg_terminate_backend({pid})")))
        calls: list[int] = []

        def work(c: sa.Connection) -> object:
            calls.append(1)
            return c.execute(sa.text("select 7")).scalar()

        assert database.run(work) == 7
        assert 1 <= len(calls) <= 2


def test_no_server_at_all(tmp_path: Path) -> None:
    asked: list[int] = []
    url = f"postgresql+psycopg2://nobody@/evals?host={tmp_path}&port=5432"
    with (
        opened(url, patience_s=0.2, on_outage=lambda: asked.append(1)) as database,
        pytest.raises(LedgerUnavailable, match="has not answered for 0 s") as caught,
    ):
        database.run(lambda c: c.execute(sa.text("select 1")))
    assert asked != []
    assert caught.value.retryable and caught.value.hint is not None


@pytest.mark.slow
def test_work_goes_on_when_postgres_is_killed_in_the_middle(state_dir: Path) -> None:
    """The postmaster is killed while a transaction is open: it is run again as a whole, on the server started anew."""
    settings = Settings(state_dir=with_cluster(state_dir), worlds_dir=state_dir)
    with embedded_server(settings) as url, opened(url, on_outage=lambda: restart_if_down(settings)) as database:
        database.migrate()
        first = server_status(settings).pid
        assert first is not None
        calls: list[int] = []
        barrier = threading.Barrier(5)

        def interrupted(c: sa.Connection) -> int:
            c.execute(sa.update(limits).where(limits.c.name == "setups").values(value=limits.c.value + 1))
            calls.append(1)
            if len(calls) == 1:
                barrier.wait(timeout=60)
                os.kill(first, signal.SIGKILL)
            return int(c.execute(sa.select(limits.c.value).where(limits.c.name == "setups")).scalar_one())

        def steady(_: int) -> int:
            barrier.wait(timeout=60)
            return sum(int(database.run(lambda c: c.execute(sa.text("select 1")).scalar_one())) for _ in range(200))

        with ThreadPoolExecutor(5) as pool:
            others = [pool.submit(steady, n) for n in range(4)]
            assert pool.submit(database.run, interrupted).result(timeout=90) in (9, 10)
            assert [other.result(timeout=90) for other in others] == [200] * 4
        value = database.run(lambda c: c.execute(sa.select(limits.c.value).where(limits.c.name == "setups")).scalar_one())
        assert value == 9 or len(calls) == 1
        assert server_status(settings).pid not in (None, first)


@pytest.mark.slow
def test_a_session_that_ends_when_its_step_is_done_is_no_failure(state_dir: Path) -> None:
    """Between the answer and the connection's return to its pool: nothing is raised, and the pool loses no place."""
    settings = Settings(state_dir=with_cluster(state_dir), worlds_dir=state_dir)
    with embedded_server(settings) as url, opened(url, on_outage=lambda: restart_if_down(settings)) as database:
        killers: list[threading.Timer] = []

        def end(_: Any, cursor: Any, *__: Any) -> None:
            if killers:
                return
            session = cursor.connection.info.backend_pid
            os.kill(session, signal.SIGSTOP)  # so that whatever is asked on the way back has been asked when it ends
            killers.append(threading.Timer(0.5, os.kill, (session, signal.SIGKILL)))
            killers[0].start()

        assert database.step(Step("select 7"), {}) == 7  # the connection comes from its pool from here on
        event.listen(database.steps, "after_cursor_execute", end)
        assert [database.step(Step("select :n", n="int"), {"n": n}) for n in range(3)] == [0, 1, 2]
        assert len(killers) == 1
        assert database.steps.pool.checkedout() == 0  # pyright: ignore[reportAttributeAccessIssue]


@given(st.text() | st.none())
def test_storable_text(text: str | None) -> None:
    stored = storable(text)
    assert (stored is None) == (text is None)
    assert stored is None or ("\0" not in stored and stored.encode() is not None)
    if text is not None and "\0" not in text and text.isprintable():
        assert stored == text


def test_storable_json_goes_as_deep_as_the_value() -> None:
    assert storable_json({"a\0": ["\ud800", {"b": "\0"}], "n": 1, "x": None}) == {
        "a\\0": ["\\ud800", {"b": "\\0"}],
        "n": 1,
        "x": None,
    }
