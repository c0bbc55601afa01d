"""Results of other experiments for cells that would run the same: equal `cell_digest`, valid, not discarded, with all that it left.

A cell that takes one refers to the original attempt and has none of its own. Which one is decided before any score is looked at: the
oldest. Cells of one experiment never share one: two arms that are the same are still two samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from eval_pipeline.store.database import Database

_FREE = """
wanted as (
  select w.key, w.digest, row_number() over (partition by w.digest order by w.ordinal) as place
  from {wanted} w where w.taken is null
),
there as (
  select a.id as attempt, a.cell_key, a.outcome, o.cell_digest as digest,
    row_number() over (partition by o.cell_digest order by a.id) as place
  from evals.attempts a join evals.cells o on o.key = a.cell_key
  where o.cell_digest in (select digest from wanted) and o.attempt_id = a.id and a.discarded is null and a.bundle is not null
    and a.given_up_at is null
    and o.experiment_id <> :experiment and a.id not in (select taken from {wanted} t where t.taken is not null)
)
"""

_PLANNED = sa.text(
    "with given as (select * from unnest(cast(:keys as text[]), cast(:digests as text[])) with ordinality as g(key, digest, ordinal)),"
    "planned as (select g.key, g.digest, g.ordinal, c.attempt_id as taken from given g left join evals.cells c on c.key = g.key"
    "  where c.key is null or c.attempt_id is not null or (c.state = 'open' and c.fence = 0)),"
    + _FREE.format(wanted="planned")
    + "select wanted.key, there.cell_key from wanted join there using (digest, place)"
)

_ADOPT = sa.text(
    "with mine as (select key, cell_digest as digest, ordinal, attempt_id as taken from evals.cells"
    "  where experiment_id = :experiment and (attempt_id is not null or (state = 'open' and fence = 0)) for update),"
    + _FREE.format(wanted="mine")
    + "update evals.cells c set state = 'done', outcome = there.outcome, attempt_id = there.attempt, fence = c.fence + 1, updated_at = now()"
    " from wanted join there using (digest, place) where c.key = wanted.key returning c.key"
)

_TAKERS = sa.text(
    "select c.key from evals.cells o join evals.attempts a on a.id = o.attempt_id and a.cell_key = o.key"
    " join evals.cells c on c.attempt_id = a.id and c.key <> o.key where o.key = any(cast(:keys as text[])) order by c.key"
)


class Reuse:
    def __init__(self, database: Database) -> None:
        self._database = database

    def planned(self, experiment: str, digests: Mapping[str, str]) -> dict[str, str]:
        """digests: of an experiment's cells in tensor order, by key. Cell -> the cell whose result it would take."""
        values = {"keys": list(digests), "digests": list(digests.values()), "experiment": experiment}
        return {row.key: row.cell_key for row in self._database.run(lambda c: c.execute(_PLANNED, values).all())}

    def adopt(self, experiment: str) -> list[str]:
        """Of cells that nobody ever worked on. Returns those that have a result now."""
        return [row.key for row in self._database.run(lambda c: c.execute(_ADOPT, {"experiment": experiment}).all())]

    def takers(self, keys: Sequence[str]) -> list[str]:
        """Cells of other experiments that count what these cells have made themselves, in order."""
        return [row.key for row in self._database.run(lambda c: c.execute(_TAKERS, {"keys": list(keys)}).all())]
