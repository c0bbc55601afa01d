"""Who gets a warm sandbox: one attempt each, under its fence, and never one that is not ready or no longer good."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from support.ledgers import Books, keys

from eval_pipeline.domain.cell import Outcome
from eval_pipeline.errors import FenceLost
from eval_pipeline.store.warm import WarmRows


@pytest.fixture
def books(database_url: str) -> Generator[Books]:
    opened = Books(database_url)
    yield opened
    opened.database.close()


@pytest.fixture
def rows(books: Books) -> WarmRows:
    return WarmRows(books.database, "local", "place-1")


def stand(rows: WarmRows, *names: str, spec: str = "s", ready: bool = True) -> None:
    for name in names:
        rows.intend(name, spec_digest=spec, app="tiny", world="w", ttl_s=600)
        if ready:
            rows.ready(name, 0.5)


def test_many_at_once_get_one_each(books: Books, rows: WarmRows) -> None:
    run, engine = books.experiment(12), books.engine()
    claims = books.ledger.claim(engine, keys(run), "place-1")
    begun = [(claim, books.begin(claim)) for claim in claims]
    stand(rows, *(f"warm-{n}" for n in range(8)))
    with ThreadPoolExecutor(6) as pool:
        got = list(pool.map(lambda pair: rows.take(pair[0], pair[1].id, "s"), begun))
    taken = [name for name in got if name is not None]
    assert sorted(taken) == [f"warm-{n}" for n in range(8)] and got.count(None) == 4
    names = [books.attempt_row(attempt).sandbox for _, attempt in begun]
    assert [name for name, one in zip(names, got, strict=True) if one is not None] == taken, "it is the attempt's own"
    assert not rows.free()


def test_asked_again_it_is_the_same_and_the_next_owner_adopts_it(books: Books, rows: WarmRows) -> None:
    run, engine = books.experiment(), books.engine()
    claim = books.claim(run, engine)
    attempt = books.begin(claim)
    stand(rows, "warm-1", "warm-2")
    assert [rows.take(claim, attempt.id, "s") for _ in range(3)] == ["warm-1"] * 3
    books.expire(engine)
    (again,) = books.ledger.claim(books.engine(), keys(run), "place-1")
    assert again.open_attempt is not None and again.open_attempt.sandbox == "warm-1"
    assert "warm-1" in books.views.open_sandboxes()
    with pytest.raises(FenceLost):
        rows.take(claim, attempt.id, "s")
    assert rows.take(again, attempt.id, "s") == "warm-1"
    assert [row.name for row in rows.free()] == ["warm-2"]
    books.finish(again, again.open_attempt, Outcome.OK)
    rows.forget_used()
    left = books.database.run(lambda c: c.execute(sa.text("select name from evals.warm_sandboxes")).scalars().all())
    assert left == ["warm-2"]


def test_what_is_not_ready_expired_different_or_elsewhere_is_not_taken(books: Books, rows: WarmRows) -> None:
    claim = books.claim(books.experiment())
    attempt = books.begin(claim)
    stand(rows, "starting", ready=False)
    stand(rows, "other", spec="another")
    stand(rows, "old")
    stand(WarmRows(books.database, "local", "place-2"), "elsewhere")
    stand(WarmRows(books.database, "modal", "place-1"), "cloud")
    past = sa.text("update evals.warm_sandboxes set expires_at = now() - interval '1 second' where name = 'old'")
    books.database.run(lambda c: c.execute(past))
    assert rows.take(claim, attempt.id, "s") is None
    assert books.attempt_row(attempt).sandbox == attempt.sandbox
    assert {row.name: row.left_s > 0 for row in rows.free()} == {"starting": True, "other": True, "old": False}


def test_an_agent_that_runs_does_not_move(books: Books, rows: WarmRows) -> None:
    claim = books.claim(books.experiment())
    attempt = books.begin(claim)
    books.ledger.agent_started(claim, attempt.id, 60)
    stand(rows, "warm-1")
    assert rows.take(claim, attempt.id, "s") is None
    assert [row.name for row in rows.free()] == ["warm-1"]


def test_one_that_is_taken_is_not_given_up(books: Books, rows: WarmRows) -> None:
    claim = books.claim(books.experiment())
    attempt = books.begin(claim)
    stand(rows, "warm-1", "warm-2")
    assert rows.take(claim, attempt.id, "s") == "warm-1"
    assert rows.give_up(["warm-1", "warm-2", "never-was"]) == ["warm-2"]
    assert rows.take(claim, attempt.id, "s") == "warm-1"
