"""What people and programs read: the state of experiments, cells and attempts. Nothing here writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import sqlalchemy as sa

from eval_pipeline.domain.cell import CellState, Outcome
from eval_pipeline.store.cell_views import CellView, read_cells
from eval_pipeline.store.database import Database
from eval_pipeline.store.schema import HANDED_OVER, attempts, cells, engines, experiments, layers, warm_sandboxes
from eval_pipeline.store.strays import leaked


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Cells of an experiment by state and by outcome. working: a living engine owns cells of it."""

    states: dict[str, int]
    outcomes: dict[str, int]
    working: bool
    finished_at: datetime | None

    @property
    def at_rest(self) -> bool:
        """Every cell has a valid result or no attempts left, and nobody works on it."""
        return not self.working and set(self.states) <= {CellState.DONE, CellState.FAILED}

    @property
    def n_done(self) -> int:
        return self.states.get(CellState.DONE, 0)


@dataclass(frozen=True, kw_only=True)
class Pulse:
    """spent_usd: what attempts cost that have ended. n_ended: attempts, those that were cancelled not among them."""

    experiment: str
    budget_usd: Decimal | None
    spent_usd: Decimal
    n_ended: int
    n_infra: int


@dataclass(frozen=True, kw_only=True)
class Rested:
    """idle_s: since anything happened to it, a restore included. at_rest: cancelled, or every cell ended; and nobody works on it."""

    experiment: str
    idle_s: float
    at_rest: bool


_RESTED = sa.text("""
select e.id as experiment,
  extract(epoch from now() - greatest(e.ran_at, e.restored_at, max(c.updated_at)))::double precision as idle_s,
  (e.cancel_requested_at is not null or bool_and(c.state in ('done', 'failed')))
  and not exists (select 1 from evals.cells o join evals.engines g on g.id = o.engine_id
    where o.experiment_id = e.id and g.ended_at is null and g.lease_until > now()) as at_rest
from evals.experiments e join evals.cells c on c.experiment_id = e.id
where e.archived_at is null group by e.id""")
_PULSES = sa.text("""
select e.id as experiment, e.budget_usd,
  e.committed_usd - coalesce(sum(a.reserved_usd) filter (where a.ended_at is null), 0) as spent_usd,
  count(a.id) filter (where a.ended_at is not null and a.outcome <> 'cancelled') as n_ended,
  count(a.id) filter (where a.outcome = 'infra_failure') as n_infra
from evals.experiments e join evals.cells c on c.experiment_id = e.id left join evals.attempts a on a.cell_key = c.key
where e.archived_at is null group by e.id having max(c.updated_at) > now() - interval '1 day'
order by e.id""")
_MEAN_COST = sa.text("""
select avg(a.cost_usd), count(*) from evals.attempts a
join evals.cells c on c.attempt_id = a.id join evals.experiments e on e.id = c.experiment_id
where a.cost_usd is not null and e.run_lock->>'app' = :app and (cast(:tree as text) is null or exists (
  select 1 from jsonb_array_elements(e.run_lock->'arms') m
  where m->>'name' = split_part(c.key, '/', 3) and m->>'tree' = :tree and m->'config' = cast(:config as jsonb)))""")
_LIVING = sa.and_(engines.c.ended_at.is_(None), engines.c.lease_until > sa.func.now())


