"""Calls of a judge begin and end in turns: one transaction for all that begin or end at about the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from eval_pipeline.errors import BudgetExceeded
from eval_pipeline.store.buckets import Bucket
from eval_pipeline.store.database import Database, storable, storable_json
from eval_pipeline.store.judge_calls import CALLS
from eval_pipeline.store.spending import month_has_room, require_month
from eval_pipeline.store.verdicts import VerdictRow, add_verdicts

_SPARE_S = 10.0
_ALONE = sa.text("select pg_advisory_xact_lock(hashtextextended(:pool, 0))")
_END = sa.text("""
with given as (
  select * from jsonb_to_recordset(:ends) as g(
    call bigint, status text, error text, usage jsonb, cost_usd numeric, latency_s double precision)),
ended as (
  update evals.judge_calls j set status = g.status, error = g.error, usage = g.usage, cost_usd = g.cost_usd,
    latency_s = g.latency_s, ended_at = clock_timestamp()
  from given g where j.id = g.call and j.ended_at is null
  returning j.experiment_id, j.cost_usd - j.reserved_usd as more),
settled as (select experiment_id, sum(more) as more from ended group by 1 having sum(more) <> 0)
update evals.experiments e set committed_usd = e.committed_usd + s.more from settled s where e.id = s.experiment_id
""").bindparams(sa.bindparam("ends", type_=JSONB))
_SAID = sa.text("""
select v.request_digest, v.vote from jsonb_to_recordset(:asked) as a(request_digest text, vote int)
join evals.verdicts v on v.request_digest = a.request_digest and v.judge_version = :judge_version and v.vote = a.vote
""").bindparams(sa.bindparam("asked", type_=JSONB))
_FREE = sa.text("""
select (select value from evals.limits where name in (:every, :own) order by name = :own desc limit 1) - (
  select count(*) from evals.judge_calls where pool = :pool and ended_at is null and deadline_at > clock_timestamp())
""")
_MONEY = sa.text("select committed_usd, budget_usd from evals.experiments where id = :experiment for update")
_COMMIT = sa.text("update evals.experiments set committed_usd = committed_usd + :more where id = :experiment").bindparams(
    sa.bindparam("more", type_=sa.Numeric)
)
_BEGIN = sa.text("""
insert into evals.judge_calls
  (experiment_id, cell_key, criterion, request_digest, judge_version, pool, reserved_usd, deadline_at)
select :experiment, cell_key, criterion, request_digest, :judge_version, :pool, reserve_usd,
  clock_timestamp() + make_interval(secs => :deadline_s)
from jsonb_to_recordset(:intents) as g(cell_key text, criterion text, request_digest text, reserve_usd numeric)
returning id, cell_key, criterion
""").bindparams(sa.bindparam("intents", type_=JSONB))


@dataclass(frozen=True, kw_only=True)
class CallIntent:
    """vote: the number of the vote that it is to be. has_token: of the rate, from a turn before."""

    cell_key: str
    criterion: str
    request_digest: str
    vote: int
    reserve_usd: Decimal
    has_token: bool = False


@dataclass(frozen=True, kw_only=True)
class CallEnd:
    """cost_usd None: not known, and what was held stays held. usage None: not told."""

    status: str
    error: str | None
    usage: dict[str, Any] | None
    cost_usd: Decimal | None
    latency_s: float | None


@dataclass(frozen=True, kw_only=True)
class Ended:
    """verdict: durable with the end of the call that gave it; None: it gave none that counts. call None: no call gave it."""

    call: int | None
    end: CallEnd | None
    verdict: VerdictRow | None


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What an intent came to; nothing of all this: as many calls as may be are being made.

    call: its id; it may be made. wait_s: its token was taken, and is there after so long. said: that vote was given meanwhile.
    refused: the money is not there.
    """

    call: int | None = None
    wait_s: float | None = None
    said: bool = False
    refused: BudgetExceeded | None = None


