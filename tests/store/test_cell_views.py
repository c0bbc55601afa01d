"""Cells as they are read: one by one with all that is known of their attempts, or all of an experiment with what a table needs."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from sqlalchemy import event
from support.ledgers import HERE, Books, keys

from eval_pipeline.store.cell_views import TOLD_OF_MANY

EVIDENCE = {"isolation": {"level": "full", "missing": {}}, "dump_s": 0.5, "state_before": "d", "egress_refused": {"dns": 2}}


@pytest.fixture
def books(database_url: str) -> Generator[Books]:
    opened = Books(database_url)
    yield opened
    opened.database.close()


def test_of_many_cells_only_the_evidence_that_a_table_needs_is_read_and_equal_evidence_once(books: Books) -> None:
    run, engine = books.experiment(3), books.engine()
    for claim, evidence in zip(books.ledger.claim(engine, keys(run), HERE.place), [EVIDENCE, EVIDENCE, {}], strict=True):
        books.finish(claim, books.begin(claim), evidence=evidence)
    whole = [cell.counted.evidence for cell in books.views.cells(run.experiment_id) if cell.counted]
    some = [cell.counted.evidence for cell in books.views.cells(run.experiment_id, whole=False) if cell.counted]
    assert whole == [EVIDENCE, EVIDENCE, {}]
    assert some == [{name: EVIDENCE[name] for name in TOLD_OF_MANY if name in EVIDENCE}] * 2 + [{}]
    assert some[0] is some[1]


def test_all_cells_are_the_same_as_each_by_its_key_however_many_there_are(books: Books) -> None:
    run, engine = books.experiment(1100), books.engine()
    for claim in books.ledger.claim(engine, keys(run)[:3], HERE.place):
        books.finish(claim, books.begin(claim), evidence=EVIDENCE)
    every = books.views.cells(run.experiment_id)
    assert [cell.key for cell in every] == keys(run)
    assert books.views.cells(run.experiment_id, list(reversed(keys(run)))) == every
    assert sum(bool(cell.attempts) for cell in every) == 3


def test_a_cell_that_is_done_while_all_are_read_is_read_as_it_was_before(books: Books) -> None:
    run, engine = books.experiment(1), books.engine()
    (claim,) = books.ledger.claim(engine, keys(run), HERE.place)
    attempt = books.begin(claim)
    finishing = iter([lambda: books.finish(claim, attempt)])

    def between(_: object, __: object, statement: str, *___: object) -> None:
        if "ORDER BY evals.cells.ordinal" in statement:  # the attempts have been read, the cells have not
            for finish in finishing:
                finish()

    event.listen(books.database.engine, "before_cursor_execute", between)
    (cell,) = books.views.cells(run.experiment_id)
    assert (cell.state, cell.counted, [one.outcome for one in cell.attempts]) == ("setup", None, [None])
    (cell,) = books.views.cells(run.experiment_id)
    assert (cell.state, cell.counted and cell.counted.outcome) == ("done", "ok")
