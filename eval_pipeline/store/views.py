"""What people and programs read: the state of experiments, cells and attempts. Nothing here writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

import sqlalchemy as sa

from eval_pipeline.domain.cell import CellState
from eval_pipeline.store.database import Database
from eval_pipeline.store.schema import HANDED_OVER, attempts, cells, engines, experiments, layers, warm_sandboxes
from eval_pipeline.store.strays import leaked

SECRETS_FOUND = "secrets_found"
"""In an attempt's evidence: what it wrote of its secrets. None stands there by value."""


@dataclass(frozen=True, kw_only=True)
class AttemptView:
    """usage_source: measured by the model gateway, or self-reported. sandbox_s: from asked for to ended, None until then. sandbox_cost_usd: None too where no rate was known; sandbox_rate: whose."""

    id: int
    number: int
    sandbox: str
    outcome: str | None
    created_at: datetime
    agent_started_at: datetime | None
    deadline_at: datetime | None
    ended_at: datetime | None
    error: str | None
    error_class: str | None
    bundle: str | None
    usage: list[dict[str, Any]]
    cost_usd: Decimal | None
    latency_s: float | None
    evidence: dict[str, Any]
    discarded: str | None
    sandbox_s: float | None = None
    sandbox_cost_usd: Decimal | None = None
    sandbox_rate: str | None = None
    usage_source: str | None = None


@dataclass(frozen=True, kw_only=True)
class CellView:
    """counted: the attempt that counts, None while there is none. adopted_from: the cell that made it, when it was another one.

    attempts: the cell's own. cell_digest: equal ones are the same run.
    """

    key: str
    ordinal: int
    state: str
    outcome: str | None
    engine_id: str | None
    logged: bool
    updated_at: datetime
    counted: AttemptView | None
    attempts: list[AttemptView] = field(default_factory=list[AttemptView])
    adopted_from: str | None = None
    cell_digest: str | None = None

    @property
    def _kept(self) -> list[AttemptView]:
        own = [attempt for attempt in self.attempts if attempt.discarded is None]
        return own if self.adopted_from is None or self.counted is None else [*own, self.counted]

    @property
    def unsafe(self) -> bool:
        """Whether an attempt that was not discarded ran without isolation, by the user's permission."""
        return any(attempt.evidence.get("isolation", {}).get("level") == "unsafe" for attempt in self._kept)

    @property
    def secrets_found(self) -> dict[str, Any] | None:
        """How often the output of the attempt that counts held each secret, and which of its files are in quarantine; None: none."""
        attempt = self.counted or (self.attempts[-1] if self.attempts else None)
        return None if attempt is None else attempt.evidence.get(SECRETS_FOUND)

    @property
    def n_secrets_replaced(self) -> int:
        return sum((self.secrets_found or {}).get("replaced", {}).values())

    @property
    def n_quarantined(self) -> int:
        return len((self.secrets_found or {}).get("quarantined", ()))

    @property
    def open_egress(self) -> str | None:
        """What did not hold of the list of hosts that an attempt's agent might reach; None when it held."""
        return next(filter(None, (attempt.evidence.get("open_egress") for attempt in self._kept)), None)


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

    def cells(self, experiment: str, keys: Sequence[str] | None = None) -> list[CellView]:
        """In tensor order, each with all its attempts."""
        chosen = cells.c.experiment_id == experiment
        if keys is not None:
            chosen = sa.and_(chosen, cells.c.key.in_(keys))
        found: dict[str, list[AttemptView]] = {}
        query = sa.select(attempts).join(cells, cells.c.key == attempts.c.cell_key).where(chosen).order_by(attempts.c.number)
        for row in self._all(query):
            found.setdefault(row.cell_key, []).append(_attempt(row))
        foreign = sa.select(attempts, cells.c.key.label("adopter")).join(cells, cells.c.attempt_id == attempts.c.id)
        adopted = {row.adopter: row for row in self._all(foreign.where(chosen, attempts.c.cell_key != cells.c.key))}
        rows = self._all(sa.select(cells).where(chosen).order_by(cells.c.ordinal))
        return [_cell(row, found.get(row.key, []), adopted.get(row.key)) for row in rows]

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


def _attempt(row: Any) -> AttemptView:
    return AttemptView(
        id=row.id,
        number=row.number,
        sandbox=row.sandbox,
        outcome=row.outcome,
        created_at=row.created_at,
        agent_started_at=row.agent_started_at,
        deadline_at=row.deadline_at,
        ended_at=row.ended_at,
        error=row.error,
        error_class=row.error_class,
        bundle=row.bundle,
        usage=row.usage or [],
        cost_usd=row.cost_usd,
        latency_s=row.latency_s,
        evidence=row.evidence or {},
        discarded=row.discarded,
        sandbox_s=row.sandbox_s,
        sandbox_cost_usd=row.sandbox_cost_usd,
        sandbox_rate=row.sandbox_rate,
        usage_source=row.usage_source,
    )


def _cell(row: Any, tried: list[AttemptView], adopted: Any) -> CellView:
    own = next((attempt for attempt in tried if attempt.id == row.attempt_id), None)
    return CellView(
        key=row.key,
        ordinal=row.ordinal,
        state=row.state,
        outcome=row.outcome,
        engine_id=row.engine_id,
        logged=row.attempt_id is not None and row.logged_attempt_id == row.attempt_id,
        updated_at=row.updated_at,
        counted=own if adopted is None else _attempt(adopted),
        attempts=tried,
        adopted_from=None if adopted is None else adopted.cell_key,
        cell_digest=row.cell_digest,
    )
