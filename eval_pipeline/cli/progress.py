"""How far an experiment is: a live view on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from decimal import Decimal
from types import TracebackType
from typing import Any

from eval_pipeline.cli.output import note
from eval_pipeline.domain.cell import CellState
from eval_pipeline.store.ledger import ExperimentRow
from eval_pipeline.store.records import Records
from eval_pipeline.store.views import Tally

_LINE_EVERY_S = 5.0
_STAGES = (CellState.OPEN, CellState.SETUP, CellState.RUNNING, CellState.PERSISTING, CellState.FAILED)


def stages(tally: Tally) -> str:
    """`12 running, 3 agent_error` and so on: states first, then outcomes."""
    states = [f"{tally.states[state]} {state}" for state in _STAGES if tally.states.get(state)]
    return ", ".join([*states, *(f"{count} {outcome}" for outcome, count in sorted(tally.outcomes.items()))])


def status_of(row: ExperimentRow, tally: Tally) -> str:
    """running, done, cancelled, failed (some cells have no attempts left) or open (nobody works on it)."""
    if tally.working:
        return "running"
    if tally.n_done == row.n_cells:
        return "done"
    if row.cancel_requested_at is not None:
        return "cancelled"
    return "failed" if tally.states.get("failed") else "open"


def money(committed_usd: Decimal, budget_usd: Decimal | None) -> str:
    spent = f"{committed_usd:.4f}"
    return f"{spent} USD spent or reserved" + ("" if budget_usd is None else f" of {budget_usd.normalize():f}")


@dataclass
class Pace:
    """How long the rest takes if it goes on as since `started_at` (monotonic seconds), when `done_before` cells were done."""

    started_at: float
    done_before: int

    def left_s(self, done: int, total: int, now: float) -> float | None:
        """None until a cell has ended."""
        new = done - self.done_before
        return None if new <= 0 else (now - self.started_at) / new * (total - done)


class Progress:
    def __init__(self, records: Records, experiment: ExperimentRow) -> None:
        self._records = records
        self._experiment = experiment
        self._pace = Pace(time.monotonic(), self._tally().n_done)
        self._next_line = 0.0
        self._last = ""
        self._live: Any = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(file=sys.stderr), auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def _tally(self) -> Tally:
        return self._records.views.tallies(self._experiment.id)[self._experiment.id]

    def update(self) -> None:
        tally, total = self._tally(), self._experiment.n_cells
        spent = money(self._records.views.committed_usd(self._experiment.id), self._experiment.budget_usd)
        left_s = self._pace.left_s(tally.n_done, total, time.monotonic())
        left = f", about {left_s:.0f} s left" if left_s and tally.n_done < total else ""
        if self._live is not None:
            self._live.update(self._view(tally, f"{spent}{left}"), refresh=True)
            return
        text = f"{tally.n_done}/{total} cells: {stages(tally)}; {spent}"
        if text != self._last and (time.monotonic() >= self._next_line or tally.n_done == total):
            note(text + left)
            self._next_line, self._last = time.monotonic() + _LINE_EVERY_S, text

    def _view(self, tally: Tally, foot: str) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        head = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=self._experiment.n_cells, completed=tally.n_done, width=40)
        head.add_row(Text(self._experiment.id, style="bold"), bar, f"{tally.n_done}/{self._experiment.n_cells} cells")
        stage = Text("  ".join(f"{state} {tally.states.get(state, 0)}" for state in _STAGES))
        ends = Text(
            "  ".join(f"{outcome} {count}" for outcome, count in sorted(tally.outcomes.items())) or "nothing has ended yet"
        )
        return Group(head, stage, ends, Text(foot, style="dim"))
