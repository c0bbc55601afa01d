"""How an experiment stands: its open cells, how fast cells end, how each arm's ended. Times and ages by Postgres' clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from eval_pipeline.store.database import Database
from eval_pipeline.store.prepared import Step

_LIVING = "(e.ended_at is null and e.lease_until > now())"
RECENT = 500

_OPEN = sa.text(f"""
select c.key, c.state, c.updated_at, c.engine_id is not null as owned, coalesce({_LIVING}, false) as living,
  coalesce(e.ended_at, e.lease_until) as left_at, e.doing -> c.key as doing, a.number as attempt, a.deadline_at,
  coalesce(a.handover is not null, false) as handed_over, a.backend,
  (select error from evals.attempts l where l.cell_key = c.key and l.ended_at is not null order by l.number desc limit 1) as error
from evals.cells c
left join evals.engines e on e.id = c.engine_id
left join evals.attempts a on a.cell_key = c.key and a.ended_at is null
where c.experiment_id = :experiment and c.state <> 'done' order by c.ordinal""")

_ENDED = sa.text(f"""
select extract(epoch from a.ended_at - a.created_at) from evals.attempts a join evals.cells c on c.attempt_id = a.id
where c.experiment_id = :experiment and a.created_at >= (
  select min(e.started_at) from evals.engines e where {_LIVING} and e.kind = 'engine' and e.id in (
    select engine_id from evals.cells where experiment_id = :experiment))
order by a.ended_at desc limit {RECENT}""")

_IN_FLIGHT = sa.text(f"""
select extract(epoch from now() - greatest(a.created_at, e.started_at)) from evals.cells c
join evals.engines e on e.id = c.engine_id and {_LIVING}
join evals.attempts a on a.cell_key = c.key and a.ended_at is null
where c.experiment_id = :experiment and c.state in ('setup', 'running', 'persisting')""")

_PENDING = sa.text(f"""
select count(*) from evals.cells c join evals.engines e on e.id = c.engine_id and {_LIVING}
where c.experiment_id = :experiment and c.state in ('open', 'failed')
and not exists (select 1 from evals.attempts a where a.cell_key = c.key and a.ended_at is null)""")

_BY_ARM = sa.text("""
select split_part(key, '/', 3) as arm, state, outcome, count(*) as n from evals.cells where experiment_id = :experiment
group by 1, 2, 3 order by min(ordinal)""")

_FIRST_ERROR = Step("""
select a.error from evals.attempts a join evals.cells c on c.key = a.cell_key
where c.experiment_id = :experiment and split_part(c.key, '/', 3) = :arm and a.error is not null
and a.outcome <> 'cancelled' and a.discarded is null order by a.ended_at limit 1""")


@dataclass(frozen=True, kw_only=True)
class OpenCell:
    """A cell without a valid result. living: whether who owns it lives; left_at: of one that does not, when it was last known to.

    doing: what its engine says it waits for, and since when. attempt, deadline_at: of the attempt under way. error: of the last one.
    """

    key: str
    state: str
    updated_at: datetime
    owned: bool
    living: bool
    left_at: datetime | None
    doing: tuple[str, datetime] | None
    attempt: int | None
    deadline_at: datetime | None
    handed_over: bool
    error: str | None


@dataclass(frozen=True, kw_only=True)
class Pace:
    """took_s: of the latest cells that ended under the engines of now. ages_s: of those in flight. pending: those that follow."""

    took_s: list[float]
    ages_s: list[float]
    pending: int


@dataclass(frozen=True, kw_only=True)
class ArmEnds:
    """n_cells by (state, outcome)."""

    arm: str
    ends: dict[tuple[str, str | None], int]


def open_cells(database: Database, experiment: str) -> list[OpenCell]:
    """In tensor order."""
    rows = database.run(lambda c: c.execute(_OPEN, {"experiment": experiment}).all())
    return [
        OpenCell(
            key=row.key,
            state=row.state,
            updated_at=row.updated_at,
            owned=row.owned,
            living=row.living,
            left_at=None if row.living else row.left_at,
            doing=(row.doing[0], datetime.fromisoformat(row.doing[1])) if row.doing and row.living else None,
            attempt=row.attempt,
            deadline_at=row.deadline_at,
            handed_over=row.handed_over,
            error=row.error,
        )
        for row in rows
    ]


def pace(database: Database, experiment: str) -> Pace:
    named = {"experiment": experiment}

    def work(c: sa.Connection) -> Pace:
        return Pace(
            took_s=[float(value) for value in c.execute(_ENDED, named).scalars()],
            ages_s=[float(value) for value in c.execute(_IN_FLIGHT, named).scalars()],
            pending=c.execute(_PENDING, named).scalar_one(),
        )

    return database.run(work)


def ends_by_arm(database: Database, experiment: str) -> list[ArmEnds]:
    """In the order of the first cells."""
    found: dict[str, dict[tuple[str, str | None], int]] = {}
    for row in database.run(lambda c: c.execute(_BY_ARM, {"experiment": experiment}).all()):
        found.setdefault(row.arm, {})[row.state, row.outcome] = row.n
    return [ArmEnds(arm=arm, ends=ends) for arm, ends in found.items()]


def first_error(database: Database, experiment: str, arm: str) -> str | None:
    return database.step(_FIRST_ERROR, {"experiment": experiment, "arm": arm})
