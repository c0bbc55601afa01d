"""What the ledger's rows are in the program."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import sqlalchemy as sa

from eval_pipeline.domain.budget import plausible_usd, reservation_usd
from eval_pipeline.domain.case import Limits
from eval_pipeline.domain.handover import Handover
from eval_pipeline.domain.lock import RunLock, ScoreLock
from eval_pipeline.domain.world import SnapshotManifest
from eval_pipeline.errors import NotFound
from eval_pipeline.store.artifacts import Artifact
from eval_pipeline.store.snapshots import Snapshot


@dataclass(frozen=True, kw_only=True)
class Stopping:
    """Why an engine stopped, or was about to stop, an agent. outcome: how the attempt ends, whatever the agent left; None when that tells."""

    reason: str
    outcome: str | None = None


@dataclass(frozen=True, kw_only=True)
class Begun:
    """By Postgres' clock: when the agent's start was marked, and the seconds left until its deadline."""

    at: datetime
    left_s: float


@dataclass(frozen=True, kw_only=True)
class OpenAttempt:
    """A row of `attempts` without an end. agent_started_at None: no agent has been started for it.

    stopping: what an engine before us had decided.
    handover: how its agent ended, when somebody else than its engine is to bring it to its end.
    """

    id: int
    number: int
    sandbox: str
    host_id: str
    agent_started_at: datetime | None
    stopping: Stopping | None = None
    handover: Handover | None = None


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A cell that one engine owns while its fence holds. open_attempt: what an engine before us left, to be adopted."""

    key: str
    engine_id: str
    fence: int
    open_attempt: OpenAttempt | None


@dataclass(frozen=True, kw_only=True)
class ExperimentRow:
    """budget_usd None: unlimited. committed_usd: spent and reserved, over all attempts. archived_at None: not put away.

    budget_cells: of them so many may be begun; begun_cells were. budget_wall_s: it may be worked on for so long.
    """

    id: str
    name: str
    run: RunLock
    score: ScoreLock
    repo: str
    baseline: str | None
    budget_usd: Decimal | None
    committed_usd: Decimal
    n_cells: int
    created_at: datetime
    cancel_requested_at: datetime | None
    archived_at: datetime | None
    created_by: str | None = None
    budget_cells: int | None = None
    budget_wall_s: float | None = None
    begun_cells: int = 0

    def believed_usd(self, limits: Limits) -> Decimal:
        """Of what an agent says itself that it cost, for a case with these limits."""
        return plausible_usd(reservation_usd(limits, self.budget_usd, self.n_cells))


def read_attempt(row: sa.Row[Any]) -> OpenAttempt:
    evidence: dict[str, Any] = row.evidence or {}
    decided: dict[str, Any] | None = evidence.get("stopping")
    return OpenAttempt(
        id=row.id,
        number=row.number,
        sandbox=row.sandbox,
        host_id=row.host_id,
        agent_started_at=row.agent_started_at,
        stopping=None if decided is None else Stopping(reason=decided["reason"], outcome=decided["outcome"]),
        handover=None if row.handover is None else Handover.model_validate(row.handover, strict=False),
    )


def read_snapshot(row: sa.Row[Any]) -> Snapshot:
    manifest = SnapshotManifest.model_validate(row.manifest, strict=False)
    return Snapshot(row.digest, manifest, Artifact(row.archive, row.archive_bytes))


def read_experiment(row: sa.RowMapping) -> ExperimentRow:
    return ExperimentRow(
        id=row["id"],
        name=row["name"],
        run=RunLock.model_validate(row["run_lock"], strict=False),
        score=ScoreLock.model_validate(row["lock"], strict=False),
        repo=row["repo"],
        baseline=row["baseline"],
        budget_usd=row["budget_usd"],
        committed_usd=row["committed_usd"],
        n_cells=row["n_cells"],
        created_at=row["created_at"],
        cancel_requested_at=row["cancel_requested_at"],
        archived_at=row["archived_at"],
        created_by=row["created_by"],
        budget_cells=row["budget_cells"],
        budget_wall_s=row["budget_wall_s"],
        begun_cells=row["begun_cells"],
    )


def no_experiment(name: str, known: Sequence[str]) -> NotFound:
    """known: the names there are, newest first. A research leaves dozens, so one that is nearly meant stands alone."""
    if close := difflib.get_close_matches(name, known, 1):
        hint = f"did you mean {close[0]!r}?"
    else:
        hint = f"known: {', '.join(list(dict.fromkeys(known))[:10]) or 'none; start one with `evals experiment run`'}"
    return NotFound(f"there is no experiment {name!r}", hint=hint)
