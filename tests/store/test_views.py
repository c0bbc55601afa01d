"""What people read of the ledger: tallies, keys, who works on what, what is still to be logged."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from support.ledgers import HERE, Books, keys

from eval_pipeline.domain.cell import Outcome


@pytest.fixture
def books(database_url: str) -> Generator[Books]:
    opened = Books(database_url)
    yield opened
    opened.database.close()


def test_an_empty_ledger(books: Books) -> None:
    assert books.views.tallies() == {}
    assert books.views.cells("x") == []
    assert books.views.experiment_ids() == []
    assert books.views.open_sandboxes() == set()
    assert books.views.unlogged_without_owner() == []


def test_tallies_count_every_cell_once(books: Books) -> None:
    run, engine = books.experiment(6), books.engine()
    other = books.experiment(2, name="y")
    claims = books.ledger.claim(engine, keys(run), HERE.place)
    for claim, outcome in zip(claims, [Outcome.OK, Outcome.OK, Outcome.AGENT_ERROR, Outcome.INFRA_FAILURE], strict=False):
        books.finish(claim, books.begin(claim), outcome, last=True)
    books.begin(claims[4])
    tallies = books.views.tallies()
    mine = tallies[run.experiment_id]
    assert mine.states == {"done": 3, "failed": 1, "setup": 1, "open": 1}
    assert mine.outcomes == {"ok": 2, "agent_error": 1, "infra_failure": 1}
    assert (mine.n_done, mine.working) == (3, True)
    assert mine.finished_at == max(cell.updated_at for cell in books.views.cells(run.experiment_id))
    assert books.views.ended(run.experiment_id) == (4, 1)
    assert tallies[other.experiment_id].states == {"open": 2}
    assert not tallies[other.experiment_id].working
    assert books.views.tallies(other.experiment_id) == {other.experiment_id: tallies[other.experiment_id]}
    books.expire(engine)
    assert not books.views.tallies()[run.experiment_id].working


def test_keys_by_state_in_tensor_order(books: Books) -> None:
    run = books.experiment(12)
    claim = books.ledger.claim(books.engine(), [keys(run)[10]], HERE.place)[0]
    books.finish(claim, books.begin(claim))
    assert books.views.keys(run.experiment_id) == keys(run)
    assert books.views.keys(run.experiment_id, ["done"]) == [keys(run)[10]]
    assert books.views.keys(run.experiment_id, ["open", "failed"]) == [key for key in keys(run) if key != claim.key]
    assert books.views.keys(run.experiment_id, []) == []


def test_a_cells_attempts_come_in_their_order_and_with_no_one_elses(books: Books) -> None:
    run, engine = books.experiment(2), books.engine()
    first, second = books.ledger.claim(engine, keys(run), HERE.place)
    for claim in (first, second, first):
        books.finish(claim, books.begin(claim), Outcome.INFRA_FAILURE, error=claim.key)
    views = books.views.cells(run.experiment_id)
    assert [[attempt.number for attempt in view.attempts] for view in views] == [[1, 2], [1]]
    assert all(attempt.error == view.key for view in views for attempt in view.attempts)
    assert [view.key for view in books.views.cells(run.experiment_id, [second.key, "unknown"])] == [second.key]


def test_what_dagster_has_no_event_for(books: Books) -> None:
    run, engine = books.experiment(3), books.engine()
    claims = books.ledger.claim(engine, keys(run), HERE.place)
    for claim in claims[:2]:
        books.finish(claim, books.begin(claim))
    assert books.views.unlogged(run.experiment_id) == keys(run)[:2]
    assert books.views.unlogged_without_owner() == []  # its engine will
    books.ledger.mark_logged({key: books.row(key).attempt_id for key in keys(run)[:1]})
    books.ledger.mark_logged({})
    assert books.views.unlogged(run.experiment_id) == keys(run)[1:2]
    books.ledger.release(engine)
    assert books.views.unlogged_without_owner() == [run.experiment_id]
    books.ledger.mark_logged({keys(run)[1]: books.row(keys(run)[1]).attempt_id})
    assert books.views.unlogged_without_owner() == []


def test_a_result_that_replaces_a_discarded_one_is_logged_again(books: Books) -> None:
    run = books.experiment()
    claim = books.claim(run)
    books.finish(claim, books.begin(claim))
    books.ledger.mark_logged({claim.key: books.row(claim.key).attempt_id})
    books.ledger.discard([claim.key], "again")
    assert books.views.unlogged(run.experiment_id) == []
    again = books.claim(run)
    books.finish(again, books.begin(again))
    assert books.views.unlogged(run.experiment_id) == [claim.key]


def test_in_other_hands_is_what_a_living_engine_has_to_do(books: Books) -> None:
    run, engine = books.experiment(3), books.engine()
    done, _ = books.ledger.claim(engine, keys(run)[:2], HERE.place)
    books.finish(done, books.begin(done))
    assert books.views.in_other_hands(keys(run)) == [keys(run)[1]]
    books.leases.close_engine(engine)
    assert books.views.in_other_hands(keys(run)) == []
