"""Researches in the ledger: their locks, their append-only journals, and the money of the experiments that are run for them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from eval_pipeline.domain.lock import RunLock, ScoreLock
from eval_pipeline.errors import BudgetExceeded, FenceLost, NotFound
from eval_pipeline.store import scorings
from eval_pipeline.store.database import Database
from eval_pipeline.store.schema import experiments, research_journal, research_runs, researches, score_locks
from eval_pipeline.store.spending import WORKED


@dataclass(frozen=True, kw_only=True)
class NewResearch:
    """run: all cases of both halves, with the baseline as its one arm. split: the names of the cases of `dev` and of `holdout`."""

    id: str
    name: str
    source_digest: str
    goal: dict[str, Any]
    run: RunLock
    score: ScoreLock
    split: dict[str, list[str]]
    repo: str
    created_by: str | None


@dataclass(frozen=True, kw_only=True)
class ResearchRow(NewResearch):
    """As it is in the ledger."""

    stop_requested: str | None
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class JournalRow:
    ordinal: int
    kind: str
    step: int
    data: dict[str, Any]
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What a research may use in all; None: no such bound."""

    cost_usd: Decimal | None
    cells: int | None
    wall_s: float | None


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """usd, cells: what the experiment's open cells need at most. other_usd: spent besides the research's experiments."""

    experiment: str
    step: int
    half: str
    usd: Decimal
    cells: int
    other_usd: Decimal


@dataclass(frozen=True, kw_only=True)
class Spent:
    """committed_usd: spent and reserved by its experiments, judges and orphaned attempts among it. begun_cells: that were begun for it."""

    committed_usd: Decimal = Decimal(0)
    begun_cells: int = 0
    experiments: tuple[str, ...] = ()


_SOME_S = 1.0
_WORKED = sa.text("""
select coalesce(extract(epoch from sum(upper(span) - lower(span))), 0)::double precision from unnest((
  select range_agg(tstzrange(a.created_at, greatest(a.created_at, coalesce(a.ended_at, least(clock_timestamp(), a.deadline_at, g.lease_until)))))
  from evals.attempts a join evals.cells c on c.key = a.cell_key left join evals.engines g on g.id = c.engine_id
  where c.experiment_id in (select experiment_id from evals.research_runs where research_id = :research))) as span""")


