"""The ledger on a real Postgres: who owns a cell, what an attempt costs, and what stays when an engine dies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from support.ledgers import AFTER_REBOOT, HERE, THERE, Books, claimed, keys
from support.locks import locked_arm, locked_case, run_lock, score_lock

from eval_pipeline.domain.cell import CellState, Outcome
from eval_pipeline.errors import BudgetExceeded, Cancelled, FenceLost, NotFound
from eval_pipeline.store.ledger import Claim
from eval_pipeline.store.rows import Stopping
from eval_pipeline.store.schema import attempts
from eval_pipeline.store.steps import has_ended, holds


@pytest.fixture
def books(database_url: str) -> Generator[Books]:
    opened = Books(database_url)
    yield opened
    opened.database.close()


# ---- experiments


def test_an_experiment_is_read_back_as_it_was_locked(books: Books) -> None:
    arm = locked_arm(config={"x": 1.5, "text": "é\n\u2028", "deep": {"list": [1, None, True, 1e-7]}, "large": 2**53})
    run = run_lock(cases=[locked_case("c"), locked_case("d")], arms=[arm], trials=2)
    score = score_lock(run, prices=[{"model": "m", "output": "0.10"}])
    assert books.ledger.create_experiment(run, score, repo="/app", baseline="a", budget_usd=Decimal("0.1"))
    row = books.ledger.experiment(run.experiment_id)
    assert (row.run, row.score, row.run.digest, row.score.digest) == (run, score, run.digest, score.digest)
    assert (row.baseline, row.budget_usd, row.committed_usd, row.n_cells) == ("a", Decimal("0.1"), 0, 4)
    assert [cell.key for cell in books.views.cells(run.experiment_id)] == keys(run)


def test_the_same_experiment_again_keeps_its_cells_and_takes_the_new_scoring(books: Books) -> None:
    run = books.experiment()
    books.ledger.request_cancel(run.experiment_id)
    claim = books.claim(run)
    score = score_lock(run, policy="raw")
    assert not books.ledger.create_experiment(run, score, repo="/moved", baseline="a", budget_usd=Decimal(3))
    row = books.ledger.experiment("x")
    assert (row.score, row.repo, row.baseline, row.budget_usd) == (score, "/moved", "a", Decimal(3))
    assert row.cancel_requested_at is None
    assert books.row(claim.key).fence == claim.fence


def test_two_that_create_one_experiment_at_once(books: Books) -> None:
    run = run_lock(cases=[locked_case(f"c{n}") for n in range(50)])

    def create(_: int) -> bool:
        return books.ledger.create_experiment(run, score_lock(run), repo="/app", baseline=None, budget_usd=None)

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(create, range(6))) == [False] * 5 + [True]
    assert len(books.views.cells(run.experiment_id)) == 50


def test_names_mean_the_newest_and_ids_mean_themselves(books: Books) -> None:
    old, new = books.experiment(), books.experiment(trials=2)
    assert books.ledger.experiment("x").id == new.experiment_id
    assert books.ledger.experiment(old.experiment_id).id == old.experiment_id
    with pytest.raises(NotFound, match="no experiment 'y'") as caught:
        books.ledger.experiment("y")
    assert caught.value.hint == "known: x"


def test_a_name_that_is_nearly_one_is_told_which(books: Books) -> None:
    books.experiment(name="weekly")
    for n in range(12):
        books.experiment(name=f"climb-s{n}")
    with pytest.raises(NotFound) as caught:
        books.ledger.experiment("wekly")
    assert caught.value.hint == "did you mean 'weekly'?"


def test_resumable_is_the_newest_of_the_same_file_wherever_its_refs_went(books: Books) -> None:
    old = books.experiment()
    moved = run_lock("x", [locked_case("c0")], [locked_arm(tree="0" * 40)])
    found = books.ledger.resumable("x", moved.source_digest)
    assert found is not None and found.id == old.experiment_id
    assert books.ledger.resumable("y", moved.source_digest) is None
    assert books.ledger.resumable("x", run_lock("x", trials=3).source_digest) is None


# ---- claims


def test_cells_are_claimed_in_tensor_order_and_once(books: Books) -> None:
    run = books.experiment(12)
    one, other = books.engine(), books.engine()
    assert claimed(books.ledger.claim(one, keys(run)[:8], HERE.place)) == keys(run)[:8]
    assert claimed(books.ledger.claim(other, keys(run), HERE.place)) == keys(run)[8:]
    assert books.ledger.claim(other, keys(run)[:8], HERE.place) == []
    assert books.views.in_other_hands(keys(run)) == keys(run)


def test_engines_that_race_never_get_the_same_cell(books: Books) -> None:
    run = books.experiment(60, trials=2)
    engines = [books.engine() for _ in range(8)]
    start = threading.Barrier(8)

    def work(engine: str) -> list[str]:
        start.wait()
        mine = list[str]()
        for at in range(0, 120, 20):
            mine += claimed(books.ledger.claim(engine, keys(run)[at : at + 20], HERE.place))
        return mine

    with ThreadPoolExecutor(8) as pool:
        taken = [key for mine in pool.map(work, engines) for key in mine]
    assert sorted(taken) == sorted(keys(run))


def test_cells_of_a_dead_engine_are_taken_over_and_it_is_shut_out(books: Books) -> None:
    run, dead = books.experiment(2), books.engine()
    old, _ = books.ledger.claim(dead, keys(run), HERE.place)
    left = books.begin(old)
    books.expire(dead)
    new, _ = books.ledger.claim(books.engine(AFTER_REBOOT), keys(run), AFTER_REBOOT.place)
    assert (new.key, new.open_attempt) == (old.key, left)
    assert new.fence > old.fence
    with pytest.raises(FenceLost, match=old.key):
        books.finish(old, left)
    assert books.attempt_row(left).ended_at is None


def test_a_closed_engines_cells_are_free_at_once(books: Books) -> None:
    run, ended = books.experiment(), books.engine()
    books.claim(run, ended)
    books.leases.close_engine(ended)
    assert claimed(books.ledger.claim(books.engine(), keys(run), HERE.place)) == keys(run)


def test_local_sandboxes_of_another_place_stay_its_own(books: Books) -> None:
    run, dead = books.experiment(3), books.engine(THERE)
    local, modal, ended = books.ledger.claim(dead, keys(run), THERE.place)
    left = books.begin(local, THERE)
    books.begin(modal, THERE, backend="modal")
    books.finish(ended, books.begin(ended, THERE), Outcome.INFRA_FAILURE)
    books.expire(dead)
    assert claimed(books.ledger.claim(books.engine(), keys(run), HERE.place)) == [modal.key, ended.key]
    (back,) = books.ledger.claim(books.engine(THERE), [local.key], THERE.place)
    assert back.open_attempt == left


def test_done_cells_are_never_claimed_and_failed_ones_are(books: Books) -> None:
    run, engine = books.experiment(2), books.engine()
    done, failed = books.ledger.claim(engine, keys(run), HERE.place)
    books.finish(done, books.begin(done))
    books.finish(failed, books.begin(failed), Outcome.INFRA_FAILURE, last=True)
    assert books.views.tallies()[run.experiment_id].states == {"done": 1, "failed": 1}
    books.ledger.release(engine)
    assert claimed(books.ledger.claim(books.engine(), keys(run), HERE.place)) == [failed.key]


def _begin(books: Books, claim: Claim) -> None:
    books.begin(claim)


def _start(books: Books, claim: Claim) -> None:
    books.ledger.agent_started(claim, 1, 10.0)


def _persist(books: Books, claim: Claim) -> None:
    books.ledger.persisting(claim)


def _finish(books: Books, claim: Claim) -> None:
    books.ledger.finish_attempt(claim, 1, _result(), last=False)


def _result() -> Any:
    from eval_pipeline.domain.cell import AttemptResult

    return AttemptResult(outcome=Outcome.OK, cost_usd=Decimal(1))


@pytest.mark.parametrize("write", [_begin, _start, _persist, _finish])
@pytest.mark.parametrize("how", ["taken", "released", "discarded"])
def test_whoever_lost_the_fence_writes_nothing(books: Books, write: Callable[[Books, Claim], None], how: str) -> None:
    run, engine = books.experiment(budget_usd="10"), books.engine()
    claim = books.claim(run, engine)
    attempt = books.begin(claim, reserve_usd="2")
    if how == "taken":
        books.expire(engine)
        books.claim(run)
    elif how == "released":
        books.ledger.release(engine)
    else:
        books.finish(claim, attempt)
        books.ledger.discard([claim.key], "wrong world")
    before = (books.row(claim.key), books.attempt_row(attempt), books.committed_usd(run))
    with pytest.raises(FenceLost, match="another engine owns"):
        write(books, claim)
    assert (books.row(claim.key), books.attempt_row(attempt), books.committed_usd(run)) == before


# ---- attempts


def test_an_attempt_from_intent_to_result(books: Books) -> None:
    run = books.experiment(budget_usd="10")
    claim = books.claim(run)
    attempt = books.begin(claim, reserve_usd="2")
    assert (attempt.number, attempt.sandbox, attempt.agent_started_at) == (1, f"e-{claim.key}-1", None)
    assert books.row(claim.key).state == CellState.SETUP
    assert books.views.open_sandboxes() == {attempt.sandbox}
    books.ledger.agent_started(claim, attempt.id, 10.0)
    assert books.row(claim.key).state == CellState.RUNNING
    books.ledger.persisting(claim)
    assert books.row(claim.key).state == CellState.PERSISTING
    more: dict[str, Any] = {
        "bundle": "b",
        "usage": [{"model": "m"}],
        "latency_s": 1.5,
        "evidence": {"n": 1},
        "error_class": "provider",
    }
    books.finish(claim, attempt, Outcome.AGENT_ERROR, error="said so", cost_usd=Decimal("0.000000001"), **more)
    view = books.cell(claim.key)
    assert (view.state, view.outcome, view.logged) == (CellState.DONE, Outcome.AGENT_ERROR, False)
    assert view.counted is not None and view.counted == view.attempts[0]
    stored = view.counted
    assert (stored.bundle, stored.usage, stored.latency_s, stored.evidence) == ("b", [{"model": "m"}], 1.5, {"n": 1})
    assert (stored.error, stored.error_class, stored.cost_usd) == ("said so", "provider", Decimal("0.000000001"))
    assert stored.ended_at is not None and stored.ended_at.utcoffset() == timedelta(0)
    assert books.committed_usd(run) == Decimal("0.000000001")
    assert books.views.open_sandboxes() == set()


def test_an_attempt_is_begun_once_however_often_it_is_asked_for(books: Books) -> None:
    run = books.experiment(budget_usd="10")
    claim = books.claim(run)
    assert books.begin(claim, reserve_usd="2") == books.begin(claim, reserve_usd="2")
    assert books.committed_usd(run) == 2


def test_attempts_are_numbered_and_one_counts(books: Books) -> None:
    run, engine = books.experiment(), books.engine()
    claim = books.claim(run, engine)
    for number in (1, 2):
        attempt = books.begin(claim)
        assert attempt.number == number
        books.finish(claim, attempt, Outcome.INFRA_FAILURE, error="lost")
        assert books.cell(claim.key).counted is None
        assert (books.row(claim.key).state, books.row(claim.key).engine_id) == (CellState.OPEN, engine)
    books.finish(claim, books.begin(claim))
    view = books.cell(claim.key)
    assert view.counted is not None and view.counted.number == 3
    assert [attempt.outcome for attempt in view.attempts] == [Outcome.INFRA_FAILURE, Outcome.INFRA_FAILURE, Outcome.OK]


@pytest.mark.parametrize(
    "outcome, last, state",
    [
        (Outcome.OK, False, CellState.DONE),
        (Outcome.REFUSAL, True, CellState.DONE),
        (Outcome.AGENT_TIMEOUT, True, CellState.DONE),
        (Outcome.BUDGET_EXCEEDED, False, CellState.DONE),
        (Outcome.INFRA_FAILURE, False, CellState.OPEN),
        (Outcome.INFRA_FAILURE, True, CellState.FAILED),
        (Outcome.CANCELLED, True, CellState.OPEN),
    ],
)
def test_where_an_outcome_leaves_its_cell(books: Books, outcome: Outcome, last: bool, state: CellState) -> None:
    claim = books.claim(books.experiment())
    books.finish(claim, books.begin(claim), outcome, last=last)
    assert (books.row(claim.key).state, books.row(claim.key).outcome) == (state, outcome)
    assert (books.cell(claim.key).counted is not None) == outcome.valid


def test_a_deadline_is_set_once_and_not_moved(books: Books) -> None:
    run, engine = books.experiment(), books.engine()
    claim = books.claim(run, engine)
    attempt = books.begin(claim)
    first_s = books.ledger.agent_started(claim, attempt.id, 100.0).left_s
    deadline, started = books.attempt_row(attempt).deadline_at, books.attempt_row(attempt).agent_started_at
    assert abs(deadline - started - timedelta(seconds=100)) < timedelta(seconds=5)
    assert 90 < first_s <= 100
    books.expire(engine)
    adopted = books.claim(run)
    assert adopted.open_attempt is not None and adopted.open_attempt.agent_started_at == started
    assert books.ledger.agent_started(adopted, attempt.id, 9999.0).left_s < first_s
    assert (books.attempt_row(attempt).deadline_at, books.attempt_row(attempt).agent_started_at) == (deadline, started)


def test_what_an_engine_had_decided_is_known_to_the_next_one_and_only_a_holder_decides(books: Books) -> None:
    run, engine = books.experiment(), books.engine()
    claim = books.claim(run, engine)
    attempt = books.begin(claim)
    books.ledger.stopping(claim, attempt.id, Stopping(reason="cancelled on request \0", outcome=Outcome.CANCELLED))
    books.expire(engine)
    adopted = books.claim(run)
    assert adopted.open_attempt is not None
    assert adopted.open_attempt.stopping == Stopping(reason="cancelled on request \\0", outcome="cancelled")
    with pytest.raises(FenceLost):
        books.ledger.stopping(claim, attempt.id, Stopping(reason="deadline"))
    assert (holds(books.database, claim), holds(books.database, adopted)) == (False, True)
    assert not has_ended(books.database, attempt.id)
    books.finish(adopted, attempt, Outcome.CANCELLED)
    assert has_ended(books.database, attempt.id)


def test_a_deadline_that_is_over_is_told_as_what_it_is(books: Books) -> None:
    claim = books.claim(books.experiment())
    attempt = books.begin(claim)
    books.ledger.agent_started(claim, attempt.id, 10.0)
    past = sa.update(attempts).values(deadline_at=sa.func.now() - timedelta(seconds=50))
    books.database.run(lambda c: c.execute(past))
    assert books.ledger.agent_started(claim, attempt.id, 10.0).left_s <= -50


def test_a_result_written_twice_counts_once(books: Books) -> None:
    run = books.experiment(budget_usd="10")
    claim = books.claim(run)
    attempt = books.begin(claim, reserve_usd="2")
    books.finish(claim, attempt, cost_usd=Decimal(1))
    once = (books.cell(claim.key).counted, books.committed_usd(run), books.row(claim.key).state)
    books.finish(claim, attempt, cost_usd=Decimal(1))
    assert (books.cell(claim.key).counted, books.committed_usd(run), books.row(claim.key).state) == once


@pytest.mark.parametrize("late", [Outcome.CANCELLED, Outcome.INFRA_FAILURE, Outcome.AGENT_ERROR])
def test_the_first_result_of_an_attempt_stands(books: Books, late: Outcome) -> None:
    run = books.experiment(budget_usd="10")
    claim = books.claim(run)
    attempt = books.begin(claim, reserve_usd="2")
    books.finish(claim, attempt, cost_usd=Decimal(1))
    books.finish(claim, attempt, late, last=True, cost_usd=Decimal(7))
    view = books.cell(claim.key)
    assert (view.state, view.outcome) == (CellState.DONE, Outcome.OK)
    assert view.counted is not None and view.counted.cost_usd == 1
    assert books.committed_usd(run) == 1


def test_a_valid_cell_is_not_begun_again(books: Books) -> None:
    claim = books.claim(books.experiment())
    books.finish(claim, books.begin(claim))
    with pytest.raises(FenceLost):
        books.begin(claim)
    assert books.row(claim.key).state == CellState.DONE


# ---- money


def test_spend_is_the_sum_over_all_attempts(books: Books) -> None:
    run = books.experiment(budget_usd="10")
    claim = books.claim(run)
    costs = [("0.1", Outcome.INFRA_FAILURE), (None, Outcome.INFRA_FAILURE), ("0.2", Outcome.OK)]
    for cost, outcome in costs:
        more: dict[str, Any] = {} if cost is None else {"cost_usd": Decimal(cost)}
        books.finish(claim, books.begin(claim, reserve_usd="2"), outcome, **more)
    assert books.committed_usd(run) == Decimal("2.3")  # the unknown one keeps what was reserved for it
    books.ledger.discard([claim.key], "again")
    assert books.committed_usd(run) == Decimal("2.3")


def test_a_budget_is_never_reserved_twice(books: Books) -> None:
    run, engine = books.experiment(20, budget_usd="1"), books.engine()
    claims = books.ledger.claim(engine, keys(run), HERE.place)
    start = threading.Barrier(20)

    def work(claim: Claim) -> bool:
        start.wait()
        try:
            books.begin(claim, reserve_usd="0.15")
        except BudgetExceeded as error:
            assert "of 1" in str(error) and error.hint is not None
            return False
        return True

    with ThreadPoolExecutor(20) as pool:
        assert list(pool.map(work, claims)).count(True) == 6
    assert books.committed_usd(run) == Decimal("0.90")
    assert len(books.views.open_sandboxes()) == 6


def test_what_an_attempt_did_not_use_is_free_again(books: Books) -> None:
    run, engine = books.experiment(2, budget_usd="1"), books.engine()
    first, second = books.ledger.claim(engine, keys(run), HERE.place)
    attempt = books.begin(first, reserve_usd="0.6")
    with pytest.raises(BudgetExceeded):
        books.begin(second, reserve_usd="0.6")
    assert books.row(second.key).state == CellState.OPEN
    books.finish(first, attempt, cost_usd=Decimal("0.4"))
    books.begin(second, reserve_usd="0.6")
    assert books.committed_usd(run) == 1


def test_a_cost_beyond_all_measure_is_kept_as_it_is(books: Books) -> None:
    run = books.experiment()
    claim = books.claim(run)
    cost = Decimal("123456789012345678901234.000000000000000005")
    books.finish(claim, books.begin(claim), cost_usd=cost)
    assert (books.committed_usd(run), books.cell(claim.key).attempts[0].cost_usd) == (cost, cost)


# ---- the end of things


def test_a_cancelled_experiment_begins_nothing(books: Books) -> None:
    run = books.experiment(2)
    first, second = books.ledger.claim(books.engine(), keys(run), HERE.place)
    attempt = books.begin(first)
    assert not books.ledger.cancel_requested(run.experiment_id)
    books.ledger.request_cancel(run.experiment_id)
    assert books.ledger.cancel_requested(run.experiment_id)
    with pytest.raises(Cancelled):
        books.begin(second)
    books.finish(first, attempt, Outcome.CANCELLED)
    assert books.views.tallies()[run.experiment_id].states == {"open": 2}
    books.ledger.clear_cancel(run.experiment_id)
    assert books.begin(first).number == 2


def test_release_gives_back_what_is_not_done_with_its_open_attempt(books: Books) -> None:
    run, engine = books.experiment(4), books.engine()
    done, failed, flying, idle = books.ledger.claim(engine, keys(run), HERE.place)
    books.finish(done, books.begin(done))
    books.finish(failed, books.begin(failed), Outcome.INFRA_FAILURE, last=True)
    attempt = books.begin(flying)
    books.ledger.agent_started(flying, attempt.id, 10.0)
    books.ledger.release(engine)
    assert [books.row(key).state for key in keys(run)] == ["done", "failed", "open", "open"]
    assert all(books.row(key).engine_id is None for key in keys(run))
    later = books.ledger.claim(books.engine(), keys(run), HERE.place)
    adopted = {claim.key: claim.open_attempt.id for claim in later if claim.open_attempt is not None}
    assert adopted == {flying.key: attempt.id}
    assert claimed(later) == [failed.key, flying.key, idle.key]


def test_discard_opens_done_cells_and_keeps_what_they_were(books: Books) -> None:
    run, engine = books.experiment(3), books.engine()
    done, other, _ = books.ledger.claim(engine, keys(run), HERE.place)
    books.finish(done, books.begin(done))
    books.finish(other, books.begin(other))
    books.ledger.mark_logged({done.key: books.row(done.key).attempt_id})
    assert books.cell(done.key).logged
    assert books.ledger.discard([done.key, keys(run)[2]], "wrong \0 \ud800") == 1
    view = books.cell(done.key)
    assert (view.state, view.outcome, view.counted, view.logged) == (CellState.OPEN, None, None, False)
    assert [attempt.discarded for attempt in view.attempts] == ["wrong \\0 \\ud800"]
    assert books.cell(other.key).counted is not None
    assert books.ledger.discard([done.key], "again") == 0
    (again,) = books.ledger.claim(books.engine(), [done.key], HERE.place)
    assert books.begin(again).number == 2


HOSTILE = "a\0b \ud800 \udfff \U0001f600 \x1b[31m"
KEPT = "a\\0b \\ud800 \\udfff \U0001f600 \x1b[31m"


def test_text_that_postgres_cannot_hold_is_written_as_escapes(books: Books) -> None:
    claim = books.claim(books.experiment())
    evidence = {"skipped": {HOSTILE: [HOSTILE, 1, None, {"deep": HOSTILE}]}}
    books.finish(claim, books.begin(claim), Outcome.AGENT_ERROR, error=HOSTILE, usage=[{"model": HOSTILE}], evidence=evidence)
    stored = books.cell(claim.key).attempts[0]
    assert (stored.error, stored.usage) == (KEPT, [{"model": KEPT}])
    assert stored.evidence == {"skipped": {KEPT: [KEPT, 1, None, {"deep": KEPT}]}}
