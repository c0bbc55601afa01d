"""What every cell writes on its way: each step one statement, so one round trip and one transaction, prepared once a connection.

A step that finds its claim gone, or what it must find otherwise, changes nothing and returns None: the ledger then finds out why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from decimal import Decimal

from eval_pipeline.domain.budget import SandboxTerms
from eval_pipeline.domain.cell import AttemptResult, CellState
from eval_pipeline.domain.handover import Handover
from eval_pipeline.store.database import Database, storable, storable_json
from eval_pipeline.store.prepared import Step
from eval_pipeline.store.rows import Begun, Claim, Stopping
from eval_pipeline.store.verdicts import adding

_HELD = "key = :key and fence = :fence and engine_id = cast(:engine as uuid)"
_OURS = {"fence": "bigint", "attempt": "bigint"}

# The rows are locked in the order cell, experiment, month, as everywhere
_BEGIN_FIRST = Step(
    f"""
with held as (
  select key, experiment_id from evals.cells
  where {_HELD} and state <> 'done' and not exists (select 1 from evals.attempts where cell_key = :key) for update
), experiment as (
  select e.* from evals.experiments e join held on e.id = held.experiment_id for update of e
), allowed as (
  select id, evals.month_has_room(:reserve + :reserve_sandbox) as this_month from experiment
  where cancel_requested_at is null and (budget_cells is null or begun_cells < budget_cells)
    and (budget_usd is null or committed_usd + :reserve + :reserve_sandbox <= budget_usd)
), money as (
  update evals.experiments e set committed_usd = committed_usd + :reserve + :reserve_sandbox, begun_cells = begun_cells + 1
  from allowed where e.id = allowed.id and allowed.this_month
  returning e.id
), begun as (update evals.cells set state = 'setup', updated_at = now() from money where key = :key returning key)
insert into evals.attempts
  (cell_key, number, fence, backend, sandbox, host_id, reserved_usd, reserved_sandbox_usd, sandbox_usd_per_s, sandbox_rate)
select key, 1, :fence, :backend, :sandbox, :host, :reserve, :reserve_sandbox, :usd_per_s, :rate from begun
returning id""",
    **_OURS,
    reserve="numeric",
    reserve_sandbox="numeric",
    usd_per_s="numeric",
)

_AGENT_STARTED = Step(
    f"""
with held as (update evals.cells set state = 'running', updated_at = now() where {_HELD} returning key)
update evals.attempts set
  agent_started_at = coalesce(agent_started_at, clock_timestamp()),
  sandbox_started_at = coalesce(sandbox_started_at, clock_timestamp() - make_interval(secs => :sandbox_for_s), created_at),
  deadline_at = coalesce(deadline_at, clock_timestamp() + make_interval(secs => :deadline_in_s))
from held where id = :attempt
returning array[extract(epoch from deadline_at - clock_timestamp()), extract(epoch from agent_started_at)]""",
    **_OURS,
    deadline_in_s="double precision",
    sandbox_for_s="double precision",
)

_STOPPING = Step(
    f"""
update evals.attempts set evidence = coalesce(evidence, '{{}}') || :stopping
where id = :attempt and ended_at is null and exists (select 1 from evals.cells where {_HELD} for update)
returning id""",
    **_OURS,
    stopping="jsonb",
)

_PERSISTING = Step(f"update evals.cells set state = 'persisting', updated_at = now() where {_HELD} returning key", fence="bigint")

_HOLDS = Step(f"select key from evals.cells where {_HELD}", fence="bigint")

_HAS_ENDED = Step("select id from evals.attempts where id = :attempt and ended_at is not null", attempt="bigint")

_HAND_OVER = Step(
    f"""
with held as (update evals.cells set state = 'persisting', engine_id = null, updated_at = now() where {_HELD} returning key)
update evals.attempts set handover = :handover from held where id = :attempt and ended_at is null
returning id""",
    **_OURS,
    handover="jsonb",
)

_GIVE_BACK = Step(
    f"""
update evals.cells c set engine_id = null, updated_at = now(), state = case
  when state in ('done', 'failed') then state
  when exists (select 1 from evals.attempts a where a.cell_key = c.key and a.ended_at is null and a.handover is not null)
    then 'persisting' else 'open' end
where {_HELD} returning key""",
    fence="bigint",
)

_FINISH = Step(
    f"""
