"""What sandboxes cost, in the ledger: held before each begins, counted when it has ended, and never above the budget."""

from __future__ import annotations

from collections.abc import Generator
from datetime import timedelta
from decimal import Decimal

import pytest
import sqlalchemy as sa
from support.ledgers import HERE, Books, keys

from eval_pipeline.domain.budget import SandboxTerms
from eval_pipeline.domain.cell import Outcome
from eval_pipeline.errors import BudgetExceeded
from eval_pipeline.store.ledger import Claim, OpenAttempt
from eval_pipeline.store.schema import attempts
from eval_pipeline.store.steps import sandboxes_ended

TERMS = SandboxTerms(usd_per_s=Decimal("0.001"), reserve_usd=Decimal("0.3"), rate="r-1")


@pytest.fixture
def books(database_url: str) -> Generator[Books]:
    opened = Books(database_url)
    yield opened
    opened.database.close()


def begin(books: Books, claim: Claim, reserve_usd: str = "0", terms: SandboxTerms = TERMS) -> OpenAttempt:
    return books.ledger.begin_attempt(
        claim,
        backend="modal",
        host_id=HERE.id,
        name_sandbox=lambda n: f"e-{claim.key}-{n}",
        reserve_usd=Decimal(reserve_usd),
        terms=terms,
    )


def test_both_parts_are_held_and_each_is_settled_by_itself(books: Books) -> None:
    run = books.experiment()
    claim = books.claim(run)
    attempt = begin(books, claim, "1")
    assert books.committed_usd(run) == Decimal("1.3")
    books.finish(claim, attempt, cost_usd=Decimal("0.25"))
    assert books.committed_usd(run) == Decimal("0.55")  # the sandbox still runs
    assert books.cell(claim.key).attempts[0].sandbox_cost_usd is None
    for seconds in (100.0, 999.0):  # the first end stands
        books.ledger.sandbox_ended(attempt.id, seconds)
    assert books.committed_usd(run) == Decimal("0.35")
    (view,) = books.cell(claim.key).attempts
    assert (view.sandbox_s, view.sandbox_cost_usd, view.sandbox_rate) == (100.0, Decimal("0.1"), "r-1")


def test_nothing_begins_that_could_go_above_the_budget(books: Books) -> None:
    run = books.experiment(3, budget_usd="1.0")
    first, second, third = books.ledger.claim(books.engine(), keys(run), HERE.place)
    attempt = begin(books, first, "0.2")
    begin(books, second, "0.2")
    with pytest.raises(BudgetExceeded, match=r"1\.0.* USD are spent or reserved; the next cell reserves 0\.5"):
        begin(books, third, "0.2")
    assert books.committed_usd(run) == Decimal("1.0")
    books.finish(first, attempt, cost_usd=Decimal(0))
    books.ledger.sandbox_ended(attempt.id, 10.0)
    with pytest.raises(BudgetExceeded):  # 0.01 spent and 0.5 reserved: 0.5 fits no more
        begin(books, third, "0.2")
    assert begin(books, third, "0.19").number == 1
    assert books.committed_usd(run) == Decimal("1.0")


def test_a_second_attempt_holds_its_own_and_the_spend_is_of_both(books: Books) -> None:
    run = books.experiment(budget_usd="0.65")
    claim = books.claim(run)
    lost = begin(books, claim)
    books.finish(claim, lost, Outcome.INFRA_FAILURE, cost_usd=Decimal(0))
    with pytest.raises(BudgetExceeded):
        begin(books, claim, "0.1")  # the lost one's sandbox may still run
    books.ledger.sandbox_ended(lost.id, 250.0)
    again = begin(books, claim, "0.1")
    books.finish(claim, again, cost_usd=Decimal("0.1"))
    books.ledger.sandbox_ended(again.id, 50.0)
    assert books.committed_usd(run) == Decimal("0.4")
    assert [one.sandbox_cost_usd for one in books.cell(claim.key).attempts] == [Decimal("0.25"), Decimal("0.05")]


