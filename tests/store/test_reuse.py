"""Which results count for the cells of another experiment, and what that changes where they were made: nothing."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from support.ledgers import HERE, Books, keys
from support.locks import locked_arm, locked_case, run_lock, score_lock

from eval_pipeline.domain.cell import Outcome
from eval_pipeline.domain.lock import RunLock
from eval_pipeline.store.reuse import Reuse


@pytest.fixture
def books(database_url: str) -> Generator[Books]:
    opened = Books(database_url)
    yield opened
    opened.database.close()


def experiment(books: Books, name: str, **more: Any) -> RunLock:
    run = run_lock(name, **more)
    books.ledger.create_experiment(run, score_lock(run), repo="/app", baseline=None, budget_usd=None)
    return run


def finish(books: Books, run: RunLock, *outcomes: Outcome) -> None:
    """The experiment's first free cells, one an outcome."""
    for outcome in outcomes:
        free = books.views.keys(run.experiment_id, ["open"])[:1]
        (claim,) = books.ledger.claim(books.engine(), free, HERE.place)
        books.finish(claim, books.begin(claim), outcome, bundle=f"bundle of {claim.key}", latency_s=2.0, last=True)


def planned(books: Books, run: RunLock) -> dict[str, str]:
    return Reuse(books.database).planned(run.experiment_id, {str(key): run.cell_digest(key) for key in run.cell_keys()})


def adopt(books: Books, run: RunLock) -> set[str]:
    return set(Reuse(books.database).adopt(run.experiment_id))


def test_what_was_added_is_all_that_is_left_to_run(books: Books) -> None:
    old = experiment(books, "x", trials=2)
    finish(books, old, Outcome.OK, Outcome.AGENT_TIMEOUT)
    arms = [locked_arm("renamed"), locked_arm("new", config={"k": 1})]
    new = run_lock("y", [locked_case("c"), locked_case("d")], arms, trials=3)
    was = keys(old)
    expected = {f"{new.experiment_id}/w.c/renamed/{n}": was[n] for n in range(2)}
    assert planned(books, new) == expected  # before it is in the ledger, and after
    experiment(books, "y", cases=[locked_case("c"), locked_case("d")], arms=arms, trials=3)
    assert planned(books, new) == expected
    assert adopt(books, new) == set(expected)
    assert (planned(books, new), adopt(books, new)) == ({}, set())
    cell = books.cell(next(iter(expected)))
    assert (cell.state, cell.outcome, cell.adopted_from, cell.attempts) == ("done", "ok", was[0], [])
    assert cell.counted is not None and (cell.counted.bundle, cell.counted.latency_s) == (f"bundle of {was[0]}", 2.0)
    claimed = books.ledger.claim(books.engine(), keys(new), HERE.place)
    assert {claim.key for claim in claimed} == set(keys(new)) - set(expected)
    assert books.committed_usd(new) == 0
    assert books.cell(was[0]).adopted_from is None and books.cell(was[0]).counted is not None


@pytest.mark.parametrize("outcome", [Outcome.INFRA_FAILURE, Outcome.CANCELLED])
def test_what_is_no_result_is_not_taken(books: Books, outcome: Outcome) -> None:
    finish(books, experiment(books, "x"), outcome)
    assert adopt(books, experiment(books, "y")) == set()


@pytest.mark.parametrize("more", [{"seed": 1}, {"arms": [locked_arm(tree="e" * 40)]}, {"worlds": {"w": "f" * 64}}])
def test_another_run_is_not_taken(books: Books, more: dict[str, Any]) -> None:
    finish(books, experiment(books, "x"), Outcome.OK)
    assert adopt(books, experiment(books, "y", **more)) == set()


def test_two_equal_arms_stay_two_samples(books: Books) -> None:
    finish(books, experiment(books, "x"), Outcome.OK)
    twins = experiment(books, "y", arms=[locked_arm("a"), locked_arm("b")])
    assert adopt(books, twins) == {keys(twins)[0]}
    finish(books, twins, Outcome.OK)
    again = experiment(books, "z", arms=[locked_arm("a"), locked_arm("b")])
    assert adopt(books, again) == set(keys(again))
    taken = [books.cell(key) for key in keys(again)]
    assert len({cell.counted.id for cell in taken if cell.counted}) == 2
    assert taken[1].adopted_from == keys(twins)[1]  # from where it ran, not from who took it


def test_the_oldest_of_several_is_taken(books: Books) -> None:
    first, second = experiment(books, "x"), experiment(books, "y")
    finish(books, second, Outcome.OK)
    finish(books, first, Outcome.OK)
    third = experiment(books, "z")
    adopt(books, third)
    assert books.cell(keys(third)[0]).adopted_from == keys(second)[0]


def test_a_discarded_result_is_not_taken_and_discarding_a_taken_one_harms_nobody(books: Books) -> None:
    old, new = experiment(books, "x"), experiment(books, "y")
    finish(books, old, Outcome.OK)
    adopt(books, new)
    assert books.ledger.discard(keys(new), "to see it again") == 1
    cell = books.cell(keys(new)[0])
    assert (cell.state, cell.counted, cell.adopted_from) == ("open", None, None)
    assert adopt(books, new) == set()  # who discards it wants it run
    (kept,) = [books.cell(keys(old)[0])]
    assert kept.counted is not None and kept.counted.discarded is None
    books.ledger.discard(keys(old), "wrong")
    assert Reuse(books.database).takers(keys(old)) == []
    assert adopt(books, experiment(books, "z")) == set()


def test_what_an_engine_works_on_is_left_to_it(books: Books) -> None:
    new, old = experiment(books, "y"), experiment(books, "x")
    claim = books.claim(new)
    finish(books, old, Outcome.OK)
    assert (planned(books, new), adopt(books, new)) == ({}, set())
    books.finish(claim, books.begin(claim), Outcome.OK, bundle="its own")
    assert books.cell(claim.key).adopted_from is None


def test_who_discards_a_result_can_know_who_took_it_over(books: Books) -> None:
    old, new, third = experiment(books, "x"), experiment(books, "y"), experiment(books, "z")
    finish(books, old, Outcome.OK)
    adopt(books, new)
    adopt(books, third)
    assert Reuse(books.database).takers(keys(old)) == sorted(keys(new)[:1] + keys(third)[:1])
    assert Reuse(books.database).takers(keys(new)) == [], "it has made nothing itself"
