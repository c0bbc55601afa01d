"""A research as one process drives it: its journal, the lock that keeps others out, and the loop with real cells under it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from eval_pipeline.errors import Cancelled, FenceLost, SpecError
from eval_pipeline.research.goal import Goal
from eval_pipeline.research.journal import Next, Row, State, following, replay
from eval_pipeline.research.lab import Lab
from eval_pipeline.research.loop import Hands, Proposal, advance
from eval_pipeline.research.opening import goal_of, ground_of
from eval_pipeline.research.proposing import Desk
from eval_pipeline.settings import Settings
from eval_pipeline.store.ledger import ExperimentRow
from eval_pipeline.store.records import Records
from eval_pipeline.store.researches import ResearchRow


def rows_of(records: Records, research: str) -> list[Row]:
    return [Row(ordinal=r.ordinal, kind=r.kind, step=r.step, data=r.data) for r in records.researches.journal(research)]


@dataclass(kw_only=True)
class Driver:
    """state: what the journal says. run: see `Lab`. say: what happened, as it happens."""

    settings: Settings
    records: Records
    row: ResearchRow
    goal: Goal
    state: State
    run: Callable[[ExperimentRow], None]
    say: Callable[[Row], None]

    @property
    def desk(self) -> Desk:
        return Desk(settings=self.settings, records=self.records, row=self.row, goal=self.goal)

    def refuse_opened(self) -> None:
        """Raises SpecError once the numbers of its holdout were shown."""
        if self.state.opened:
            raise SpecError(
                f"{self.row.id}: the numbers of its holdout were shown, so nothing can be confirmed on it any more",
                hint="begin another research, with another name and worlds that nobody has looked at in its holdout",
            )

    def advance(self, *, proposes: bool) -> Next:
        """Until somebody must propose or it stops. proposes: by the goal's own proposer. What was stopped is taken up again first."""
        self.refuse_opened()
        if self.state.stopped is not None and self._could_go_on():
            self.append("resumed", len(self.state.steps) - 1, {"budget": self.goal.budget.model_dump(mode="json")})
        lab = Lab(settings=self.settings, records=self.records, row=self.row, goal=self.goal, run=self.run)
        propose = self.desk.propose if proposes else None
        hands = Hands(append=self._appended, measure=lab.measure, propose=propose, halted=self._halted)
        try:
            return advance(self.state, ground_of(self.row), self.goal.stop, hands)
        except Cancelled:
            if (why := self._halted()) is None:
                raise
            self.append("stopped", len(self.state.steps) - 1, {"why": why})
            return Next(do="stop", why=why)

    def submit(self, answer: dict[str, Any]) -> Proposal:
        """A proposal from outside becomes the next step. Raises SpecError with the reason when it is none, or not its turn."""
        due, found = self.considered(answer)
        if due.do != "propose":
            raise SpecError(
                f"{self.row.id} takes no proposal: the step before is still under way",
                hint=f"`evals research next {self.row.id}` goes on with it",
            )
        self.append("proposed", due.step, {"arm": found.arm, "note": found.note, "cost_usd": found.cost_usd, "by": "submit"})
        return found

    def considered(self, answer: dict[str, Any], *, resumes: bool = False) -> tuple[Next, Proposal]:
        """What is due, and the proposal locked as the next step's arm; nothing is written. Raises SpecError with the reason when it is none.

        resumes: as if what was stopped had been taken up again.
        """
        self.refuse_opened()
        due = following(self._resumed() if resumes and self.state.stopped is not None else self.state, self.goal.stop)
        if due.do == "stop":
            raise SpecError(
                f"{self.row.id} takes no proposal: it has stopped: {due.why}",
                hint=f"`evals research next {self.row.id}` goes on with it",
            )
        found = self.desk.lock(self.state, due.step, answer)
        if found.arm is None:
            raise SpecError(found.why or "nothing is proposed", hint=f"`evals research next {self.row.id}` prints the space")
        return due, found

    def append(self, kind: str, step: int, data: dict[str, Any]) -> None:
        self.state.apply(self._appended(kind, step, data))

    def _appended(self, kind: str, step: int, data: dict[str, Any]) -> Row:
        row = Row(ordinal=self.state.n_rows, kind=kind, step=step, data=data)
        self.records.researches.append(self.row.id, row.ordinal, kind, step, data)
        self.say(row)
        return row

    def _could_go_on(self) -> bool:
        self.records.researches.request_stop(self.row.id, None)
        return following(self._resumed(), self.goal.stop).do != "stop"

    def _resumed(self) -> State:
        again = replay(rows_of(self.records, self.row.id))
        again.apply(Row(ordinal=again.n_rows, kind="resumed", step=0, data={}))
        return again

    def _halted(self) -> str | None:
        why = self.records.researches.stop_requested(self.row.id)
        return None if why is None else f"stopped by request: {why}"


@contextmanager
def driver(
    settings: Settings, records: Records, research: str, run: Callable[[ExperimentRow], None], say: Callable[[Row], None]
) -> Generator[Driver]:
    """Raises FenceLost while another process drives it."""
    with records.researches.driving(research) as ours:
        if not ours:
            raise FenceLost(
                f"{research}: another process is at work on it",
                hint=f"watch: evals research status {research}; end it: evals research stop {research}",
            )
        row = records.researches.find(research)
        state = replay(rows_of(records, row.id))
        yield Driver(settings=settings, records=records, row=row, goal=goal_of(row), state=state, run=run, say=say)
