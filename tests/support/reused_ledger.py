"""One ledger for test after test: emptying it takes a tenth of the time that a copy takes, its first connections and its end."""

from __future__ import annotations

import io
import secrets
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from typing import Any

import psycopg2
from support.clusters import execute, plain

# Whatever makes, changes or drops a table, function, trigger, ... leaves its mark in one of these
_CATALOGS = ("namespace", "attribute", "attrdef", "constraint", "index", "proc", "trigger", "rewrite", "type", "sequence")
_FORM = " union all ".join(f"select count(*), max(xmin::text::bigint) from pg_{name}" for name in _CATALOGS)
_USED = """
select c.oid::regclass::text, pg_relation_size(c.oid) from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind = 'r' and n.nspname not in ('pg_catalog', 'information_schema') and pg_relation_size(c.oid) > 0"""
_OTHERS = """
select exists (select 1 from pg_stat_activity
  where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid())"""
_LIKE_NO_OTHER = "update evals.installation set id = gen_random_uuid()"
_GONE_WITHIN_S = 0.3
# Rows that were deleted keep their pages until Postgres cleans up by itself
_MOST_BYTES = 4 * 2**20


class ReusedLedger:
    """Emptied between tests, and made anew after a test that left more than rows."""

    def __init__(self, server: str, template: str) -> None:
        """`template`: name of a database that has the schema and to which nobody is connected."""
        self._server = server
        self._template = template
        with _cursor(url_of(server, template)) as cursor:
            self._rows = {table: _copied(cursor, table) for table, _ in _asked(cursor, _USED)}
        self._name: str | None = None
        self._form: object = None

    def take(self) -> str:
        """URL of a ledger as its migrations leave it, an installation like no other."""
        if self._name is None:
            self._name = f"t_{secrets.token_hex(6)}"
            execute(self._server, f"CREATE DATABASE {self._name} TEMPLATE {self._template}")
            with _cursor(url_of(self._server, self._name)) as cursor:
                self._form = _asked(cursor, _FORM)
                cursor.execute(_LIKE_NO_OTHER)
        return url_of(self._server, self._name)

    def give_back(self) -> None:
        if self._name is not None and not self._emptied(url_of(self._server, self._name)):
            execute(self._server, f"DROP DATABASE IF EXISTS {self._name} WITH (FORCE)")
            self._name = None

    def _emptied(self, url: str) -> bool:
        """False when somebody is still connected, who could write to the next test's ledger, or when its form is another one."""
        try:
            with _cursor(url) as cursor:
                used = dict(_asked(cursor, _USED))
                if sum(used.values()) > _MOST_BYTES or _others_stay(cursor) or _asked(cursor, _FORM) != self._form:
                    return False
                cursor.execute("set session_replication_role = replica")  # neither triggers nor foreign keys are asked
                cursor.execute(";".join(f"delete from {table}" for table in used))
                cursor.execute("select setval(seqrelid, seqstart, false) from pg_sequence")
                for table, rows in self._rows.items():
                    cursor.copy_expert(f"copy {table} from stdin", io.StringIO(rows))
                cursor.execute(_LIKE_NO_OTHER)
                cursor.execute("select pg_stat_reset()")
        except psycopg2.Error:  # the test dropped it, or lets nobody in
            return False
        return True


def url_of(server: str, database: str) -> str:
    return server.replace("@/evals?", f"@/{database}?")


@contextmanager
def _cursor(url: str) -> Generator[Any]:
    """One transaction."""
    with closing(psycopg2.connect(plain(url))) as connection, connection, connection.cursor() as cursor:
        yield cursor


def _asked(cursor: Any, question: str) -> list[tuple[Any, ...]]:
    cursor.execute(question)
    return cursor.fetchall()


def _copied(cursor: Any, table: str) -> str:
    into = io.StringIO()
    cursor.copy_expert(f"copy {table} to stdout", into)
    return into.getvalue()


def _others_stay(cursor: Any) -> bool:
    """A server's process ends a moment after the connection that was closed."""
    until = time.monotonic() + _GONE_WITHIN_S
    while _asked(cursor, _OTHERS) == [(True,)]:
        if time.monotonic() > until:
            return True
        time.sleep(0.01)
        cursor.execute("select pg_stat_clear_snapshot()")
    return False
