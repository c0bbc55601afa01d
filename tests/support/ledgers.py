"""A ledger in a database of the test's own, with engines and experiments in it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from support.locks import locked_case, run_lock, score_lock

from eval_pipeline.domain.cell import AttemptResult, Outcome
from eval_pipeline.domain.lock import RunLock
from eval_pipeline.host import HostIdentity
from eval_pipeline.store.cell_views import CellView
from eval_pipeline.store.database import Database
from eval_pipeline.store.leases import Leases
from eval_pipeline.store.ledger import Claim, Ledger, OpenAttempt
from eval_pipeline.store.schema import attempts, cells, engines
from eval_pipeline.store.verdicts import Verdicts
from eval_pipeline.store.views import Views

HERE = HostIdentity("host-1", "place-1", "one")
AFTER_REBOOT = HostIdentity("host-1b", "place-1", "one")
THERE = HostIdentity("host-2", "place-2", "two")


class Books:
    def __init__(self, url: str) -> None:
        self.database = Database(url)
        self.database.migrate()
        self.ledger = Ledger(self.database)
        self.leases = Leases(self.database)
        self.views = Views(self.database)
        self.verdicts = Verdicts(self.database)

    def engine(self, host: HostIdentity = HERE) -> str:
        name = str(uuid.uuid4())
        self.leases.open_engine(name, host, os.getpid(), None)
        return name

    def expire(self, engine: str) -> None:
        """As if its process had been gone for an hour."""
        past = sa.func.now() - timedelta(hours=1)
        self.database.run(lambda c: c.execute(sa.update(engines).where(engines.c.id == engine).values(lease_until=past)))

    def experiment(self, n_cases: int = 1, *, budget_usd: str | None = None, name: str = "x", **more: Any) -> RunLock:
        run = run_lock(name, [locked_case(f"c{n}") for n in range(n_cases)], **more)
        budget = None if budget_usd is None else Decimal(budget_usd)
        self.ledger.create_experiment(run, score_lock(run), repo="/app", baseline=None, budget_usd=budget)
        return run

    def claim(self, run: RunLock, engine: str | None = None) -> Claim:
        """The experiment's first free cell."""
        return self.ledger.claim(engine or self.engine(), keys(run), HERE.place)[0]

    def begin(self, claim: Claim, host: HostIdentity = HERE, reserve_usd: str = "0", backend: str = "local") -> OpenAttempt:
        return self.ledger.begin_attempt(
            claim, backend=backend, host_id=host.id, name_sandbox=lambda n: f"e-{claim.key}-{n}", reserve_usd=Decimal(reserve_usd)
        )

    def finish(
        self, claim: Claim, attempt: OpenAttempt, outcome: Outcome = Outcome.OK, *, last: bool = False, **more: Any
    ) -> None:
        self.ledger.finish_attempt(claim, attempt.id, AttemptResult(outcome=outcome, **more), last=last)

    def cell(self, key: str) -> CellView:
        (view,) = self.views.cells(key.partition("/")[0], [key])
        return view

    def row(self, key: str) -> Any:
        return self.database.run(lambda c: c.execute(sa.select(cells).where(cells.c.key == key)).one())

    def attempt_row(self, attempt: OpenAttempt) -> Any:
        return self.database.run(lambda c: c.execute(sa.select(attempts).where(attempts.c.id == attempt.id)).one())

    def committed_usd(self, run: RunLock) -> Decimal:
        return self.ledger.experiment(run.experiment_id).committed_usd


def keys(run: RunLock) -> list[str]:
    return [str(key) for key in run.cell_keys()]


def claimed(claims: Sequence[Claim]) -> list[str]:
    return [claim.key for claim in claims]