class Researches:
    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, new: NewResearch, started: dict[str, Any]) -> None:
        """With the first row of its journal; nothing happens when it is there already."""

        def work(c: sa.Connection) -> None:
            scorings.keep(c, new.score)
            row = {name: value for name, value in new.__dict__.items() if name not in ("run", "score")}
            row |= {"run_lock": new.run.model_dump(mode="json"), "score_digest": new.score.digest}
            if c.execute(insert(researches).values(row).on_conflict_do_nothing().returning(researches.c.id)).first() is not None:
                first = {"research_id": new.id, "ordinal": 0, "kind": "started", "step": 0, "data": started}
                c.execute(insert(research_journal).values(first))

        self._database.run(work)

    def find(self, name: str) -> ResearchRow:
        """By id, by name (the newest of several), or by the beginning of an id. Raises NotFound."""
        same = sa.or_(researches.c.name == name, researches.c.id.startswith(name, autoescape=True))
        found = self._rows(same)
        exact = [row for row in found if row.id == name] or [row for row in found if row.name == name] or found
        if exact:
            return exact[0]
        known = ", ".join(row.id for row in self.all()[:10])
        raise NotFound(
            f"there is no research {name!r}", hint=f"known: {known or 'none; begin one with `evals research run GOAL`'}"
        )

    def of_source(self, name: str, source_digest: str) -> ResearchRow | None:
        """The newest of the same goal file, whatever its ref pointed to then."""
        return next(iter(self._rows(researches.c.name == name, researches.c.source_digest == source_digest)), None)

    def all(self) -> list[ResearchRow]:
        """Newest first."""
        return self._rows()

    def _rows(self, *conditions: sa.ColumnElement[bool]) -> list[ResearchRow]:
        query = sa.select(researches, score_locks.c.lock).join(score_locks, score_locks.c.digest == researches.c.score_digest)
        found = self._database.run(
            lambda c: c.execute(query.where(*conditions).order_by(researches.c.created_at.desc())).mappings().all()
        )
        return [_research(row) for row in found]

    def set_goal(self, research: str, goal: dict[str, Any]) -> None:
        """What may be changed while it goes on: its budget, stop rules and proposer."""
        self._database.run(lambda c: c.execute(sa.update(researches).where(researches.c.id == research).values(goal=goal)))

    def request_stop(self, research: str, why: str | None) -> None:
        """None: the request is done with."""
        change = sa.update(researches).where(researches.c.id == research).values(stop_requested=why)
        self._database.run(lambda c: c.execute(change))

    def stop_requested(self, research: str) -> str | None:
        query = sa.select(researches.c.stop_requested).where(researches.c.id == research)
        return self._database.run(lambda c: c.execute(query).scalar_one())

    # ---- the journal

    def journal(self, research: str) -> list[JournalRow]:
        query = sa.select(research_journal).where(research_journal.c.research_id == research).order_by(research_journal.c.ordinal)
        rows = self._database.run(lambda c: c.execute(query).all())
        return [JournalRow(ordinal=r.ordinal, kind=r.kind, step=r.step, data=r.data, created_at=r.created_at) for r in rows]

    def append(self, research: str, ordinal: int, kind: str, step: int, data: dict[str, Any]) -> None:
        """ordinal: of the row, which nobody else may have written. Raises FenceLost when somebody has."""
        key = {"research_id": research, "ordinal": ordinal}
        row = {**key, "kind": kind, "step": step, "data": data}

        def work(c: sa.Connection) -> bool:
            new = insert(research_journal).values(row).on_conflict_do_nothing().returning(research_journal.c.ordinal)
            if c.execute(new).first() is not None:
                return True
            there = c.execute(sa.select(research_journal).filter_by(**key)).one()
            return (there.kind, there.step, there.data) == (kind, step, data)  # our own, when the commit's answer was lost

        if not self._database.run(work):
            raise FenceLost(f"{research}: another process has gone on with it (row {ordinal} of its journal)")

    @contextmanager
    def driving(self, research: str) -> Generator[bool]:
        """Whether this process alone drives it, for as long as the block lasts. Ends with the process, however that ends."""
        connection = self._database.steps.connect()
        try:
            lock = sa.text("select pg_try_advisory_lock(hashtextextended(:name, 0))")
            yield bool(connection.execute(lock, {"name": f"research {research}"}).scalar_one())
        finally:
            connection.invalidate()  # closes the session, and the lock with it
            connection.close()

    # ---- money

    def spent(self, research: str) -> Spent:
        return self._database.run(lambda c: _spent(c, research))

    def worked_s(self, research: str) -> float:
        """How long at least one attempt of its experiments was under way."""
        return self._database.run(lambda c: c.execute(_WORKED, {"research": research}).scalar_one())

    def runs(self, research: str) -> dict[str, tuple[int, str]]:
        """Experiment -> the step and the half that it was run for."""
        query = sa.select(research_runs).where(research_runs.c.research_id == research).order_by(research_runs.c.created_at)
        return {row.experiment_id: (row.step, row.half) for row in self._database.run(lambda c: c.execute(query).all())}

    def reserve(self, research: str, asked: Reservation, bounds: Bounds) -> Bounds:
        """Give the experiment all that is left of the bounds, if what it needs fits; the others of the research can spend no more then.

        Raises BudgetExceeded.
        """

        def work(c: sa.Connection) -> Bounds:
            c.execute(sa.select(researches.c.id).where(researches.c.id == research).with_for_update())
            mine, others = _spent(c, research, only=asked.experiment), _spent(c, research, without=asked.experiment)
            worked_s = c.execute(_WORKED, {"research": research}).scalar_one()
            mine_s = c.execute(WORKED, {"experiment": asked.experiment}).scalar_one()
            needs_s = mine_s + (_SOME_S if asked.cells else 0.0)
            what = f"step {asked.step} on {asked.half}"
            left = Bounds(
                cost_usd=_left(
                    what, "cost_usd", bounds.cost_usd, others.committed_usd + asked.other_usd, mine.committed_usd + asked.usd
                ),
                cells=_left(what, "cells", bounds.cells, others.begun_cells, mine.begun_cells + asked.cells),
                wall_s=_left(what, "wall_s", bounds.wall_s, worked_s - mine_s, needs_s),
            )
            row = {"experiment_id": asked.experiment, "research_id": research, "step": asked.step, "half": asked.half}
            c.execute(insert(research_runs).values(row).on_conflict_do_nothing())
            close = {} if bounds.cost_usd is None else {"budget_usd": experiments.c.committed_usd}
            close |= {} if bounds.cells is None else {"budget_cells": experiments.c.begun_cells}
            if close and others.experiments:
                c.execute(sa.update(experiments).where(experiments.c.id.in_(others.experiments)).values(close))
            return left

        return self._database.run(work)


def _left(what: str, key: str, bound: Any, used: Any, needs: Any) -> Any:
    """What the experiment may use in all, None without a bound."""
    if bound is None:
        return None
    left = bound - used
    if needs > left:
        raise BudgetExceeded(
            f"{what} may need {_number(needs)} of budget.{key}, and {_number(max(left, left * 0))} of {_number(bound)} are left",
            hint=f"raise budget.{key} in the goal file and run it again: it goes on with this step",
        )
    return left


def _number(value: Any) -> str:
    return f"{float(value):.6g}"


def _spent(c: sa.Connection, research: str, *, only: str | None = None, without: str | None = None) -> Spent:
    query = (
        sa.select(experiments.c.id, experiments.c.committed_usd, experiments.c.begun_cells)
        .join(research_runs, research_runs.c.experiment_id == experiments.c.id)
        .where(research_runs.c.research_id == research)
        .order_by(experiments.c.id)
        .with_for_update(of=experiments)
    )
    if only is not None:
        query = query.where(experiments.c.id == only)
    if without is not None:
        query = query.where(experiments.c.id != without)
    rows = c.execute(query).all()
    return Spent(
        committed_usd=sum((row.committed_usd for row in rows), Decimal(0)),
        begun_cells=sum(row.begun_cells for row in rows),
        experiments=tuple(row.id for row in rows),
    )


def _research(row: sa.RowMapping) -> ResearchRow:
    return ResearchRow(
        id=row["id"],
        name=row["name"],
        source_digest=row["source_digest"],
        goal=row["goal"],
        run=RunLock.model_validate(row["run_lock"], strict=False),
        score=ScoreLock.model_validate(row["lock"], strict=False),
        split=row["split"],
        repo=row["repo"],
        stop_requested=row["stop_requested"],
        created_by=row["created_by"],
        created_at=row["created_at"],
    )
