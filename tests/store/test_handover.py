"""Attempts that are handed over, taken, and given back: by lease and fence."""

from __future__ import annotations

from datetime import date

import pytest
from support.ledgers import HERE, THERE, Books, keys

from eval_pipeline.domain.handover import Handover
from eval_pipeline.domain.outcome import ServiceEnd, Stop
from eval_pipeline.errors import FenceLost
from eval_pipeline.store.handovers import claim_handed_over, give_back, hand_over
from eval_pipeline.store.ledger import Claim

END = Handover(
    exit_code=3,
    elapsed_s=1.5,
    stop=Stop.SERVICE,
    faults=("the proxy",),
    limits=(),
    service=ServiceEnd(exit_code=137, said="gone \ud800"),
    state_before=None,
    day=date(2026, 1, 2),
    evidence={"setup": {"total_s": 1.0}},
    bundle="a" * 64,
)


def take(books: Books, worker: str, most: int = 9, but: list[str] | None = None) -> list[Claim]:
    return claim_handed_over(books.database, worker, most, backends=["modal"], but=but or [])


def test_one_worker_has_it_and_a_dead_ones_is_taken_over(database_url: str) -> None:
    books = Books(database_url)
    run = books.experiment(2)
    engine = books.engine()
    first, second = books.ledger.claim(engine, keys(run), HERE.place)
    attempt = books.begin(first)
    books.begin(second)
    hand_over(books.database, first, attempt.id, END)
    with pytest.raises(FenceLost):
        books.finish(first, attempt)

    one, other = books.engine(THERE), books.engine(THERE)
    assert take(books, one, but=[first.key]) == []
    (mine,) = take(books, one)
    assert mine.open_attempt is not None and mine.open_attempt.handover is not None
    assert mine.open_attempt.handover.service == ServiceEnd(exit_code=137, said="gone \\ud800")
    assert (mine.key, mine.open_attempt.handover.stop) == (first.key, Stop.SERVICE)
    assert take(books, other) == []
    books.expire(one)
    (theirs,) = take(books, other)
    with pytest.raises(FenceLost):
        books.finish(mine, attempt)
    give_back(books.database, theirs)
    assert books.row(first.key).state == "persisting"
    assert books.views.in_other_hands([first.key]) == []
    assert books.views.in_other_hands([first.key], handed_over=True) == [first.key]

    elsewhere = books.engine(THERE)
    assert books.ledger.claim(elsewhere, keys(run), THERE.place, handed_over=False) == []
    (again,) = books.ledger.claim(elsewhere, keys(run), THERE.place)
    books.finish(again, attempt)
    assert books.cell(first.key).outcome == "ok"
    books.database.close()


def test_what_is_not_stored_is_for_those_who_reach_its_sandbox(database_url: str) -> None:
    books = Books(database_url)
    run = books.experiment(1)
    claim = books.claim(run)
    attempt = books.begin(claim, backend="modal")
    hand_over(books.database, claim, attempt.id, END.model_copy(update={"bundle": None}))
    worker = books.engine(THERE)
    assert claim_handed_over(books.database, worker, 1, backends=[]) == []
    assert len(take(books, worker)) == 1
    books.ledger.release(worker)
    assert books.row(claim.key).state == "persisting"
    books.database.close()
