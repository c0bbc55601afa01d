"""What can be said of an experiment that is under way: what each open cell waits for, how long it takes, which arm fails as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from eval_pipeline.domain.cell import CellState, Outcome
from eval_pipeline.store.database import Database
from eval_pipeline.store.standing import ArmEnds, OpenCell, Pace, ends_by_arm, first_error

WORKER = "a persist worker, or an engine that persists"
NOBODY = "an engine: nobody works on it"
EVIDENCE = 3  # cells that must have ended before anything is said

_WHY = {
    CellState.OPEN: "open",
    CellState.SETUP: "being set up",
    CellState.RUNNING: "running",
    CellState.PERSISTING: "being persisted",
    CellState.FAILED: "failed (infrastructure; no further attempt)",
}


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Why a cell is open. waits_for None: for nothing, its attempts are used up. deadline_at: when its agent is stopped."""

    cell: str
    state: str
    waits_for: str | None
    since: datetime
    deadline_at: datetime | None
    attempt: int | None
    error: str | None


@dataclass(frozen=True, kw_only=True)
class ArmAlarm:
    """Every cell of the arm that has ended, ended in the same way, and none as ok. error: the first one's."""

    arm: str
    outcome: str
    n_ended: int
    n_cells: int
    error: str | None

    def __str__(self) -> str:
        so_far = "" if self.n_ended == self.n_cells else f" that ended, of {self.n_cells},"
        line = (self.error or "").strip().splitlines()[:1]
        cells = "THE ONLY CELL" if self.n_ended == 1 else f"ALL {self.n_ended} cells"
        how = "failed" if self.n_ended == 1 else "failed the same way"
        return f"{cells} of arm {self.arm}{so_far} {how}: {self.outcome}" + (f"; first error: {line[0][:300]}" if line else "")


def explain(cell: OpenCell, blocked: str | None = None) -> Waiting:
    """blocked: what keeps every open cell from beginning, whoever works on it; None: nothing."""
    waits_for, since = _waits_for(cell)
    if blocked is not None and waits_for == NOBODY:
        waits_for = blocked
    return Waiting(
        cell=cell.key,
        state=cell.state,
        waits_for=waits_for,
        since=since,
        deadline_at=cell.deadline_at if cell.state == CellState.RUNNING else None,
        attempt=cell.attempt,
        error=cell.error,
    )


def _waits_for(cell: OpenCell) -> tuple[str | None, datetime]:
    if cell.living:
        if cell.doing is not None:
            return cell.doing
        first = {CellState.RUNNING: "its agent", CellState.PERSISTING: "a place to persist", CellState.SETUP: "its sandbox"}
        return first.get(CellState(cell.state), "a place to run"), cell.updated_at
    if cell.handed_over:
        return WORKER, cell.left_at or cell.updated_at
    if cell.state == CellState.FAILED:
        return None, cell.updated_at
    if cell.owned:
        return "an engine: the one that had it died", cell.left_at or cell.updated_at
    return NOBODY, cell.updated_at


def died_at(cells: Sequence[OpenCell]) -> datetime | None:
    """When the last engine was gone that left cells behind; None while one lives, or when each let go of its cells."""
    if any(cell.living for cell in cells):
        return None
    left = [cell.left_at for cell in cells if cell.owned and cell.state != CellState.FAILED and cell.left_at is not None]
    return max(left, default=None)


def eta_s(pace: Pace) -> float | None:
    """Seconds until the cells at hand have ended, if they take as long as the latest and as many run at once. None: nothing to go by.

    A cell's mean is all the time spent by those that ended, and by those in flight, which are the longer ones: the short end first.
    """
    n_ended, at_once = len(pace.took_s), len(pace.ages_s)
    evidence = min(max(EVIDENCE, at_once / 2), n_ended + at_once + pace.pending - 1)
    if not at_once or n_ended < max(1, evidence):
        return None
    mean = (sum(pace.took_s) + sum(pace.ages_s)) / n_ended
    rest = [max(0.0, mean - age) for age in pace.ages_s]
    return max(max(rest), (sum(rest) + pace.pending * mean) / at_once) or None


def alarms(database: Database, experiment: str) -> list[ArmAlarm]:
    return [
        _with_error(database, experiment, one) for ends in ends_by_arm(database, experiment) if (one := alarm(ends)) is not None
    ]


def alarm(arm: ArmEnds) -> ArmAlarm | None:
    """From EVIDENCE cells on, or all of fewer."""
    n_cells = sum(arm.ends.values())
    ways: Counter[str] = Counter()
    for (state, outcome), n in arm.ends.items():
        if state == CellState.FAILED:
            ways[Outcome.INFRA_FAILURE] += n
        elif state == CellState.DONE:
            ways[outcome or "unknown"] += n
    n_ended = sum(ways.values())
    if len(ways) != 1 or Outcome.OK in ways or n_ended < min(EVIDENCE, n_cells):
        return None
    return ArmAlarm(arm=arm.arm, outcome=next(iter(ways)), n_ended=n_ended, n_cells=n_cells, error=None)


def _with_error(database: Database, experiment: str, found: ArmAlarm) -> ArmAlarm:
    error = first_error(database, experiment, found.arm)
    return ArmAlarm(arm=found.arm, outcome=found.outcome, n_ended=found.n_ended, n_cells=found.n_cells, error=error)


def expected(n_valid: int, n_cells: int, open_by_state: Mapping[str, int]) -> str:
    """`18 of 20 cells have a valid result; missing 2: 1 failed, 1 running`. open_by_state: of those without."""
    line = f"{n_valid} of {n_cells} cells have a valid result"
    if n_valid == n_cells:
        return line
    why = ", ".join(f"{open_by_state[state]} {_WHY[state]}" for state in _WHY if open_by_state.get(state))
    return f"{line}; missing {n_cells - n_valid}: {why}"
