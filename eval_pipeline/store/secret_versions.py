"""Which versions of which secrets there are, and which one an attempt was given. Never a value."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from eval_pipeline.errors import FenceLost
from eval_pipeline.store.database import Database
from eval_pipeline.store.prepared import Step
from eval_pipeline.store.rows import Claim
from eval_pipeline.store.schema import attempts, secret_versions

Phase = Literal["build", "agent"]

_GIVEN = Step("select evidence -> 'secrets' from evals.attempts where id = :attempt", attempt="bigint")

_GIVE = Step(
    """
with held as (
  select key from evals.cells where key = :key and fence = :fence and engine_id = cast(:engine as uuid) for update
), latest as (
  select distinct on (name) name, version from evals.secret_versions
  where place = :place and phase = 'agent' and name = any(:names) order by name, last_seen desc
)
update evals.attempts set evidence = coalesce(evidence, '{}') || jsonb_build_object('secrets', coalesce(
  case when :again then null else evidence -> 'secrets' end, (select jsonb_object_agg(name, version) from latest), '{}'))
from held where id = :attempt
returning evidence -> 'secrets'""",
    fence="bigint",
    attempt="bigint",
    names="text[]",
    again="boolean",
)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a sync found: a version of a name that a phase declares. source: the kind of source it came from.

    changed_at: when the value came to be, where the source knows.
    """

    name: str
    phase: Phase
    version: str
    source: str
    changed_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class SecretVersion:
    """synced_at: when it was first seen. The ages are seconds by Postgres' clock: since then, and since it was seen last.

    changed_at: when the value came to be, None where its source does not know; value_age_s: since then, else since synced_at.
    """

    name: str
    phase: Phase
    version: str
    source: str
    synced_at: datetime
    last_seen: datetime
    age_s: float
    unseen_s: float
    changed_at: datetime | None
    value_age_s: float


class SecretVersions:
    """Of one place: values are kept where they were read."""

    def __init__(self, database: Database, place: str) -> None:
        self._database = database
        self._place = place

    def seen(self, found: Iterable[Seen]) -> None:
        rows = [{"place": self._place, **one.__dict__} for one in found]
        statement = insert(secret_versions).values(rows)
        again = {
            "last_seen": sa.func.clock_timestamp(),
            "source": statement.excluded.source,
            "changed_at": statement.excluded.changed_at,
        }
        if rows:
            key = ["place", "name", "phase", "version"]
            self._database.run(lambda c: c.execute(statement.on_conflict_do_update(index_elements=key, set_=again)))

    def in_use(self) -> list[SecretVersion]:
        """Of each (name, phase) the version that was seen last."""
        table = secret_versions.c
        own = table.place == self._place
        newest = sa.select(table.name, table.phase, sa.func.max(table.last_seen)).where(own).group_by(table.name, table.phase)
        query = _ages().where(own, sa.tuple_(table.name, table.phase, table.last_seen).in_(newest))
        return [SecretVersion(**row) for row in self._rows(query)]

    def seen_within(self, seconds: float) -> set[tuple[str, str]]:
        """(name, version) of those that a sync saw in this time."""
        recent = secret_versions.c.last_seen > sa.func.now() - sa.func.make_interval(0, 0, 0, 0, 0, 0, seconds)
        return {
            (row["name"], row["version"]) for row in self._rows(_ages().where(secret_versions.c.place == self._place, recent))
        }

    def named_by_open_attempts(self) -> set[tuple[str, str]]:
        given = attempts.c.evidence["secrets"]
        query = sa.select(given.label("given")).where(attempts.c.ended_at.is_(None), attempts.c.evidence.has_key("secrets"))
        return {(name, version) for row in self._rows(query) for name, version in row["given"].items()}

    def given(self, attempt_id: int) -> dict[str, str]:
        """What an attempt was given: name -> version."""
        return self._database.step(_GIVEN, {"attempt": attempt_id}) or {}

    def give(self, claim: Claim, attempt_id: int, names: Collection[str], *, again: bool = False) -> dict[str, str]:
        """Note on the attempt which version of each name it gets, and return that: name -> version, for those there are.

        What an attempt was given before stays, unless `again`. Raises FenceLost.
        """
        values = {"key": claim.key, "fence": claim.fence, "engine": claim.engine_id, "attempt": attempt_id}
        given = self._database.step(_GIVE, {**values, "place": self._place, "names": sorted(names), "again": again})
        if given is None:
            raise FenceLost(f"{claim.key}: another engine owns this cell now (our fence was {claim.fence})")
        return given

    def _rows(self, query: sa.Select[Any]) -> Sequence[sa.RowMapping]:
        return self._database.run(lambda c: c.execute(query).mappings().all())


def _ages() -> sa.Select[Any]:
    table = secret_versions.c
    ages = [
        sa.func.greatest(0.0, sa.cast(sa.extract("epoch", sa.func.clock_timestamp() - since), sa.Double)).label(name)
        for name, since in (
            ("age_s", table.synced_at),
            ("unseen_s", table.last_seen),
            ("value_age_s", sa.func.coalesce(table.changed_at, table.synced_at)),
        )
    ]
    facts = (table.name, table.phase, table.version, table.source, table.synced_at, table.last_seen, table.changed_at)
    return sa.select(*facts, *ages)