with held as (select key, experiment_id from evals.cells where {_HELD} for update),
ended as (
  update evals.attempts set
    ended_at = clock_timestamp(), outcome = :outcome, error = :error, error_class = :error_class, bundle = :bundle,
    usage = :usage, usage_source = :usage_source, cost_usd = :cost, price_version = :price_version, latency_s = :latency_s,
    evidence = coalesce(evidence, '{{}}') || :evidence
  from held where id = :attempt and ended_at is null
  returning reserved_usd
), moved as (
  update evals.cells set
    state = :state, outcome = :outcome, attempt_id = case when :valid then :attempt else attempt_id end, updated_at = now()
  from ended where key = :key
), spent as (
  update evals.experiments e set committed_usd = committed_usd + :cost - reserved_usd
  from held, ended where e.id = held.experiment_id and :cost is not null
)
select key from held""",
    **_OURS,
    valid="boolean",
    usage="jsonb",
    cost="numeric",
    latency_s="double precision",
    evidence="jsonb",
)


# The first end that is told stands. Of several attempts of one experiment the money is put together
_SANDBOX_ENDED = """
with known as (
  select id, greatest(0, coalesce(
    extract(epoch from clock_timestamp() - sandbox_started_at), {otherwise} extract(epoch from clock_timestamp() - created_at)
  )) as seconds
  from evals.attempts where {which} and ended_at is not null and sandbox_s is null order by id for update
), settled as (
  update evals.attempts a set sandbox_s = known.seconds, sandbox_cost_usd = round(known.seconds::numeric * a.sandbox_usd_per_s, 9)
  from known where a.id = known.id
  returning split_part(a.cell_key, '/', 1) as experiment, a.sandbox_cost_usd - a.reserved_sandbox_usd as more
), money as (select experiment, sum(more) as more from settled where more is not null group by experiment)
update evals.experiments e set committed_usd = committed_usd + money.more from money where e.id = money.experiment
"""
_ONE_ENDED = Step(
    _SANDBOX_ENDED.format(which="id = :attempt", otherwise=":sandbox_for_s,") + "returning e.id",
    attempt="bigint",
    sandbox_for_s="double precision",
)
_NAMED_ENDED = Step(_SANDBOX_ENDED.format(which="sandbox = any(:names)", otherwise="") + "returning e.id", names="text[]")


def begin_first(
    database: Database, claim: Claim, *, backend: str, sandbox: str, host_id: str, reserve_usd: Decimal, terms: SandboxTerms
) -> int | None:
    """The id of the cell's first attempt. None: it has one, is done or not ours, or the experiment has no money or is cancelled."""
    values = {"backend": backend, "sandbox": sandbox, "host": host_id, "reserve": reserve_usd}
    values |= {"reserve_sandbox": terms.reserve_usd, "usd_per_s": terms.usd_per_s, "rate": terms.rate}
    return database.step(_BEGIN_FIRST, {**_held(claim), **values})


def agent_started(
    database: Database, claim: Claim, attempt_id: int, deadline_in_s: float, sandbox_for_s: float | None
) -> Begun | None:
    values = {"attempt": attempt_id, "deadline_in_s": deadline_in_s, "sandbox_for_s": sandbox_for_s}
    times = database.step(_AGENT_STARTED, {**_held(claim), **values})
    return None if times is None else Begun(left_s=float(times[0]), at=datetime.fromtimestamp(float(times[1]), UTC))


def stopping(database: Database, claim: Claim, attempt_id: int, decided: Stopping) -> bool:
    values = {"attempt": attempt_id, "stopping": {"stopping": storable_json(asdict(decided))}}
    return database.step(_STOPPING, {**_held(claim), **values}) is not None


def persisting(database: Database, claim: Claim) -> bool:
    return database.step(_PERSISTING, _held(claim)) is not None


def holds(database: Database, claim: Claim) -> bool:
    return database.step(_HOLDS, _held(claim)) is not None


def has_ended(database: Database, attempt_id: int) -> bool:
    """Whether the attempt has its result, whoever wrote it."""
    return database.step(_HAS_ENDED, {"attempt": attempt_id}) is not None


def hand_over(database: Database, claim: Claim, attempt_id: int, handover: Handover) -> bool:
    """False: the cell is not ours any more, which is also so when it is handed over already."""
    values = {"attempt": attempt_id, "handover": storable_json(handover.model_dump(mode="json"))}
    return database.step(_HAND_OVER, {**_held(claim), **values}) is not None


def give_back(database: Database, claim: Claim) -> None:
    database.step(_GIVE_BACK, _held(claim))


def finish(database: Database, claim: Claim, attempt_id: int, result: AttemptResult, state: CellState) -> bool:
    """Its verdicts with it. False: the cell is not ours any more. An attempt that ended before stays as it is."""
    values = {
        "attempt": attempt_id,
        "state": state,
        "valid": result.outcome.valid,
        "outcome": result.outcome,
        "error": storable(result.error),
        "error_class": result.error_class,
        "bundle": result.bundle,
        "usage": storable_json(result.usage),
        "usage_source": result.usage_source,
        "cost": result.cost_usd,
        "price_version": result.price_version,
        "latency_s": result.latency_s,
        "evidence": storable_json(result.evidence),
    }
    verdicts = [adding(result.verdicts)] if result.verdicts else []
    return database.together([*verdicts, (_FINISH, {**_held(claim), **values})]) is not None


def sandbox_ended(database: Database, attempt_id: int, sandbox_for_s: float | None) -> None:
    database.step(_ONE_ENDED, {"attempt": attempt_id, "sandbox_for_s": sandbox_for_s})


def sandboxes_ended(database: Database, names: Sequence[str]) -> None:
    """Somebody else has ended them: the attempts that had them and have ended, too, are settled."""
    database.step(_NAMED_ENDED, {"names": list(names)})


def _held(claim: Claim) -> dict[str, object]:
    return {"key": claim.key, "fence": claim.fence, "engine": claim.engine_id}
