"""The append-only table of verdicts, keyed by what was asked, who judged and which vote."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from eval_pipeline.store.database import Database, storable
from eval_pipeline.store.schema import verdicts

_ADD = sa.text("""
insert into evals.verdicts (request_digest, judge_version, vote, bundle, criterion, verdict, status, reason)
select request_digest, judge_version, vote, bundle, criterion, verdict, status, reason from jsonb_to_recordset(:rows) as given(
  request_digest text, judge_version text, vote int, bundle text, criterion text, verdict double precision, status text, reason text)
on conflict do nothing returning vote""").bindparams(sa.bindparam("rows", type_=JSONB))


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
            self._database.step(_ADD, {"rows": values})

    def of_bundles(self, bundles: Iterable[str]) -> dict[str, VerdictRow]:
        """By request digest the vote that counts: the first that is ok, else the last that failed."""
        query = sa.select(verdicts).where(verdicts.c.bundle == sa.any_(sa.literal(list(set(bundles)), sa.ARRAY(sa.Text))))
        counted: dict[str, VerdictRow] = {}
        for row in self._database.run(lambda c: c.execute(query.order_by(verdicts.c.vote)).all()):
            before = counted.get(row.request_digest)
            if before is None or before.status != "ok":
                counted[row.request_digest] = _verdict(row)
        return counted


def _verdict(row: sa.Row[Any]) -> VerdictRow:
    return VerdictRow(
        request_digest=row.request_digest,
        judge_version=row.judge_version,
        vote=row.vote,
        bundle=row.bundle,
        criterion=row.criterion,
        verdict=row.verdict,
        status=row.status,
        reason=row.reason,
    )
