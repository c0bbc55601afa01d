"""The append-only table of verdicts, keyed by what was asked, who judged and which vote."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from eval_pipeline.store.database import Database, storable
from eval_pipeline.store.schema import verdicts


@dataclass(frozen=True, kw_only=True)
class VerdictRow:
    request_digest: str
    judge_version: str
    vote: int
    bundle: str
    criterion: str
    verdict: float | None
    status: str
    reason: str | None


class Verdicts:
    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, rows: Sequence[VerdictRow]) -> None:
        """Rows that are there already stay as they are."""
        values = [{**row.__dict__, "reason": storable(row.reason)} for row in rows]
        if values:
            self._database.run(lambda c: c.execute(insert(verdicts).values(values).on_conflict_do_nothing()))

    def of_bundles(self, bundles: Iterable[str]) -> dict[str, VerdictRow]:
        """The first vote of each request, by request digest."""
        query = sa.select(verdicts).where(verdicts.c.bundle == sa.any_(sa.literal(list(set(bundles)), sa.ARRAY(sa.Text))))
        rows = self._database.run(lambda c: c.execute(query.where(verdicts.c.vote == 0)).all())
        return {
            row.request_digest: VerdictRow(
                request_digest=row.request_digest,
                judge_version=row.judge_version,
                vote=row.vote,
                bundle=row.bundle,
                criterion=row.criterion,
                verdict=row.verdict,
                status=row.status,
                reason=row.reason,
            )
            for row in rows
        }
