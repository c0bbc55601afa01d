"""Benchmarks: which arms of which experiments stand in one table, and since when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from eval_pipeline.store.database import Database
from eval_pipeline.store.schema_benchmarks import benchmark_entries


@dataclass(frozen=True, kw_only=True)
class BenchmarkEntry:
    """identity: digest of what the arm is; equal ones are one arm, whatever its name."""

    benchmark: str
    identity: str
    experiment: str
    arm: str
    entered_at: datetime


class Benchmarks:
    def __init__(self, database: Database) -> None:
        self._database = database

    def names(self) -> dict[str, int]:
        """With the number of their arms."""
        query = sa.select(benchmark_entries.c.benchmark, sa.func.count()).group_by(benchmark_entries.c.benchmark)
        rows = self._database.run(lambda c: c.execute(query.order_by(benchmark_entries.c.benchmark)).all())
        return {name: count for name, count in rows}

    def entries(self, benchmark: str) -> list[BenchmarkEntry]:
        """Oldest first; those of one moment by their arm's name."""
        query = sa.select(benchmark_entries).where(benchmark_entries.c.benchmark == benchmark)
        query = query.order_by(benchmark_entries.c.entered_at, benchmark_entries.c.experiment_id, benchmark_entries.c.place)
        return [
            BenchmarkEntry(
                benchmark=row.benchmark,
                identity=row.identity,
                experiment=row.experiment_id,
                arm=row.arm,
                entered_at=row.entered_at,
            )
            for row in self._database.run(lambda c: c.execute(query).all())
        ]

    def add(self, benchmark: str, experiment: str, arms: Iterable[tuple[str, str]]) -> set[str]:
        """arms: identity and name. Returns the identities that are new; one that is there already keeps its first result."""
        rows = [
            {"benchmark": benchmark, "identity": identity, "experiment_id": experiment, "arm": arm, "place": place}
            for place, (identity, arm) in enumerate(arms)
        ]
        if not rows:
            return set()
        added = insert(benchmark_entries).values(rows).on_conflict_do_nothing().returning(benchmark_entries.c.identity)
        return set(self._database.run(lambda c: c.execute(added).scalars().all()))

    def remove(self, benchmark: str, arm: str, experiment: str) -> bool:
        """Whether it was there."""
        mine = (benchmark_entries.c.benchmark == benchmark) & (benchmark_entries.c.arm == arm)
        gone = sa.delete(benchmark_entries).where(mine, benchmark_entries.c.experiment_id == experiment)
        return self._database.run(lambda c: c.execute(gone).rowcount) > 0
