"""Verdicts are added and never changed."""

from __future__ import annotations

import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import sqlalchemy as sa
from support.ledgers import Books

from eval_pipeline.domain.verdict import VerdictRow
from eval_pipeline.store.schema import cells

ROW = VerdictRow(
    request_digest="r", judge_version="check-1", vote=0, bundle="b", criterion="yes", verdict=1.0, status="ok", reason="said so"
)
_WAITING = sa.text("select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'")


@pytest.fixture
def books(database_url: str) -> Generator[Books]:
    opened = Books(database_url)
    yield opened
    opened.database.close()


def test_verdicts_are_read_back_by_bundle(books: Books) -> None:
    rows = [ROW, replace(ROW, request_digest="s", bundle="c", verdict=None, status="failed", reason=None)]
    books.verdicts.add(rows)
    books.verdicts.add([])
    assert books.verdicts.of_bundles(["b", "b", "unknown"]) == {"r": ROW}
    assert books.verdicts.of_bundles(["b", "c"]) == {row.request_digest: row for row in rows}
    assert books.verdicts.of_bundles([]) == {}


def test_the_first_verdict_stands(books: Books) -> None:
    books.verdicts.add([ROW, replace(ROW, verdict=0.0)])
    books.verdicts.add([replace(ROW, verdict=0.0, reason="changed my mind", bundle="c"), replace(ROW, request_digest="new")])
    assert books.verdicts.of_bundles(["b", "c"]) == {"r": ROW, "new": replace(ROW, request_digest="new")}


def test_what_checks_say_is_written_with_the_attempts_end(books: Books) -> None:
    run = books.experiment()
    claim = books.claim(run)
    attempt = books.begin(claim)
    with books.database.engine.connect() as other:  # who holds the cell holds up the whole of it
        other.execute(sa.select(cells.c.key).where(cells.c.key == claim.key).with_for_update())
        with ThreadPoolExecutor(1) as pool:
            ending = pool.submit(books.finish, claim, attempt, verdicts=(ROW, replace(ROW, request_digest="s")))
            while not books.database.run(lambda c: c.execute(_WAITING).scalar()):
                assert not ending.done()
                time.sleep(0.01)
            assert books.verdicts.of_bundles(["b"]) == {}
            other.rollback()
            ending.result(10)
    assert set(books.verdicts.of_bundles(["b"])) == {"r", "s"}
    assert books.row(claim.key).state == "done"


def test_other_votes_and_judges_stand_beside_it(books: Books) -> None:
    books.verdicts.add([replace(ROW, vote=1, verdict=0.0), ROW])
    assert books.verdicts.of_bundles(["b"]) == {"r": ROW}


def test_many_at_once_in_any_order(books: Books) -> None:
    rows = [replace(ROW, request_digest=str(n)) for n in range(300)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(books.verdicts.add, [rows, rows[::-1], rows[100:], rows[:200], rows[::-2], rows[::3]]))
    assert len(books.verdicts.of_bundles(["b"])) == 300


@pytest.mark.slow
def test_two_that_add_the_same_in_another_order_wait_for_no_deadlock(books: Books) -> None:
    """Postgres would end it after a second, and one of them begin again: seen by Postgres' own count."""
    query = sa.text("select pg_stat_clear_snapshot(), deadlocks from pg_stat_database where datname = current_database()")
    with ThreadPoolExecutor(2) as pool:
        for turn in range(8):
            rows = [replace(ROW, request_digest=f"{turn}-{n}") for n in range(4000)]
            list(pool.map(books.verdicts.add, [rows, rows[::-1]]))
    assert books.database.run(lambda c: c.execute(query).one()).deadlocks == 0


def test_a_reason_holds_whatever_the_answer_held(books: Books) -> None:
    books.verdicts.add([replace(ROW, reason="found 'a\0b \ud800'")])
    assert books.verdicts.of_bundles(["b"])["r"].reason == "found 'a\\0b \\ud800'"


def test_a_failed_verdict_counts_until_a_later_vote_is_ok(books: Books) -> None:
    failed = replace(ROW, verdict=None, status="failed", reason="the check broke")
    books.verdicts.add([failed])
    assert books.verdicts.of_bundles(["b"]) == {"r": failed}
    books.verdicts.add([replace(failed, vote=1)])
    assert books.verdicts.of_bundles(["b"])["r"].vote == 1
    books.verdicts.add([replace(ROW, vote=2), replace(failed, vote=3)])
    assert books.verdicts.of_bundles(["b"]) == {"r": replace(ROW, vote=2)}
