"""How far an experiment is: a live view on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from decimal import Decimal
from types import TracebackType
from typing import Any

import click

from eval_pipeline.analysis.standing import alarms, eta_s
from eval_pipeline.cli.output import alarm_line, note
from eval_pipeline.domain.cell import CellState
from eval_pipeline.store.ledger import ExperimentRow
from eval_pipeline.store.records import Records
from eval_pipeline.store.standing import pace
from eval_pipeline.store.views import Tally

_LINE_EVERY_S, _LOOK_EVERY_S = 5.0, 2.0
_STATES = tuple(CellState)


def states_line(states: Mapping[str, int]) -> str:
    """`3 open, 12 running, 20 done`."""
    return ", ".join(f"{states[state]} {state}" for state in _STATES if states.get(state))


def outcomes_line(outcomes: Mapping[str, int]) -> str:
    """Of cells that are done: `18 ok, 2 agent_error`."""
    return ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items())) or "none yet"


def failures_line(failures: Mapping[str, int]) -> str:
    """`2 provider, 1 judge`: kinds that happened."""
    return ", ".join(f"{count} {kind}" for kind, count in failures.items() if count) or "none"


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3 h 20 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def status_of(row: ExperimentRow, tally: Tally) -> str:
    """running, cancelling, done, cancelled, failed (some cells have no attempts left) or open (nobody works on it)."""
    if tally.working:
        return "running" if row.cancel_requested_at is None else "cancelling"
    if tally.n_done == row.n_cells:
        return "done"
    if row.cancel_requested_at is not None:
        return "cancelled"
    return "failed" if tally.states.get("failed") else "open"


def money(committed_usd: Decimal, budget_usd: Decimal | None) -> str:
    spent = f"{committed_usd:.4f}"
    if budget_usd is None:
        return f"{spent} USD spent or reserved"
    above = f", {committed_usd - budget_usd:.4f} above it" if committed_usd > budget_usd else ""
    return f"{spent} USD spent or reserved of {budget_usd.normalize():f}{above}"


class Progress:
    def __init__(self, records: Records, experiment: ExperimentRow) -> None:
        self._records = records
        self._experiment = experiment
        self._next_line = 0.0
        self._next_look = 0.0
        self._last = ""
        self._left_s: float | None = None
        self._alarms: dict[str, str] = {}
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

    def update(self, *, last: bool = False) -> None:
        """last: nothing follows, so what there is to say is said now."""
        if self._live is None and not last and time.monotonic() < self._next_line:
            return  # nobody would see it
        tally, total = self._tally(), self._experiment.n_cells
        self._look()
        spent = money(self._records.views.committed_usd(self._experiment.id), self._experiment.budget_usd)
        left = f", about {duration(self._left_s)} left" if self._left_s and tally.n_done < total else ""
        if self._live is not None:
            self._live.update(self._view(tally, f"{spent}{left}"), refresh=True)
            return
        text = f"{tally.n_done}/{total} cells; {states_line(tally.states)}; outcomes: {outcomes_line(tally.outcomes)}; {spent}"
        self._next_line = time.monotonic() + _LINE_EVERY_S
        if text != self._last:
            note(text + left)
            self._last = text

    def _look(self) -> None:
        """At what is asked less often. An arm that fails as a whole is said at once, and again when it fails in another way."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _LOOK_EVERY_S
        database, name = self._records.database, self._experiment.id
        self._left_s = eta_s(pace(database, name))
        for alarm in alarms(database, name):
            if self._alarms.get(alarm.arm) != alarm.outcome:
                self._alarms[alarm.arm] = alarm.outcome
                loud(str(alarm))

    def _view(self, tally: Tally, foot: str) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        head = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=self._experiment.n_cells, completed=tally.n_done, width=40)
        head.add_row(Text(self._experiment.id, style="bold"), bar, f"{tally.n_done}/{self._experiment.n_cells} cells")
        states = Text(f"states    {states_line(tally.states)}")
        ends = Text(f"outcomes  {outcomes_line(tally.outcomes)}")
        return Group(head, states, ends, Text(foot, style="dim"))


def loud(message: str) -> None:
    click.echo(alarm_line(message), err=True)
