"""What is spent and held, against what may be: of an experiment, and of the installation's month."""

from __future__ import annotations

import random
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
import sqlalchemy as sa
from support.ledgers import HERE, Books, keys
from support.locks import score_lock

from eval_pipeline.domain.budget import SandboxTerms
from eval_pipeline.domain.cell import AttemptResult, Outcome
from eval_pipeline.domain.lock import RunLock
from eval_pipeline.errors import BudgetExceeded, FenceLost
from eval_pipeline.store.judge_turns import CallEnd, CallIntent, Ended, JudgeTurns
from eval_pipeline.store.ledger import Claim, OpenAttempt
from eval_pipeline.store.schema import attempts
from eval_pipeline.store.spending import Spending

pytestmark = pytest.mark.slow

HELD = Decimal("0.10")
TERMS = SandboxTerms(usd_per_s=Decimal("0.001"), reserve_usd=Decimal("0.05"), rate="r")
_TOTAL = sa.text("""
select coalesce(sum(coalesce(cost_usd, reserved_usd) + coalesce(sandbox_cost_usd, reserved_sandbox_usd)), 0) from evals.attempts
where split_part(cell_key, '/', 1) = any(:experiments)""")


@pytest.fixture
def books(database_url: str) -> Generator[Books]:
    opened = Books(database_url)
    yield opened
    opened.database.close()


def total(books: Books, *runs: RunLock) -> Decimal:
    """From the attempts' rows alone."""
    names = [run.experiment_id for run in runs]
    return books.database.run(lambda c: c.execute(_TOTAL, {"experiments": names}).scalar_one())


def begin(books: Books, claim: Claim) -> OpenAttempt:
    return books.ledger.begin_attempt(
        claim,
        backend="local",
        host_id=HERE.id,
        name_sandbox=lambda n: f"e-{claim.key}-{n}",
        reserve_usd=HELD,
        terms=TERMS,
    )


def drive(books: Books, run: RunLock, seed: int, start: threading.Barrier) -> int:
    """One engine: begins what it can, ends it as chance will, dies now and then and leaves its attempts behind. How often it was refused."""
    chance, refused = random.Random(seed), 0
    start.wait()
    engine = books.engine()
    for _ in range(12):
        mine = keys(run)
        chance.shuffle(mine)
        for claim in books.ledger.claim(engine, mine[:4], HERE.place):
            try:
                attempt = claim.open_attempt or begin(books, claim)
                if chance.random() < 0.2:
                    continue  # an orphan: the next engine finds it
                outcome = Outcome.INFRA_FAILURE if chance.random() < 0.3 else Outcome.OK
                cost = None if chance.random() < 0.1 else HELD * chance.randint(0, 10) / 10
                books.finish(claim, attempt, outcome, cost_usd=cost)
                books.ledger.sandbox_ended(attempt.id, chance.uniform(0, 0.001))
            except BudgetExceeded:
                refused += 1
            except FenceLost:
                pass
        if chance.random() < 0.4:
            books.expire(engine)
            engine = books.engine()
    return refused


@pytest.mark.parametrize("seed", range(3))
def test_engines_that_come_and_go_never_hold_more_than_there_is(books: Books, seed: int) -> None:
    runs = [books.experiment(40, budget_usd="2.00", name=name) for name in ("x", "y")]
    spending, cap = Spending(books.database), Decimal("3.20")
    spending.set(monthly_cap_usd=cap)
    start, over, done = threading.Barrier(5), list[str](), threading.Event()

    def watch() -> None:
        start.wait()
        while not done.is_set():
            if max(total(books, run) for run in runs) > 2 or total(books, *runs) > cap:
                over.append(f"{[total(books, run) for run in runs]}")

    with ThreadPoolExecutor(5) as pool:
        watching = pool.submit(watch)
        engines = [pool.submit(drive, books, runs[n % 2], seed * 10 + n, start) for n in range(4)]
        refused = sum(engine.result() for engine in engines)
        done.set()
        watching.result()
    assert over == []
    assert refused > 0
    assert [books.committed_usd(run) for run in runs] == [total(books, run) for run in runs]
    assert spending.month().committed_usd == total(books, *runs) <= cap


def test_an_orphan_holds_its_money_until_somebody_ends_it(books: Books) -> None:
    run, dead = books.experiment(2, budget_usd="0.20"), books.engine()
    left = begin(books, books.claim(run, dead))
    books.expire(dead)
    orphan, other = books.ledger.claim(books.engine(), keys(run), HERE.place)
    with pytest.raises(BudgetExceeded):
        begin(books, other)
    assert orphan.open_attempt is not None and orphan.open_attempt.id == left.id
    books.finish(orphan, left, cost_usd=Decimal("0.01"))
    books.ledger.sandbox_ended(left.id, 1.0)
    assert begin(books, other).number == 1


