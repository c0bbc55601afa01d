"""Tokens are counted once for everybody, and there are never more than the burst."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from support.ledgers import Books

from eval_pipeline.store.buckets import Bucket
from eval_pipeline.store.schema import buckets


@pytest.fixture
def books(database_url: str) -> Generator[Books]:
    opened = Books(database_url)
    yield opened
    opened.database.close()


def test_whoever_comes_too_early_waits_for_the_next_token(books: Books) -> None:
    """A hundred seconds a token: the time that this takes adds next to nothing."""
    first, second = (Bucket(books.database, "x", per_s=0.01, burst=2) for _ in range(2))
    waits = [bucket._take() for bucket in (first, second, first, second)]
    assert [round(wait, -1) for wait in waits] == [0, 0, 100, 200]
    long_ago = sa.func.clock_timestamp() - sa.text("interval '1 day'")
    books.database.run(lambda c: c.execute(sa.update(buckets).values(counted_at=long_ago)))
    assert [round(first._take(), -1) for _ in range(3)] == [0, 0, 100]
    assert Bucket(books.database, "y", per_s=0.01, burst=1)._take() == 0


def test_two_at_the_same_moment_get_two_tokens(books: Books) -> None:
    bucket = Bucket(books.database, "x", per_s=0.01, burst=1)
    with ThreadPoolExecutor(8) as pool:
        waits = sorted(pool.map(lambda _: bucket._take(), range(16)))
    assert [round(wait, -1) for wait in waits] == [100 * number for number in range(16)]
