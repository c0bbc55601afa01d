from __future__ import annotations

from collections.abc import Generator

import pytest
from support.ledgers import Books

from eval_pipeline.cli.progress import status_of


@pytest.fixture
def books(database_url: str) -> Generator[Books]:
    opened = Books(database_url)
    yield opened
    opened.database.close()


def test_a_cancel_shows_before_the_engine_has_heard_of_it(books: Books) -> None:
    run = books.experiment()

    def status() -> str:
        row = books.ledger.experiment(run.experiment_id)
        return status_of(row, books.views.tallies(row.id)[row.id])

    assert status() == "open"
    engine = books.engine()
    books.claim(run, engine)
    assert status() == "running"
    books.ledger.request_cancel(run.experiment_id)
    assert status() == "cancelling"
    books.ledger.release(engine)
    assert status() == "cancelled"