def test_a_cap_counts_everything_of_its_month_and_nothing_of_another(books: Books) -> None:
    one, two = books.experiment(3, name="x"), books.experiment(3, name="y")
    spending = Spending(books.database)
    turns = JudgeTurns(books.database, two.experiment_id, judge_version="v", pool="p", per_minute=6000, deadline_s=9)
    claims = books.ledger.claim(books.engine(), [*keys(one), *keys(two)], HERE.place)
    attempt = begin(books, claims[0])
    books.finish(claims[0], attempt, cost_usd=Decimal("0.03"))
    books.ledger.sandbox_ended(attempt.id, 10.0)
    intent = CallIntent(cell_key="c", criterion="k", request_digest="d", vote=0, reserve_usd=Decimal("0.5"))
    (begun,) = turns.take([], [intent])
    end = CallEnd(status="ok", error=None, usage=None, cost_usd=Decimal("0.07"), latency_s=1.0)
    assert begun.call is not None
    turns.take([Ended(call=begun.call, end=end, verdict=None)], [])
    assert spending.month().committed_usd == Decimal("0.11")
    assert {row["experiment"]: row["committed_usd"] for row in spending.by_experiment()} == {
        one.experiment_id: Decimal("0.04"),
        two.experiment_id: Decimal("0.07"),
    }
    assert spending.month().month == datetime.now(UTC).date().replace(day=1)
    spending.set(monthly_cap_usd=Decimal("0.26"))
    begin(books, claims[1])  # all of it is spent or held now
    with pytest.raises(
        BudgetExceeded, match=r"0\.260* of 0\.26 USD of this installation's cap for \d{4}-\d\d are spent or reserved"
    ) as caught:
        begin(books, claims[2])
    assert "evals budget --monthly-cap" in (caught.value.hint or "")
    assert "this installation's cap" in str(turns.take([], [intent])[0].refused)
    assert books.row(claims[2].key).state == "open"
    # what began 40 days ago is settled in its own month
    past = sa.func.now() - timedelta(days=40)
    books.database.run(lambda c: c.execute(sa.text("delete from evals.months")))
    books.database.run(lambda c: c.execute(sa.update(attempts).values(created_at=past)))
    (open_one,) = [claim for claim in claims if claim.key == claims[1].key]
    left = books.cell(open_one.key).attempts[0]
    books.ledger.finish_attempt(open_one, left.id, _ok(), last=False)
    assert spending.month().committed_usd == 0
    assert begin(books, claims[2]).number == 1


def _ok() -> AttemptResult:
    return AttemptResult(outcome=Outcome.OK, cost_usd=Decimal("0.02"))


def test_cells_are_counted_when_they_begin_and_a_second_attempt_is_no_second_cell(books: Books) -> None:
    run = books.experiment(3)
    store(books, run, budget_cells=2)
    first, second, third = books.ledger.claim(books.engine(), keys(run), HERE.place)
    books.finish(first, begin(books, first), Outcome.INFRA_FAILURE)
    begin(books, second)
    begin(books, first)
    with pytest.raises(BudgetExceeded, match="2 of 3 cells were begun, and its budget is 2"):
        begin(books, third)
    assert books.ledger.experiment(run.experiment_id).begun_cells == 2
    store(books, run, budget_cells=3)
    assert begin(books, third).number == 1


def test_who_created_an_experiment_stays_and_its_budgets_can_be_raised(books: Books) -> None:
    run = books.experiment(1, name="z")
    assert books.ledger.experiment("z").created_by is None
    store(books, run, created_by="somebody", budget_wall_s=60.0)
    row = books.ledger.experiment("z")
    assert (row.created_by, row.budget_wall_s, row.budget_cells) == (None, 60.0, None)  # it was there before


def store(books: Books, run: RunLock, **more: object) -> None:
    books.ledger.create_experiment(run, score_lock(run), repo="/app", baseline=None, budget_usd=None, **more)  # type: ignore[arg-type]


def test_the_time_worked_is_that_of_attempts_under_way_and_overlaps_count_once(books: Books) -> None:
    run = books.experiment(4)
    spending, engine = Spending(books.database), books.engine()
    assert spending.worked_s(run.experiment_id) == 0
    claims = books.ledger.claim(engine, keys(run), HERE.place)
    begun = [begin(books, claim) for claim in claims]
    spans = [(3600, 3000), (3300, 2700), (1000, 900), (500, None)]  # seconds ago; the last has not ended
    for attempt, (since, until) in zip(begun, spans, strict=True):
        values = {"created_at": _ago(since), "ended_at": None if until is None else _ago(until), "deadline_at": _ago(400)}
        change = sa.update(attempts).where(attempts.c.id == attempt.id).values(values)
        books.database.run(lambda c, change=change: c.execute(change))
    assert spending.worked_s(run.experiment_id) == pytest.approx(900 + 100 + 100, abs=1)


def _ago(seconds: int) -> sa.ColumnElement[datetime]:
    return sa.func.now() - timedelta(seconds=seconds)


def test_what_a_cell_costs_is_told_of_an_arm_before_of_its_app(books: Books) -> None:
    run = books.experiment(3)
    arm = run.arms[0]
    assert books.views.mean_cost_usd("tiny") is None
    for claim, cost in zip(books.ledger.claim(books.engine(), keys(run), HERE.place), ("0.1", "0.3", None), strict=True):
        books.finish(claim, begin(books, claim), cost_usd=None if cost is None else Decimal(cost))
    assert books.views.mean_cost_usd("tiny", arm.tree, arm.config) == (Decimal("0.2"), 2)
    assert books.views.mean_cost_usd("tiny", arm.tree, {"other": 1}) is None
    assert books.views.mean_cost_usd("tiny") == (Decimal("0.2"), 2)
    assert books.views.mean_cost_usd("another") is None
