"""Which artifacts the ledger refers to: a digest that stands anywhere in one of its rows is one that is needed.

So a new column, or a new field of a JSON value, needs no mention here. Verdicts are no reason to keep a bundle: its attempt is.
"""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from eval_pipeline.store.database import Database
from eval_pipeline.store.schema import artifact_marks, metadata

_NO_REASON = {"verdicts", "artifact_marks"}
_BATCH = 5000
_ROWS = "select distinct (regexp_matches({row}::text, '[0-9a-f]{{64}}', 'g'))[1] as digest from {table} {row}"
# Attempts of experiments that have been archived for long may have been given up, unless another experiment counts them as its own
_KEPT = """ where exists (select 1 from evals.cells c join evals.experiments e on e.id = c.experiment_id
  where (c.key = r.cell_key or c.attempt_id = r.id)
    and (e.archived_at is null or e.archived_at >= now() - make_interval(secs => :archived_s)))"""
# An attempt and what it left: a result without its bundle can be scored no more
_GIVE_UP = sa.text("""update evals.attempts r set given_up_at = now() where given_up_at is null and exists (
  select 1 from regexp_matches(r::text, '[0-9a-f]{64}', 'g') as found(digest) where found.digest[1] = any(:digests))""")
_TAKE_BACK = sa.text("""update evals.attempts r set given_up_at = null where given_up_at is not null and exists (
  select 1 from regexp_matches(r::text, '[0-9a-f]{64}', 'g') as found(digest) where found.digest[1] = any(:digests))""")
# What Dagster links to of scored tables
_DAGSTER = """select distinct (regexp_matches(event, '[0-9a-f]{64}', 'g'))[1] as digest from public.event_logs
  where dagster_event_type = 'ASSET_MATERIALIZATION' and asset_key like '%scored_table%'"""


def referenced(database: Database, given_up_after_s: float | None) -> set[str]:
    """given_up_after_s: what only experiments that have been archived for longer refer to does not count; None: it does."""

    def work(c: sa.Connection) -> set[str]:
        found: set[str] = set()
        for table in metadata.sorted_tables:
            if table.name not in _NO_REASON:
                query = _ROWS.format(row="r", table=f"evals.{table.name}")
                limited = table.name == "attempts" and given_up_after_s is not None
                values = {"archived_s": given_up_after_s} if limited else {}
                found |= {row.digest for row in c.execute(sa.text(query + (_KEPT if limited else "")), values)}
        if c.execute(sa.text("select to_regclass('public.event_logs')")).scalar() is not None:
            found |= {row.digest for row in c.execute(sa.text(_DAGSTER))}
        return found

    return database.run(work)


def mark(database: Database, store: str, unreferenced: Iterable[str]) -> dict[str, float]:
    """Digest -> seconds since it was first found without a reference, in every look since. The marks of all others are taken away."""
    digests = list(unreferenced)
    here = artifact_marks.c.store == store
    age_s = sa.cast(sa.extract("epoch", sa.func.now() - artifact_marks.c.marked_at), sa.Double).label("age_s")

    def work(c: sa.Connection) -> dict[str, float]:
        gone = artifact_marks.c.digest != sa.all_(sa.literal(digests, sa.ARRAY(sa.Text)))
        c.execute(sa.delete(artifact_marks).where(here, gone))
        for start in range(0, len(digests), _BATCH):
            rows = [{"store": store, "digest": digest} for digest in digests[start : start + _BATCH]]
            c.execute(insert(artifact_marks).values(rows).on_conflict_do_nothing())
        return {row.digest: row.age_s for row in c.execute(sa.select(artifact_marks.c.digest, age_s).where(here))}

    return database.run(work)


def give_up(database: Database, digests: Iterable[str]) -> None:
    """Before these are removed: from here on no other experiment takes over a result that needs one of them."""
    database.run(lambda c: c.execute(_GIVE_UP, {"digests": list(digests)}))


def take_back(database: Database, digests: Iterable[str]) -> None:
    """Of what was not removed after all."""
    database.run(lambda c: c.execute(_TAKE_BACK, {"digests": list(digests)}))
