"""What ends in a turn makes room for what begins in it; a call's end and its verdict are durable together or not at all."""

from __future__ import annotations

from collections.abc import Generator
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError
from support.ledgers import Books

from eval_pipeline.domain.verdict import VerdictRow
from eval_pipeline.store.judge_calls import CALLS, JudgeCalls
from eval_pipeline.store.judge_turns import CallEnd, CallIntent, Ended, JudgeTurns, Turn
from eval_pipeline.store.schema import judge_calls, months
from eval_pipeline.store.spending import Spending

JUDGE = "judge-1"


@pytest.fixture
def books(database_url: str) -> Generator[Books]:
    opened = Books(database_url)
    yield opened
    opened.database.close()


def turns_of(books: Books, *, budget_usd: str | None = None, per_minute: int = 60_000, at_once: int = 8) -> JudgeTurns:
    run = books.experiment(budget_usd=budget_usd)
    JudgeCalls(books.database).set_limit(CALLS, None, at_once)
    return JudgeTurns(books.database, run.experiment_id, judge_version=JUDGE, pool="openai", per_minute=per_minute, deadline_s=60)


def intent(name: str, usd: str = "1", **more: Any) -> CallIntent:
    return CallIntent(cell_key="x/w.c0/a/0", criterion=name, request_digest=name, reserve_usd=Decimal(usd), **{"vote": 0, **more})


def said(name: str, **more: Any) -> VerdictRow:
    fields: dict[str, Any] = {"vote": 0, "bundle": "b", "verdict": 1.0, "status": "ok", "reason": "so", **more}
    return VerdictRow(request_digest=name, judge_version=JUDGE, criterion=name, **fields)


def ended(call: int | None, verdict: VerdictRow | None = None, cost: str | None = "0.25") -> Ended:
    end = CallEnd(status="ok", error=None, usage=None, cost_usd=None if cost is None else Decimal(cost), latency_s=0.1)
    return Ended(call=call, end=end, verdict=verdict)


def rows(books: Books) -> list[Any]:
    return list(books.database.run(lambda c: c.execute(sa.select(judge_calls).order_by(judge_calls.c.id)).all()))


def committed_usd(books: Books) -> tuple[Decimal, Decimal]:
    """The experiment's, and the month's."""
    spent = books.database.run(lambda c: c.execute(sa.select(sa.func.sum(months.c.committed_usd))).scalar_one())
    (mine,) = books.database.run(lambda c: c.execute(sa.text("select committed_usd from evals.experiments")).scalars().all())
    return mine, spent


def test_a_place_that_ends_is_taken_in_the_same_turn(books: Books) -> None:
    turns = turns_of(books, at_once=2)
    first, second, third = turns.take([], [intent("a"), intent("b"), intent("c")])
    assert first.call is not None and second.call is not None
    assert third == Turn()  # as many as may be are being made
    assert turns.take([], [intent("c")]) == [Turn()]
    (third,) = turns.take([ended(first.call)], [intent("c")])
    assert third.call is not None
    assert [row.ended_at is None for row in rows(books)] == [row.id != first.call for row in rows(books)]


def test_money_that_an_end_sets_free_is_held_again_in_the_same_turn(books: Books) -> None:
    turns = turns_of(books, budget_usd="2.25")
    first, second, third = turns.take([], [intent("a"), intent("b"), intent("c")])
    assert (first.refused, second.refused) == (None, None) and "budget" in str(third.refused)
    assert committed_usd(books) == (2, 2)
    (third,) = turns.take([ended(first.call)], [intent("c")])
    assert third.refused is None
    assert committed_usd(books) == (Decimal("2.25"), Decimal("2.25"))
    (smaller, larger) = turns.take([ended(second.call, cost=None)], [intent("d", "0"), intent("e", "0.5")])
    assert smaller.call is not None and larger.refused is not None  # what the second cost nobody knows: it stays held
    assert committed_usd(books) == (Decimal("2.25"), Decimal("2.25"))


def test_the_months_cap_counts_what_ends_in_the_same_turn(books: Books) -> None:
    turns = turns_of(books)
    Spending(books.database).set(monthly_cap_usd=Decimal("1.5"))
    first, second = turns.take([], [intent("a"), intent("b")])
    assert first.call is not None and "cap" in str(second.refused)
    again, beyond = turns.take([ended(first.call)], [intent("b"), intent("c")])
    assert again.call is not None and "cap" in str(beyond.refused)
    assert committed_usd(books) == (Decimal("1.25"), Decimal("1.25"))


def test_a_vote_that_was_given_is_not_paid_for_again(books: Books) -> None:
    turns = turns_of(books, per_minute=1)
    books.verdicts.add([said("a")])
    assert turns.take([], [intent("a")]) == [Turn(said=True)]
    assert rows(books) == []
    (other,) = turns.take([], [intent("a", vote=1)])  # nor did that take the only token
    assert other.call is not None


def test_tokens_are_given_in_the_order_of_the_intents(books: Books) -> None:
    turns = turns_of(books, per_minute=1)
    first, second, third = turns.take([], [intent("a"), intent("b"), intent("c")])
    assert first.call is not None
    assert [round(turn.wait_s or 0, -1) for turn in (second, third)] == [60, 120]
    (second,) = turns.take([], [intent("b", has_token=True)])
    assert second.call is not None


def test_a_turn_takes_two_messages_to_the_server(books: Books) -> None:
    """Every call waits for its turn: what it takes stands between a judge's reply and the next question."""
    turns = turns_of(books)
    (first,) = turns.take([], [intent("a")])
    (second,) = turns.take([ended(first.call, said("a"))], [intent("b")])
    sent: list[str] = []
    event.listen(books.database.engine, "before_cursor_execute", lambda *given: sent.append(given[2]))
    (third,) = turns.take([ended(second.call, said("b"))], [intent("c")])
    assert third.call is not None
    assert len(sent) == 2
    assert [row.ended_at is None for row in rows(books)] == [False, False, True]


def test_an_end_and_its_verdict_are_durable_together(books: Books) -> None:
    turns = turns_of(books)
    (begun,) = turns.take([], [intent("a")])
    broken: Any = None
    with pytest.raises(IntegrityError):
        turns.take([ended(begun.call, said("a", bundle=broken))], [])
    assert [row.ended_at for row in rows(books)] == [None]
    turns.take([ended(begun.call, said("a"))], [])
    turns.take([ended(begun.call, said("a", verdict=0.0), cost="9")], [])  # the first end stands, and so does what was said
    assert [(row.status, row.cost_usd) for row in rows(books)] == [("ok", Decimal("0.25"))]
    assert [row.verdict for row in books.verdicts.votes(["a"], JUDGE)["a"]] == [1]
    assert committed_usd(books) == (Decimal("0.25"), Decimal("0.25"))
