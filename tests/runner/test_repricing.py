"""A price that comes later: what it tells the cost of is settled once, and what was held for it is given back."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from support.boards import PRICE
from support.ledgers import HERE, Books, keys
from support.locks import score_lock

from eval_pipeline.domain.cell import Outcome
from eval_pipeline.domain.lock import RunLock
from eval_pipeline.runner.repricing import settle_unpriced
from eval_pipeline.store.judge_turns import CallEnd, CallIntent, Ended, JudgeTurns
from eval_pipeline.store.spending import Spending

pytestmark = pytest.mark.slow

HELD = Decimal("0.5")
USAGE = {"model": "m", "output": 1000, "calls": 1}
USD = Decimal("0.01")
_TOTAL = sa.text("""
select (select coalesce(sum(coalesce(cost_usd, reserved_usd)), 0) from evals.attempts)
  + (select coalesce(sum(coalesce(cost_usd, reserved_usd)), 0) from evals.judge_calls)""")


def priced(books: Books, run: RunLock, *models: str) -> None:
    """As a run of the file does, with these in prices.yaml."""
    score = score_lock(run, prices=[{**PRICE, "model": model} for model in models])
    books.ledger.create_experiment(run, score, repo="/app", baseline=None, budget_usd=None)
    settle_unpriced(books.database, books.ledger.experiment(run.experiment_id))


def total(books: Books) -> Decimal:
    """From the rows of attempts and calls alone."""
    return books.database.run(lambda c: c.execute(_TOTAL).scalar_one())


def called(books: Books, run: RunLock, usage: dict[str, Any] | None, cost: Decimal | None = None) -> None:
    turns = JudgeTurns(books.database, run.experiment_id, judge_version="v", pool="p", per_minute=6000, deadline_s=9)
    intent = CallIntent(cell_key="c", criterion="k", request_digest=f"{usage}{cost}", vote=0, reserve_usd=HELD)
    (begun,) = turns.take([], [intent])
    assert begun.call is not None
    end = CallEnd(status="ok", error=None, usage=usage, cost_usd=cost, latency_s=1.0)
    turns.take([Ended(call=begun.call, end=end, verdict=None)], [])


def test_a_price_gives_back_what_was_held_and_only_once(books: Books) -> None:
    run = books.experiment(1)
    claim = books.claim(run)
    attempt = books.begin(claim, reserve_usd=str(HELD))
    books.finish(claim, attempt, usage=[USAGE], usage_source="self-reported")
    called(books, run, USAGE)
    assert books.committed_usd(run) == 2 * HELD
    priced(books, run, "another")
    assert books.committed_usd(run) == 2 * HELD
    for _ in range(2):
        priced(books, run, "m")
        assert books.attempt_row(attempt).cost_usd == USD
        assert books.committed_usd(run) == Spending(books.database).month().committed_usd == 2 * USD


@pytest.mark.parametrize(
    "more",
    [
        {"usage": []},
        {"usage": [USAGE], "usage_source": "measured", "evidence": {"models": {"unmeasured": 1}}},
        {"usage": [USAGE, {"model": "mystery", "output": 1}]},
        {"usage": [{"model": "m", "output": 10**9}], "usage_source": "self-reported"},
    ],
    ids=["no usage", "not all measured", "not all priced", "beyond belief"],
)
def test_what_stays_unknown_keeps_what_is_held(books: Books, more: dict[str, Any]) -> None:
    run = books.experiment(1)
    claim = books.claim(run)
    books.finish(claim, books.begin(claim, reserve_usd=str(HELD)), **more)
    called(books, run, None)
    priced(books, run, "m")
    assert books.committed_usd(run) == 2 * HELD


@pytest.mark.parametrize("seed", range(3))
def test_what_is_committed_is_what_is_known_and_what_is_held_for_the_rest(books: Books, seed: int) -> None:
    chance = random.Random(seed)
    run = books.experiment(20)
    for claim in books.ledger.claim(books.engine(), keys(run), HERE.place):
        attempt = books.begin(claim, reserve_usd=f"0.{chance.randint(0, 9)}")
        if chance.random() < 0.2:
            continue  # still running
        usage = [{"model": chance.choice("abc"), "output": chance.randint(0, 5000)} for _ in range(chance.randint(0, 2))]
        cost = None if chance.random() < 0.7 else Decimal(chance.randint(0, 9)) / 100
        outcome = Outcome.INFRA_FAILURE if chance.random() < 0.2 else Outcome.OK
        books.finish(claim, attempt, outcome, usage=usage, usage_source="measured", cost_usd=cost)
        if chance.random() < 0.5:
            called(books, run, {"model": chance.choice("abc"), "output": 10} if chance.random() < 0.8 else None, cost)
    for models in ("a", "ab", "abc"):
        priced(books, run, *models[:-1])
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda given: priced(books, run, *given), [models] * 4))
        assert books.committed_usd(run) == Spending(books.database).month().committed_usd == total(books)
    known = [cell.counted.cost_usd for cell in books.views.cells(run.experiment_id) if cell.counted and cell.counted.usage]
    assert known and None not in known
