"""The ledger: experiments, cells and attempts. Every change is one transaction; writes about a cell carry its fence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from eval_pipeline.domain.budget import UNPRICED, SandboxTerms
from eval_pipeline.domain.cell import AttemptResult, CellState, Outcome
from eval_pipeline.domain.lock import RunLock, ScoreLock
from eval_pipeline.domain.world import MadeWith
from eval_pipeline.errors import FenceLost
from eval_pipeline.store import scorings, steps
from eval_pipeline.store.database import Database, storable
from eval_pipeline.store.holding import fence_lost, hold, open_attempts, reserve, take
from eval_pipeline.store.rows import (
    Begun,
    Claim,
    ExperimentRow,
    OpenAttempt,
    Stopping,
    no_experiment,
    read_experiment,
    read_snapshot,
)
from eval_pipeline.store.schema import (
    HANDED_OVER,
    attempts,
    cells,
    engines,
    experiments,
    hosts,
    installation,
    score_locks,
    snapshots,
)
from eval_pipeline.store.snapshots import Snapshot


class Ledger:
    def __init__(self, database: Database) -> None:
        self.database = database

    def _run(self, work: Callable[[sa.Connection], Any]) -> Any:
        return self.database.run(work)

    def installation_id(self) -> str:
        return self._run(lambda c: c.execute(sa.select(installation.c.id)).scalar_one())

    # ---- experiments

    def create_experiment(
        self,
        run: RunLock,
        score: ScoreLock,
        *,
        repo: str,
        baseline: str | None,
        budget_usd: Decimal | None,
        budget_cells: int | None = None,
        budget_wall_s: float | None = None,
        created_by: str | None = None,
    ) -> bool:
        """Store the locks and the cells. True when the experiment is new; else its score lock, baseline and budgets are updated."""

        def work(c: sa.Connection) -> bool:
            scorings.keep(c, score)
            budget = {"budget_usd": budget_usd, "budget_cells": budget_cells, "budget_wall_s": budget_wall_s}
            presentation: dict[str, Any] = {"score_digest": score.digest, "repo": repo, "baseline": baseline, **budget}
            digests = {"run_digest": run.digest, "source_digest": run.source_digest}
            keys = run.cell_keys()
            row = {
                "id": run.experiment_id,
                "name": run.name,
                "run_lock": run.model_dump(mode="json"),
                "n_cells": len(keys),
                "created_by": created_by,
                **presentation,
            } | digests
            created = c.execute(insert(experiments).values(row).on_conflict_do_nothing().returning(experiments.c.id)).first()
            scorings.note(c, run.experiment_id, score.digest)
            if created is None:
                change = {**presentation, "cancel_requested_at": None, "archived_at": None, "ran_at": sa.func.now()}
                c.execute(sa.update(experiments).where(experiments.c.id == run.experiment_id).values(change))
                return False
            rows = [
                {"key": str(key), "experiment_id": run.experiment_id, "ordinal": ordinal, "cell_digest": run.cell_digest(key)}
                for ordinal, key in enumerate(keys)
            ]
            c.execute(insert(cells), rows)
            return True

        return self._run(work)

    def experiment(self, name: str) -> ExperimentRow:
        """By id, by name (of several the one that was run last), or by the beginning of an id. Raises NotFound."""
        matches = sa.or_(experiments.c.id == name, experiments.c.name == name, experiments.c.id.startswith(name, autoescape=True))
        found = self._experiments(sa.select(experiments).where(matches).order_by(experiments.c.ran_at.desc()))
        named = [row for row in found if row.name == name]
        rows = named or (found if len(found) == 1 or any(row.id == name for row in found) else [])
        exact = [row for row in rows if row.id == name]
        if not rows:
            raise no_experiment(name, [row.name for row in self.experiments()])
        return (exact or rows)[0]

    def experiments(self, *, archived: bool = False) -> list[ExperimentRow]:
        """Newest first. archived: those that were put away too."""
        query = sa.select(experiments).order_by(experiments.c.created_at.desc())
        return self._experiments(query if archived else query.where(experiments.c.archived_at.is_(None)))

    def archive(self, experiment: str) -> bool:
        """Put the experiment away. False, and nothing is changed, while a living engine owns cells of it."""
        working = sa.exists().where(
            cells.c.experiment_id == experiment,
            engines.c.id == cells.c.engine_id,
            engines.c.ended_at.is_(None),
            engines.c.lease_until > sa.func.now(),
        )
        archived_at = sa.func.coalesce(experiments.c.archived_at, sa.func.now())
        change = sa.update(experiments).where(experiments.c.id == experiment, ~working).values(archived_at=archived_at)
        return self._run(lambda c: c.execute(change).rowcount) == 1

    def restore(self, experiment: str) -> None:
        """Take the experiment back from the archive; nothing happens when it is not there."""
        away = sa.and_(experiments.c.id == experiment, experiments.c.archived_at.is_not(None))
        change = sa.update(experiments).where(away).values(archived_at=None, restored_at=sa.func.now())
        self._run(lambda c: c.execute(change))

    def find(self, experiment_id: str) -> ExperimentRow | None:
        """By its whole id, archived or not."""
        rows = self._experiments(sa.select(experiments).where(experiments.c.id == experiment_id))
        return rows[0] if rows else None

    def resumable(self, name: str, source_digest: str) -> ExperimentRow | None:
        """The newest experiment of the same file, whatever its refs pointed to then."""
        same = sa.and_(experiments.c.name == name, experiments.c.source_digest == source_digest)
        rows = self._experiments(sa.select(experiments).where(same).order_by(experiments.c.created_at.desc()).limit(1))
        return rows[0] if rows else None

    def _experiments(self, query: sa.Select[Any]) -> list[ExperimentRow]:
        joined = query.add_columns(score_locks.c.lock).join(score_locks, score_locks.c.digest == experiments.c.score_digest)
        return [read_experiment(row) for row in self._run(lambda c: c.execute(joined).mappings().all())]

    def request_cancel(self, experiment: str) -> None:
        change = sa.update(experiments).where(experiments.c.id == experiment).values(cancel_requested_at=sa.func.now())
        self._run(lambda c: c.execute(change))

    def clear_cancel(self, experiment: str) -> None:
        self._run(
            lambda c: c.execute(sa.update(experiments).where(experiments.c.id == experiment).values(cancel_requested_at=None))
        )

    def cancel_requested(self, experiment: str) -> bool:
        query = sa.select(experiments.c.cancel_requested_at.is_not(None)).where(experiments.c.id == experiment)
        return bool(self._run(lambda c: c.execute(query).scalar()))

    # ---- cells and attempts

    def claim(self, engine_id: str, keys: Sequence[str], place: str, *, handed_over: bool = True) -> list[Claim]:
        """Take the cells of `keys` that are not done and that no living engine owns, in tensor order.

        Local sandboxes of another place stay its own. Each claim raises the fence, which shuts out the owner before.
        handed_over: take those, too, that wait for a persist worker.
        """
        living = sa.exists().where(
            engines.c.id == cells.c.engine_id, engines.c.ended_at.is_(None), engines.c.lease_until > sa.func.now()
        )
        elsewhere = sa.exists().where(
            attempts.c.cell_key == cells.c.key,
            attempts.c.ended_at.is_(None),
            attempts.c.backend == "local",
            attempts.c.handover.is_(None),
            hosts.c.id == attempts.c.host_id,
            hosts.c.place != place,
        )
        free = (
            sa.select(cells.c.key)
            .where(cells.c.key == sa.any_(sa.literal(list(keys), sa.ARRAY(sa.Text))), cells.c.state != CellState.DONE)
            .where(sa.or_(cells.c.engine_id.is_(None), cells.c.engine_id == engine_id, ~living), ~elsewhere)
            .order_by(cells.c.key)
            .with_for_update(of=cells)
        )
        if not handed_over:
            free = free.where(~sa.exists().where(HANDED_OVER))
        return self._run(lambda c: take(c, engine_id, [row.key for row in c.execute(free)]))

    def begin_attempt(
        self,
        claim: Claim,
        *,
        backend: str,
        host_id: str,
        name_sandbox: Callable[[int], str],
        reserve_usd: Decimal,
        terms: SandboxTerms = UNPRICED,
    ) -> OpenAttempt:
        """Write the intent before any sandbox is asked for. reserve_usd: for models; the sandbox's part stands in `terms`.

        Raises Cancelled, BudgetExceeded (the reservation does not fit) or FenceLost.
        """
        if claim.open_attempt is None:
            sandbox = name_sandbox(1)
            first = steps.begin_first(
                self.database, claim, backend=backend, sandbox=sandbox, host_id=host_id, reserve_usd=reserve_usd, terms=terms
            )
            if first is not None:
                return OpenAttempt(id=first, number=1, sandbox=sandbox, host_id=host_id, agent_started_at=None)

        def work(c: sa.Connection) -> OpenAttempt:
            begun = sa.case((cells.c.state == CellState.DONE, cells.c.state), else_=CellState.SETUP)
            if hold(c, claim, state=begun) == CellState.DONE:
                raise FenceLost(f"{claim.key} has a valid result already and is not run again")
            left = open_attempts(c, [claim.key]).get(claim.key)
            if left is not None:  # our own, when the answer to the last commit was lost
                return left
            number = c.execute(
                sa.select(sa.func.coalesce(sa.func.max(attempts.c.number), 0) + 1).where(attempts.c.cell_key == claim.key)
            ).scalar_one()
            reserve(c, claim.key, reserve_usd + terms.reserve_usd, first=number == 1)
            sandbox = name_sandbox(number)
            row = {
                "cell_key": claim.key,
                "number": number,
                "fence": claim.fence,
                "backend": backend,
                "sandbox": sandbox,
                "host_id": host_id,
                "reserved_usd": reserve_usd,
                "reserved_sandbox_usd": terms.reserve_usd,
                "sandbox_usd_per_s": terms.usd_per_s,
                "sandbox_rate": terms.rate,
            }
            attempt_id = c.execute(insert(attempts).values(row).returning(attempts.c.id)).scalar_one()
            return OpenAttempt(id=attempt_id, number=number, sandbox=sandbox, host_id=host_id, agent_started_at=None)

        return self._run(work)

    def agent_started(self, claim: Claim, attempt_id: int, deadline_in_s: float, sandbox_for_s: float | None = None) -> Begun:
        """Mark the start, once, and set the deadline, once.

        sandbox_for_s: since when the sandbox is there; None: nobody knows, and the attempt's beginning stands for it.
        """
        begun = steps.agent_started(self.database, claim, attempt_id, deadline_in_s, sandbox_for_s)
        if begun is None:
            raise fence_lost(claim)
        return begun

    def stopping(self, claim: Claim, attempt_id: int, decided: Stopping) -> None:
        """Written before an agent is stopped: who adopts the attempt must not take its end for the agent's own. Raises FenceLost."""
        if not steps.stopping(self.database, claim, attempt_id, decided):
            raise fence_lost(claim)

    def persisting(self, claim: Claim) -> None:
        if not steps.persisting(self.database, claim):
            raise fence_lost(claim)

    def finish_attempt(self, claim: Claim, attempt_id: int, result: AttemptResult, *, last: bool) -> None:
        """End the attempt and advance the cell by compare-and-set. last: no further attempt follows an infrastructure failure.

        A known cost replaces the reservation; an unknown one leaves it committed. The first result of an attempt stands.
        Raises FenceLost.
        """
        state = (
            CellState.DONE
            if result.outcome.valid
            else CellState.FAILED
            if last and result.outcome is Outcome.INFRA_FAILURE
            else CellState.OPEN
        )
        if not steps.finish(self.database, claim, attempt_id, result, state):
            raise fence_lost(claim)

    def sandbox_ended(self, attempt_id: int, sandbox_for_s: float | None = None) -> None:
        """Its attempt has ended, too: what it cost replaces what was held. The first end stands. sandbox_for_s: if nothing better is known."""
        steps.sandbox_ended(self.database, attempt_id, sandbox_for_s)

    def release(self, engine_id: str) -> None:
        """Give back every cell the engine still owns; those in mid-flight keep their open attempt for the next engine."""
        idle = sa.case(
            (cells.c.state.in_([CellState.DONE, CellState.FAILED]), cells.c.state),
            (sa.exists().where(HANDED_OVER), CellState.PERSISTING),
            else_=CellState.OPEN,
        )
        change = sa.update(cells).where(cells.c.engine_id == engine_id).values(engine_id=None, state=idle)
        self._run(lambda c: c.execute(change))

    def discard(self, keys: Sequence[str], reason: str) -> int:
        """Open done cells again; the attempt that counted is kept and marked. Returns how many were opened.

        One that was adopted goes on to count where it was made.
        """

        def work(c: sa.Connection) -> int:
            done = sa.and_(cells.c.key.in_(keys), cells.c.state == CellState.DONE)
            counted = [row.attempt_id for row in c.execute(sa.select(cells.c.attempt_id).where(done).with_for_update())]
            own = sa.and_(attempts.c.id.in_(counted), attempts.c.cell_key.in_(keys))
            c.execute(sa.update(attempts).where(own).values(discarded=storable(reason)))
            reset = {"state": CellState.OPEN, "outcome": None, "attempt_id": None, "logged_attempt_id": None, "engine_id": None}
            c.execute(sa.update(cells).where(done).values(**reset, fence=cells.c.fence + 1))
            return len(counted)

        return self._run(work)

    def mark_logged(self, attempts_by_cell: dict[str, int]) -> None:
        def work(c: sa.Connection) -> None:
            change = sa.update(cells).where(cells.c.key == sa.bindparam("cell")).values(logged_attempt_id=sa.bindparam("attempt"))
            c.execute(change, [{"cell": key, "attempt": attempt} for key, attempt in attempts_by_cell.items()])

        if attempts_by_cell:
            self._run(work)

    # ---- snapshots

    def add_snapshot(self, world: str, snapshot: Snapshot, made_with: MadeWith | None = None) -> None:
        """made_with: the app that it was saved from; what is known of an equal snapshot is not forgotten."""
        manifest = snapshot.manifest
        row = {
            "digest": snapshot.digest,
            "world": world,
            "archive": snapshot.archive.digest,
            "archive_bytes": snapshot.archive.size_bytes,
            "manifest": manifest.model_dump(mode="json"),
            "size_bytes": manifest.size_bytes,
            "n_files": manifest.n_files,
            "made_with": sa.null() if made_with is None else made_with.model_dump(mode="json"),
        }
        new = insert(snapshots).values(row)
        known = {"made_with": sa.func.coalesce(new.excluded.made_with, snapshots.c.made_with)}
        self._run(lambda c: c.execute(new.on_conflict_do_update(index_elements=[snapshots.c.digest], set_=known)))

    def snapshots_like(self, prefix: str) -> list[Snapshot]:
        """Those whose digest begins with it."""
        query = sa.select(snapshots).where(snapshots.c.digest.startswith(prefix, autoescape=True)).order_by(snapshots.c.digest)
        return [read_snapshot(row) for row in self._run(lambda c: c.execute(query).all())]

    def snapshots(self, digests: Iterable[str]) -> dict[str, Snapshot]:
        """Those that were packed, by digest."""
        query = sa.select(snapshots).where(snapshots.c.digest.in_(list(digests)))
        return {row.digest: read_snapshot(row) for row in self._run(lambda c: c.execute(query).all())}

    def world_names(self, digests: Iterable[str]) -> dict[str, str]:
        """Snapshot digest -> its world, for those that were packed."""
        query = sa.select(snapshots.c.digest, snapshots.c.world).where(snapshots.c.digest.in_(set(digests)))
        return {row.digest: row.world for row in self._run(lambda c: c.execute(query).all())}
