"""Calls of a judge begin and end in turns: one transaction for all that begin or end at about the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import sqlalchemy as sa

from eval_pipeline.domain.verdict import VerdictRow
from eval_pipeline.errors import BudgetExceeded
from eval_pipeline.store.buckets import TAKE_N, TAKE_N_TYPES, Bucket
from eval_pipeline.store.database import Database, storable, storable_json
from eval_pipeline.store.judge_calls import CALLS
from eval_pipeline.store.prepared import Step, run_together
from eval_pipeline.store.spending import month_has_room, require_month
from eval_pipeline.store.verdicts import adding

_SPARE_S = 10.0
_BY_KEYS = Step("select set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true)")
"""As of other steps: a plan that was made when there were few calls must not read all of them once there are many."""
_ALONE = Step("select pg_advisory_xact_lock(hashtextextended(:pool, 0))")
_END = Step(
    """
with given as (
  select * from jsonb_to_recordset(:ends) as g(
    call bigint, status text, error text, usage jsonb, cost_usd numeric, latency_s double precision)),
ended as (
  update evals.judge_calls j set status = g.status, error = g.error, usage = g.usage, cost_usd = g.cost_usd,
    latency_s = g.latency_s, ended_at = clock_timestamp()
  from given g where j.id = g.call and j.ended_at is null
  returning j.experiment_id, j.cost_usd - j.reserved_usd as more),
settled as (select experiment_id, sum(more) as more from ended group by 1 having sum(more) <> 0)
update evals.experiments e set committed_usd = e.committed_usd + s.more from settled s where e.id = s.experiment_id returning e.id""",
    ends="jsonb",
)
_PURSE = Step("select id from evals.experiments where id = :experiment for update")
_FOUND = Step(
    f"""
with asked as (
  select * from jsonb_to_recordset(:asked) as a(request_digest text, vote int, has_token boolean)),
said as (
  select a.request_digest, a.vote from asked a
  join evals.verdicts v on v.request_digest = a.request_digest and v.judge_version = :judge_version and v.vote = a.vote),
wanted as (
  select count(*) as n from asked where not has_token and (request_digest, vote) not in (select request_digest, vote from said)),
taken as ({TAKE_N})
select json_build_object(
  'said', (select coalesce(json_agg(json_build_array(request_digest, vote)), '[]') from said),
  'tokens', (select tokens from taken),
  'free', (select value from evals.limits where name in (:every, :own) order by name = :own desc limit 1) - (
    select count(*) from evals.judge_calls where pool = :pool and ended_at is null and deadline_at > clock_timestamp()),
  'committed_usd', e.committed_usd::text, 'budget_usd', e.budget_usd::text,
  'capped', (select monthly_cap_usd is not null from evals.installation))
from evals.experiments e where e.id = :experiment""",
    asked="jsonb",
    **TAKE_N_TYPES,
)
_BEGIN = Step(
    """
with begun as (
  insert into evals.judge_calls
    (experiment_id, cell_key, criterion, request_digest, judge_version, pool, reserved_usd, deadline_at)
  select :experiment, cell_key, criterion, request_digest, :judge_version, :pool, reserve_usd,
    clock_timestamp() + make_interval(secs => :deadline_s)
  from jsonb_to_recordset(:intents) as g(cell_key text, criterion text, request_digest text, reserve_usd numeric)
  returning id, cell_key, criterion, reserved_usd),
held as (
  update evals.experiments e set committed_usd = e.committed_usd + b.more
  from (select sum(reserved_usd) as more from begun) b where e.id = :experiment and b.more > 0)
select json_agg(json_build_array(id, cell_key, criterion)) from begun""",
    intents="jsonb",
    deadline_s="double precision",
)


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
        steps: list[tuple[Step, Mapping[str, object]]] = [(_BY_KEYS, {})]
        if intents:
            steps.append((_ALONE, {"pool": f"judge {self._pool}"}))
        if verdicts := [one.verdict for one in ended if one.verdict is not None]:
            steps.append(adding(verdicts))
        if ends := [_end_values(one.call, one.end) for one in ended if one.call is not None and one.end is not None]:
            steps.append((_END, {"ends": ends}))
        if not intents:
            run_together(c, steps)
            return []
        found = run_together(c, [*steps, (_PURSE, {"experiment": self._experiment}), (_FOUND, self._asked(intents))])
        said = {(request, vote) for request, vote in found["said"]}
        left = [one for one in intents if (one.request_digest, one.vote) not in said]
        new = [_place(one) for one in left if not one.has_token]
        waits = dict(zip(new, self.bucket.waits_s(found["tokens"], len(new)), strict=True)) if new else {}
        begun = self._begin(c, [one for one in left if not waits.get(_place(one))], found)
        return [
            Turn(said=True) if (one.request_digest, one.vote) in said
            else Turn(wait_s=wait_s) if (wait_s := waits.get(_place(one)))
            else begun.get(_place(one), Turn())
            for one in intents
        ]  # fmt: skip

    def _asked(self, intents: Sequence[CallIntent]) -> dict[str, object]:
        asked = [{"request_digest": one.request_digest, "vote": one.vote, "has_token": one.has_token} for one in intents]
        names = {"every": CALLS, "own": f"{CALLS}: {self._pool}", "pool": self._pool}
        return {"asked": asked, "judge_version": self._version, "experiment": self._experiment, **names, **self.bucket.values}

    def _begin(self, c: sa.Connection, intents: Sequence[CallIntent], found: Mapping[str, Any]) -> dict[tuple[str, str], Turn]:
        """What is not in it finds no place."""
        held, refused = self._hold(c, intents, found)
        turns = {_place(one): Turn(refused=why) for one, why in refused}
        if held:
            values = {"experiment": self._experiment, "judge_version": self._version, "pool": self._pool}
            given = {**values, "deadline_s": self._deadline_s + _SPARE_S, "intents": [_intent_values(one) for one in held]}
            turns |= {(cell, criterion): Turn(call=call) for call, cell, criterion in _BEGIN.run(c, given)}
        return turns

    def _hold(
        self, c: sa.Connection, intents: Sequence[CallIntent], found: Mapping[str, Any]
    ) -> tuple[list[CallIntent], list[tuple[CallIntent, BudgetExceeded]]]:
        """For which there is money, as many as there are places; and which find none."""
        committed, budget = Decimal(found["committed_usd"]), found["budget_usd"]
        more, held = Decimal(0), list[CallIntent]()
        refused = list[tuple[CallIntent, BudgetExceeded]]()
        for one in intents:
            if len(held) >= found["free"]:
                break
            if budget is not None and committed + more + one.reserve_usd > Decimal(budget):
                refused.append((one, self._no_room(one)))
                continue
            held.append(one)
            more += one.reserve_usd
        if held and found["capped"] and not month_has_room(c, more):
            held, beyond = self._within_month(c, held)
            refused += beyond
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