class Views:
    def __init__(self, database: Database) -> None:
        self._database = database

    def _all(self, query: Any) -> Sequence[Any]:
        return self._database.run(lambda c: c.execute(query).all())

    def cells(self, experiment: str, keys: Sequence[str] | None = None, *, whole: bool = True) -> list[CellView]:
        """In tensor order, each with all its attempts. keys: only those; None means all. whole: see `read_cells`."""
        return read_cells(self._database, experiment, keys, whole=whole)

    def tallies(self, experiment: str | None = None) -> dict[str, Tally]:
        """By experiment id; of one experiment, or of all."""
        living = sa.func.bool_or(sa.exists().where(engines.c.id == cells.c.engine_id, _LIVING))
        columns = (
            cells.c.experiment_id,
            cells.c.state,
            cells.c.outcome,
            sa.func.count(),
            living,
            sa.func.max(cells.c.updated_at),
        )
        query = sa.select(*columns).group_by(cells.c.experiment_id, cells.c.state, cells.c.outcome)
        rows = self._all(query if experiment is None else query.where(cells.c.experiment_id == experiment))
        tallies: dict[str, Tally] = {}
        for name, state, outcome, count, working, updated_at in rows:
            seen = tallies.get(name) or Tally(states={}, outcomes={}, working=False, finished_at=None)
            outcomes = seen.outcomes if outcome is None else {**seen.outcomes, outcome: seen.outcomes.get(outcome, 0) + count}
            latest = max(filter(None, [seen.finished_at, updated_at]))
            states = {**seen.states, state: seen.states.get(state, 0) + count}
            tallies[name] = Tally(states=states, outcomes=outcomes, working=seen.working or working, finished_at=latest)
        return tallies

    def rested(self) -> list[Rested]:
        """Experiments that are not archived."""
        rows = self._database.run(lambda c: c.execute(_RESTED).mappings().all())
        return [Rested(**row) for row in rows]

    def n_partitions(self) -> int:
        """Cells of experiments that are not archived."""
        total = sa.select(sa.func.coalesce(sa.func.sum(experiments.c.n_cells), 0).label("n"))
        return int(self._all(total.where(experiments.c.archived_at.is_(None)))[0].n)

    def pulses(self) -> list[Pulse]:
        """Of experiments that something happened to within a day."""
        rows = self._database.run(lambda c: c.execute(_PULSES).mappings().all())
        return [Pulse(**row) for row in rows]

    def ended(self, experiment: str) -> tuple[int, int]:
        """Attempts that have ended, those that were cancelled not among them; and how many of these were infrastructure failures."""
        infra = sa.func.count().filter(attempts.c.outcome == Outcome.INFRA_FAILURE)
        query = sa.select(sa.func.count(), infra).join(cells, cells.c.key == attempts.c.cell_key)
        n_ended, n_infra = self._all(query.where(cells.c.experiment_id == experiment, attempts.c.outcome != Outcome.CANCELLED))[0]
        return n_ended, n_infra

    def committed_usd(self, experiment: str) -> Decimal:
        """Spent and reserved, over all attempts."""
        return self._all(sa.select(experiments.c.committed_usd).where(experiments.c.id == experiment))[0].committed_usd

    def mean_sandbox_s(self, app: str, backend: str) -> tuple[float, int] | None:
        """Of the sandboxes of the app's valid attempts there, with their number; None when there was none."""
        query = (
            sa.select(sa.func.avg(attempts.c.sandbox_s), sa.func.count())
            .join(cells, cells.c.attempt_id == attempts.c.id)
            .join(experiments, experiments.c.id == cells.c.experiment_id)
            .where(attempts.c.backend == backend, attempts.c.sandbox_s.is_not(None))
            .where(experiments.c.run_lock["app"].astext == app)
        )
        mean, count = self._all(query)[0]
        return None if count == 0 else (float(mean), count)

    def mean_cost_usd(
        self, app: str, tree: str | None = None, config: dict[str, Any] | None = None
    ) -> tuple[Decimal, int] | None:
        """Of models, of the app's valid attempts, with their number; tree and config: of that arm's alone. None: no known cost."""
        values = {"app": app, "tree": tree, "config": json.dumps(config)}
        mean, count = self._database.run(lambda c: c.execute(_MEAN_COST, values).one())
        return None if count == 0 else (mean, count)

    def sandbox_usd_per_s(self, experiment: str, arm: str) -> Decimal | None:
        """At which rate the arm's last sandbox was taken; None when there was none, or no rate was known."""
        of_arm = sa.func.split_part(attempts.c.cell_key, "/", 3) == arm
        query = sa.select(attempts.c.sandbox_usd_per_s).join(cells, cells.c.key == attempts.c.cell_key)
        rows = self._all(query.where(cells.c.experiment_id == experiment, of_arm).order_by(attempts.c.id.desc()).limit(1))
        return rows[0].sandbox_usd_per_s if rows else None

    def keys(self, experiment: str, states: Sequence[str] | None = None) -> list[str]:
        query = sa.select(cells.c.key).where(cells.c.experiment_id == experiment).order_by(cells.c.ordinal)
        if states is not None:
            query = query.where(cells.c.state.in_(states))
        return [row.key for row in self._all(query)]

    def in_other_hands(self, keys: Sequence[str], *, handed_over: bool = False) -> list[str]:
        """Those of `keys` that are not done and that a living engine owns. handed_over: those that wait for a persist worker, too."""
        owned = sa.exists().where(engines.c.id == cells.c.engine_id, _LIVING)
        mine = cells.c.key == sa.any_(sa.literal(list(keys), sa.ARRAY(sa.Text)))
        waits = sa.exists().where(HANDED_OVER)
        held = sa.or_(owned, waits) if handed_over else owned
        query = sa.select(cells.c.key).where(mine, cells.c.state != CellState.DONE, held).order_by(cells.c.ordinal)
        return [row.key for row in self._all(query)]

    def unlogged(self, experiment: str) -> list[str]:
        """Done cells whose result Dagster has no event for."""
        differs = cells.c.logged_attempt_id.is_distinct_from(cells.c.attempt_id)
        query = sa.select(cells.c.key).where(cells.c.experiment_id == experiment, cells.c.state == CellState.DONE, differs)
        return [row.key for row in self._all(query.order_by(cells.c.ordinal))]

    def unlogged_without_owner(self) -> list[str]:
        """Experiments with done cells that Dagster has no event for and that no living engine will write."""
        differs = cells.c.logged_attempt_id.is_distinct_from(cells.c.attempt_id)
        owned = sa.exists().where(engines.c.id == cells.c.engine_id, _LIVING)
        active = sa.select(cells.c.experiment_id).where(owned)
        query = sa.select(cells.c.experiment_id).where(cells.c.state == CellState.DONE, differs)
        return [row.experiment_id for row in self._all(query.where(cells.c.experiment_id.not_in(active)).distinct())]

    def open_sandboxes(self) -> set[str]:
        """Names of the sandboxes that an open attempt owns."""
        return {row.sandbox for row in self._all(sa.select(attempts.c.sandbox).where(attempts.c.ended_at.is_(None)))}

    def uses(self, backend: str) -> bool:
        """Whether anything was ever made there."""
        made = [sa.exists().where(table.c.backend == backend) for table in (attempts, layers, warm_sandboxes)]
        return bool(self._all(sa.select(sa.or_(*made).label("used")))[0].used)

    def leaked(self) -> int | None:
        """Leaked sandboxes, by the last survey of each place; None when nobody ever looked."""
        return leaked(self._database)

    def unfinished(self) -> set[str]:
        """Experiments, not put away, with cells that have no valid result."""
        query = sa.select(cells.c.experiment_id).join(experiments, experiments.c.id == cells.c.experiment_id)
        unfinished = query.where(cells.c.state != CellState.DONE, experiments.c.archived_at.is_(None)).distinct()
        return {row.experiment_id for row in self._all(unfinished)}

    def experiment_ids(self, *, archived: bool = False) -> list[str]:
        """archived: those that were put away, instead of those that were not."""
        put_away = experiments.c.archived_at.is_not(None)
        return [row.id for row in self._all(sa.select(experiments.c.id).where(put_away if archived else ~put_away))]
