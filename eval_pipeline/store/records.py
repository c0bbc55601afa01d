"""The ledger's parts over one database, opened together."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from eval_pipeline.errors import NotFound
from eval_pipeline.settings import Settings
from eval_pipeline.store.benchmarks import Benchmarks
from eval_pipeline.store.database import Database
from eval_pipeline.store.judge_calls import JudgeCalls
from eval_pipeline.store.leases import Leases
from eval_pipeline.store.ledger import Ledger
from eval_pipeline.store.liveness import end_dead_engines
from eval_pipeline.store.postgres import embedded_server, restart_if_down
from eval_pipeline.store.researches import Researches
from eval_pipeline.store.reuse import Reuse
from eval_pipeline.store.reviews import Reviews
from eval_pipeline.store.scorings import Scorings
from eval_pipeline.store.spending import Spending
from eval_pipeline.store.verdicts import Verdicts
from eval_pipeline.store.views import Views


@dataclass(frozen=True, kw_only=True)
class Records:
    database: Database
    ledger: Ledger
    leases: Leases
    verdicts: Verdicts
    views: Views

    @property
    def benchmarks(self) -> Benchmarks:
        return Benchmarks(self.database)

    @property
    def judge_calls(self) -> JudgeCalls:
        return JudgeCalls(self.database)

    @property
    def reuse(self) -> Reuse:
        return Reuse(self.database)

    @property
    def reviews(self) -> Reviews:
        return Reviews(self.database)

    @property
    def researches(self) -> Researches:
        return Researches(self.database)

    @property
    def scorings(self) -> Scorings:
        return Scorings(self.database)

    @property
    def spending(self) -> Spending:
        return Spending(self.database)


@contextmanager
def open_records(settings: Settings, *, patience_s: float = 5.0) -> Generator[Records]:
    """Start the embedded server if need be, upgrade the ledger, connect, and end the leases of this place's dead engines.

    patience_s: how long a transaction is repeated while Postgres does not answer. An engine has reason to wait longer.
    """
    with embedded_server(settings) as url:
        database = Database(url, patience_s=patience_s, on_outage=lambda: restart_if_down(settings))
        try:
            leases = Leases(database)
            database.migrate(end_dead=lambda: end_dead_engines(leases, settings))
            end_dead_engines(leases, settings)
            yield Records(
                database=database,
                ledger=Ledger(database),
                leases=leases,
                verdicts=Verdicts(database),
                views=Views(database),
            )
        finally:
            database.close()


@contextmanager
def read_records(settings: Settings) -> Generator[Records]:
    """For what only makes sense where something was made before: never makes a state directory. Raises NotFound."""
    if settings.postgres_url is None and not settings.state_dir.is_dir():
        hint = "run in the project's folder, or set EVALS_STATE_DIR; `evals demo` or `evals experiment run` make one"
        raise NotFound(f"no state directory at {settings.state_dir}", hint=hint)
    with open_records(settings) as records:
        yield records
