"""Cells with their attempts, as people and programs read them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from decimal import Decimal
from functools import cache
from sys import intern
from typing import Any

import sqlalchemy as sa

from eval_pipeline.store.database import Database
from eval_pipeline.store.schema import attempts, cells

SECRETS_FOUND = "secrets_found"
"""In an attempt's evidence: what it wrote of its secrets. None stands there by value."""
TOLD_OF_MANY = (SECRETS_FOUND, "dump_s", "isolation", "models", "open_egress", "state_before", "world_diff")
"""Of an attempt's evidence, what is read where all cells of an experiment are."""
_AT_ONCE = 500
_ONE_MOMENT = sa.text("set transaction isolation level repeatable read, read only")
"""Else a cell that is done by now could count an attempt that was still open when it was read."""


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


def read_cells(database: Database, experiment: str, keys: Sequence[str] | None, *, whole: bool) -> list[CellView]:
    """In tensor order, each with all its attempts. keys: only those; None means all, which are read as a stream.

    whole: with all evidence; else with TOLD_OF_MANY alone. Equal evidence is one object, which nobody may change.
    """
    chosen = cells.c.experiment_id == experiment
    if keys is not None:
        chosen &= cells.c.key == sa.any_(sa.literal(list(keys), sa.ARRAY(sa.Text)))
    of_attempts = [attempts.c[one.name] for one in fields(AttemptView) if one.name != "evidence"]
    columns = [*of_attempts, _evidence(whole=whole).label("evidence")]
    own = sa.select(*columns, attempts.c.cell_key).join(cells, cells.c.key == attempts.c.cell_key)
    foreign = sa.select(*columns, attempts.c.cell_key, cells.c.key.label("adopter")).join(
        cells, cells.c.attempt_id == attempts.c.id
    )
    streamed = {"yield_per": _AT_ONCE} if keys is None else {}

    def work(c: sa.Connection) -> list[CellView]:
        def rows(query: sa.Select[Any]) -> Iterator[Any]:
            return iter(c.execute(query, execution_options=streamed))

        c.execute(_ONE_MOMENT)
        read: Callable[[str], Any] = cache(json.loads)
        found: dict[str, list[AttemptView]] = {}
        for row in rows(own.where(chosen).order_by(attempts.c.number)):
            found.setdefault(row.cell_key, []).append(_attempt(row, read))
        adopted = {
            row.adopter: (row.cell_key, _attempt(row, read))
            for row in rows(foreign.where(chosen, attempts.c.cell_key != cells.c.key))
        }
        every = sa.select(cells).where(chosen).order_by(cells.c.ordinal)
        return [_cell(row, found.pop(row.key, []), adopted.get(row.key)) for row in rows(every)]

    return database.run(work)


def _evidence(*, whole: bool) -> sa.ColumnElement[str]:
    """As text."""
    if whole:
        return sa.cast(attempts.c.evidence, sa.Text)
    told = sa.func.jsonb_each(attempts.c.evidence).table_valued("key", "value")
    picked = sa.select(sa.func.jsonb_object_agg(told.c.key, told.c.value)).where(told.c.key.in_(TOLD_OF_MANY))
    return sa.cast(picked.scalar_subquery(), sa.Text)


def _attempt(row: Any, read: Callable[[str], Any]) -> AttemptView:
    return AttemptView(
        id=row.id,
        number=row.number,
        sandbox=row.sandbox,
        outcome=_same(row.outcome),
        created_at=row.created_at,
        agent_started_at=row.agent_started_at,
        deadline_at=row.deadline_at,
        ended_at=row.ended_at,
        error=row.error,
        error_class=_same(row.error_class),
        bundle=row.bundle,
        usage=row.usage or [],
        cost_usd=row.cost_usd,
        latency_s=row.latency_s,
        evidence=read(row.evidence or "{}"),
        discarded=row.discarded,
        sandbox_s=row.sandbox_s,
        sandbox_cost_usd=row.sandbox_cost_usd,
        sandbox_rate=_same(row.sandbox_rate),
        usage_source=_same(row.usage_source),
    )


def _cell(row: Any, tried: list[AttemptView], adopted: tuple[str, AttemptView] | None) -> CellView:
    own = next((attempt for attempt in tried if attempt.id == row.attempt_id), None)
    return CellView(
        key=row.key,
        ordinal=row.ordinal,
        state=intern(row.state),
        outcome=_same(row.outcome),
        engine_id=row.engine_id,
        logged=row.attempt_id is not None and row.logged_attempt_id == row.attempt_id,
        updated_at=row.updated_at,
        counted=own if adopted is None else adopted[1],
        attempts=tried,
        adopted_from=None if adopted is None else adopted[0],
        cell_digest=row.cell_digest,
    )


def _same(name: str | None) -> str | None:
    """One of few, in many rows: held once."""
    return None if name is None else intern(name)