class JudgeTurns:
    """Of one judge and one experiment, which pays. pool: whose limits its calls count against. deadline_s: how long somebody waits for one, at most."""

    def __init__(
        self, database: Database, experiment: str, *, judge_version: str, pool: str, per_minute: int, deadline_s: float
    ) -> None:
        self._database = database
        self._experiment = experiment
        self._version = judge_version
        self._pool = pool
        self._deadline_s = deadline_s
        self.bucket = Bucket(database, f"judge {pool}", per_s=per_minute / 60, burst=max(1.0, per_minute / 60))

    def take(self, ended: Sequence[Ended], intents: Sequence[CallIntent]) -> list[Turn]:
        """What ended makes room for what is to begin: its place and its money. An answer for each intent, in their order.

        No two of the intents are of the same cell and criterion. The first end of a call stands; a known cost replaces what was held.
        """
        return self._database.run(lambda c: self._turn(c, ended, intents))

    def _turn(self, c: sa.Connection, ended: Sequence[Ended], intents: Sequence[CallIntent]) -> list[Turn]:
        if intents:
            c.execute(_ALONE, {"pool": f"judge {self._pool}"})
        add_verdicts(c, [one.verdict for one in ended if one.verdict is not None])
        ends = [_end_values(one.call, one.end) for one in ended if one.call is not None and one.end is not None]
        if ends:
            c.execute(_END, {"ends": ends})
        if not intents:
            return []
        said = self._said(c, intents)
        left = [one for one in intents if (one.request_digest, one.vote) not in said]
        waits = self._waits(c, left)
        begun = self._begin(c, [one for one in left if not waits.get(_place(one))])
        return [
            Turn(said=True) if (one.request_digest, one.vote) in said
            else Turn(wait_s=wait_s) if (wait_s := waits.get(_place(one)))
            else begun.get(_place(one), Turn())
            for one in intents
        ]  # fmt: skip

    def _said(self, c: sa.Connection, intents: Sequence[CallIntent]) -> set[tuple[str, int]]:
        asked = [{"request_digest": one.request_digest, "vote": one.vote} for one in intents]
        rows = c.execute(_SAID, {"asked": asked, "judge_version": self._version})
        return {(row.request_digest, row.vote) for row in rows}

    def _waits(self, c: sa.Connection, intents: Sequence[CallIntent]) -> dict[tuple[str, str], float]:
        new = [one for one in intents if not one.has_token]
        return dict(zip(map(_place, new), self.bucket.take_in(c, len(new)), strict=True)) if new else {}

    def _begin(self, c: sa.Connection, intents: Sequence[CallIntent]) -> dict[tuple[str, str], Turn]:
        """What is not in it finds no place."""
        if not intents:
            return {}
        names = {"every": CALLS, "own": f"{CALLS}: {self._pool}", "pool": self._pool}
        free = max(0, c.execute(_FREE, names).scalar_one())
        held, refused = self._hold(c, intents, free)
        turns = {_place(one): Turn(refused=why) for one, why in refused}
        if held:
            values = {"experiment": self._experiment, "judge_version": self._version, "pool": self._pool}
            rows = c.execute(
                _BEGIN, {**values, "deadline_s": self._deadline_s + _SPARE_S, "intents": [_intent_values(one) for one in held]}
            )
            turns |= {(row.cell_key, row.criterion): Turn(call=row.id) for row in rows}
        return turns

    def _hold(
        self, c: sa.Connection, intents: Sequence[CallIntent], free: int
    ) -> tuple[list[CallIntent], list[tuple[CallIntent, BudgetExceeded]]]:
        """Whose money is held, `free` of them at most, and who finds none."""
        money = c.execute(_MONEY, {"experiment": self._experiment}).one()
        more, held = Decimal(0), list[CallIntent]()
        refused = list[tuple[CallIntent, BudgetExceeded]]()
        for one in intents:
            if len(held) == free:
                break
            if money.budget_usd is not None and money.committed_usd + more + one.reserve_usd > money.budget_usd:
                refused.append((one, self._no_room(one)))
                continue
            held.append(one)
            more += one.reserve_usd
        if not month_has_room(c, more):
            held, beyond = self._within_month(c, held)
            refused += beyond
            more = sum((one.reserve_usd for one in held), Decimal(0))
        if more:
            c.execute(_COMMIT, {"more": more, "experiment": self._experiment})
        return held, refused

    def _within_month(
        self, c: sa.Connection, intents: Sequence[CallIntent]
    ) -> tuple[list[CallIntent], list[tuple[CallIntent, BudgetExceeded]]]:
        c.execute(sa.text("set constraints evals.judge_spends immediate"))  # what ended in this turn counts already
        more, held, refused = Decimal(0), list[CallIntent](), list[tuple[CallIntent, BudgetExceeded]]()
        for one in intents:
            try:
                require_month(c, self._experiment, more + one.reserve_usd)
            except BudgetExceeded as why:
                refused.append((one, why))
            else:
                held.append(one)
                more += one.reserve_usd
        return held, refused

    def _no_room(self, intent: CallIntent) -> BudgetExceeded:
        return BudgetExceeded(
            f"{self._experiment}: the budget has no room for the next call of its judge, which holds {intent.reserve_usd:f} USD",
            hint="raise budget.cost_usd in the experiment's file and run it again, then `evals score`",
        )


def _place(intent: CallIntent) -> tuple[str, str]:
    return intent.cell_key, intent.criterion


def _intent_values(intent: CallIntent) -> Mapping[str, str]:
    return {
        "cell_key": intent.cell_key,
        "criterion": intent.criterion,
        "request_digest": intent.request_digest,
        "reserve_usd": str(intent.reserve_usd),
    }


def _end_values(call: int, end: CallEnd) -> Mapping[str, Any]:
    cost = None if end.cost_usd is None else str(end.cost_usd)
    return {**end.__dict__, "call": call, "error": storable(end.error), "usage": storable_json(end.usage), "cost_usd": cost}