def test_an_attempt_that_has_not_ended_is_not_settled(books: Books) -> None:
    run = books.experiment()
    attempt = begin(books, books.claim(run))
    books.ledger.sandbox_ended(attempt.id, 5.0)
    sandboxes_ended(books.database, [attempt.sandbox])
    assert books.committed_usd(run) == Decimal("0.3")


def test_it_counts_from_when_the_sandbox_was_asked_for(books: Books) -> None:
    run = books.experiment()
    claim = books.claim(run)
    attempt = begin(books, claim)
    books.ledger.agent_started(claim, attempt.id, 60, 40.0)
    row = books.attempt_row(attempt)
    assert (row.agent_started_at - row.sandbox_started_at).total_seconds() == pytest.approx(40, abs=0.1)
    books.ledger.agent_started(claim, attempt.id, 60, 0.0)  # an engine that adopted it knows nothing better
    assert books.attempt_row(attempt).sandbox_started_at == row.sandbox_started_at
    books.finish(claim, attempt)
    books.ledger.sandbox_ended(attempt.id, 0.0)
    row = books.attempt_row(attempt)
    assert row.sandbox_s >= 40
    assert row.sandbox_cost_usd == round(Decimal(str(row.sandbox_s)) * Decimal("0.001"), 9)


def test_of_one_that_an_engine_left_its_attempts_beginning_is_the_earliest(books: Books) -> None:
    run = books.experiment()
    claim = books.claim(run)
    attempt = begin(books, claim)
    hour = sa.func.now() - timedelta(hours=1)
    books.database.run(lambda c: c.execute(sa.update(attempts).where(attempts.c.id == attempt.id).values(created_at=hour)))
    books.finish(claim, attempt)
    books.ledger.sandbox_ended(attempt.id, None)
    assert books.attempt_row(attempt).sandbox_s == pytest.approx(3600, abs=60)


def test_what_the_reaper_ends_is_settled_for_all_its_attempts_at_once(books: Books) -> None:
    run = books.experiment(3)
    claims = books.ledger.claim(books.engine(), keys(run), HERE.place)
    left = [begin(books, claim) for claim in claims]
    for claim, attempt in zip(claims, left, strict=True):
        books.finish(claim, attempt, cost_usd=Decimal(0))
    assert books.committed_usd(run) == Decimal("0.9")
    sandboxes_ended(books.database, [attempt.sandbox for attempt in left[:2]])
    views = [books.cell(claim.key).attempts[0] for claim in claims]
    assert [view.sandbox_s is not None for view in views] == [True, True, False]
    spent = sum((view.sandbox_cost_usd or Decimal(0) for view in views), Decimal(0))
    assert books.committed_usd(run) == spent + Decimal("0.3")


def test_without_a_known_rate_the_time_is_known_and_the_cost_is_not(books: Books) -> None:
    run = books.experiment()
    claim = books.claim(run)
    attempt = begin(books, claim, terms=SandboxTerms())
    books.finish(claim, attempt, cost_usd=Decimal(0))
    books.ledger.sandbox_ended(attempt.id, 10.0)
    (view,) = books.cell(claim.key).attempts
    assert (view.sandbox_s, view.sandbox_cost_usd, view.sandbox_rate) == (10.0, None, None)
    assert books.committed_usd(run) == 0
    assert books.views.sandbox_usd_per_s(run.experiment_id, "a") is None


def test_the_mean_is_of_valid_attempts_of_that_app_on_that_backend(books: Books) -> None:
    run = books.experiment(3)
    assert books.views.mean_sandbox_s("tiny", "modal") is None
    claims = books.ledger.claim(books.engine(), keys(run), HERE.place)
    for claim, seconds, outcome in zip(claims, (10.0, 30.0, 999.0), (Outcome.OK, Outcome.OK, Outcome.INFRA_FAILURE), strict=True):
        attempt = begin(books, claim)
        books.finish(claim, attempt, outcome)
        books.ledger.sandbox_ended(attempt.id, seconds)
    assert books.views.mean_sandbox_s("tiny", "modal") == (20.0, 2)
    assert books.views.mean_sandbox_s("tiny", "local") is None
    assert books.views.mean_sandbox_s("other", "modal") is None
    assert books.views.sandbox_usd_per_s(run.experiment_id, "a") == Decimal("0.001")
