"""The append-only table of verdicts, keyed by what was asked, who judged and which vote."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from eval_pipeline.domain.verdict import VerdictRow
from eval_pipeline.store.database import Database, storable, storable_json
from eval_pipeline.store.prepared import Step
from eval_pipeline.store.schema import verdicts

_ADD = Step(
    """
insert into evals.verdicts (request_digest, judge_version, vote, bundle, criterion, verdict, status, reason, quotes)
select request_digest, judge_version, vote, bundle, criterion, verdict, status, reason, quotes from jsonb_to_recordset(:rows) as given(
  request_digest text, judge_version text, vote int, bundle text, criterion text, verdict double precision, status text, reason text,
  quotes jsonb)
on conflict do nothing returning vote""",
    rows="jsonb",
)


class Verdicts:
    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, rows: Sequence[VerdictRow]) -> None:
        """Rows that are there already stay as they are."""
        if rows:
            self._database.step(_ADD, {"rows": _values(rows)})

    def of_bundles(self, bundles: Iterable[str]) -> dict[str, VerdictRow]:
        """By request digest the vote that counts: the first that is ok, else the last that failed."""
        query = sa.select(verdicts).where(verdicts.c.bundle == sa.any_(sa.literal(list(set(bundles)), sa.ARRAY(sa.Text))))
        counted: dict[str, VerdictRow] = {}
        for row in self._database.run(lambda c: c.execute(query.order_by(verdicts.c.vote)).all()):
            before = counted.get(row.request_digest)
            if before is None or before.status != "ok":
                counted[row.request_digest] = _verdict(row)
        return counted

    def votes(self, requests: Iterable[str], judge_version: str) -> dict[str, list[VerdictRow]]:
        """By request digest all that one judge said, in order; what it said nothing to is left out."""
        asked = verdicts.c.request_digest == sa.any_(sa.literal(list(set(requests)), sa.ARRAY(sa.Text)))
        query = sa.select(verdicts).where(asked, verdicts.c.judge_version == judge_version).order_by(verdicts.c.vote)
        found: dict[str, list[VerdictRow]] = {}
        for row in self._database.run(lambda c: c.execute(query).all()):
            found.setdefault(row.request_digest, []).append(_verdict(row))
        return found


def adding(rows: Sequence[VerdictRow]) -> tuple[Step, dict[str, object]]:
    """What `Verdicts.add` does, for a transaction of the caller's."""
    return _ADD, {"rows": _values(rows)}


def _values(rows: Sequence[VerdictRow]) -> list[dict[str, Any]]:
    """In one order for all: who adds the same ones in another would wait for each other."""
    return [
        {**row.__dict__, "reason": storable(row.reason), "quotes": storable_json(list(row.quotes)) or None}
        for row in sorted(rows, key=lambda row: (row.request_digest, row.judge_version, row.vote))
    ]


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
        quotes=tuple(row.quotes or ()),
    )
