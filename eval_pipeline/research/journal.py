"""The journal of a research, and what follows from it: who is the incumbent, what comes next. Pure; the rows are the only state.

started   step 0 is the baseline            decided   on dev: worth a question to the holdout, or not
proposed  a candidate, locked like an arm   asked     written before the holdout is looked at; spends its alpha
refused   a proposal that is none           answered  accepted or rejected, and nothing else for a proposer
measured  the values of dev or holdout      stopped, resumed, opened (the holdout's numbers were shown: it can't go on)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from eval_pipeline.analysis.stat_sequential import HOLDOUT_QUERIES, confirm_alpha
from eval_pipeline.research.decide import Columns
from eval_pipeline.research.goal import StopRule

Half = Literal["dev", "holdout"]
MAX_REFUSALS = 3
"""So many proposals in a row that are none end the research."""


@dataclass(frozen=True, kw_only=True)
class Row:
    ordinal: int
    kind: str
    step: int
    data: dict[str, Any]


@dataclass(kw_only=True)
class Step:
    """A candidate, or (number 0) the baseline. None: not yet. refused: why it is no candidate."""

    number: int
    arm: dict[str, Any] = field(default_factory=dict[str, Any])
    refused: str | None = None
    dev: Columns | None = None
    holdout: Columns | None = None
    promising: bool | None = None
    query: int | None = None
    accepted: bool | None = None

    @property
    def closed(self) -> bool:
        return self.refused is not None or self.promising is False or self.accepted is not None


@dataclass(kw_only=True)
class State:
    """since_accepted: candidates concluded since one was accepted. opened: the holdout's numbers were shown to somebody."""

    steps: list[Step] = field(default_factory=list[Step])
    champions: list[int] = field(default_factory=lambda: [0])
    n_rows: int = 0
    n_queries: int = 0
    n_candidates: int = 0
    n_accepted: int = 0
    since_accepted: int = 0
    refusals: int = 0
    stopped: str | None = None
    opened: bool = False

    @property
    def incumbent(self) -> Step:
        return self.steps[self.champions[-1]]

    @property
    def pending(self) -> Step | None:
        last = self.steps[-1]
        return None if last.number == 0 or last.closed else last

    def apply(self, row: Row) -> None:
        self.n_rows = row.ordinal + 1
        if row.kind in ("started", "proposed", "refused"):
            self.steps.append(Step(number=row.step, arm=row.data.get("arm", {}), refused=row.data.get("why")))
            self.n_candidates += row.kind == "proposed"
            self.refusals = self.refusals + 1 if row.kind == "refused" else 0
        elif row.kind in ("measured", "decided", "asked", "answered"):
            self._advance(self.steps[row.step], row)
        elif row.kind in ("stopped", "resumed"):
            self.stopped = row.data["why"] if row.kind == "stopped" else None
            self.refusals = 0
        elif row.kind == "opened":
            self.opened = True

    def _advance(self, step: Step, row: Row) -> None:
        if row.kind == "measured":
            setattr(step, row.data["half"], row.data["columns"])
        elif row.kind == "decided":
            step.promising = row.data["better"]
            self.since_accepted += not step.promising
        elif row.kind == "asked":
            step.query = row.data["query"]
            self.n_queries += 1
        else:
            step.accepted = row.data["accepted"]
            self.n_accepted += bool(step.accepted)
            self.since_accepted = 0 if step.accepted else self.since_accepted + 1
            if step.accepted:
                self.champions.append(step.number)


def replay(rows: Iterable[Row]) -> State:
    state = State()
    for row in rows:
        state.apply(row)
    return state


@dataclass(frozen=True, kw_only=True)
class Next:
    """do: measure (step on half), decide, ask, answer, propose, stop (why)."""

    do: Literal["measure", "decide", "ask", "answer", "propose", "stop"]
    step: int = 0
    half: Half = "dev"
    why: str = ""


def following(state: State, rule: StopRule) -> Next:
    """What comes next. A candidate that was begun is brought to its end before any rule stops."""
    if state.stopped is not None:
        return Next(do="stop", why=state.stopped)
    if state.steps[0].dev is None:
        return Next(do="measure")
    step = state.pending
    if step is None:
        why = stops(state, rule)
        return Next(do="propose", step=len(state.steps)) if why is None else Next(do="stop", why=why)
    if step.dev is None:
        return Next(do="measure", step=step.number)
    if step.promising is None:
        return Next(do="decide", step=step.number)
    if step.query is None:
        return Next(do="ask", step=step.number)
    unmeasured = next((one for one in (state.incumbent, step) if one.holdout is None), None)
    if unmeasured is not None:
        return Next(do="measure", step=unmeasured.number, half="holdout")
    return Next(do="answer", step=step.number)


def stops(state: State, rule: StopRule) -> str | None:
    if rule.accepted is not None and state.n_accepted >= rule.accepted:
        return f"accepted: {state.n_accepted} of {rule.accepted} candidates that were to be found are accepted"
    if state.n_queries >= HOLDOUT_QUERIES:
        return f"holdout retired: it has answered {state.n_queries} questions, and {HOLDOUT_QUERIES} is all it is good for"
    if rule.patience is not None and state.since_accepted >= rule.patience:
        return f"patience: {state.since_accepted} candidates in a row were not accepted"
    if rule.candidates is not None and state.n_candidates >= rule.candidates:
        return f"candidates: {state.n_candidates} were tried"
    if state.refusals >= MAX_REFUSALS:
        return f"proposer: {state.refusals} proposals in a row were none: {state.steps[-1].refused}"
    return None


def question(state: State, alpha: float) -> dict[str, Any]:
    query = state.n_queries + 1
    return {"query": query, "alpha": confirm_alpha(alpha, query)}


def public(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """The journal for whoever proposes: of the holdout nothing but accepted or rejected."""
    found: list[dict[str, Any]] = []
    for row in rows:
        if row.kind == "measured" and row.data["half"] == "holdout":
            continue
        data = row.data
        if row.kind == "answered":
            data = {"accepted": data["accepted"]}
        elif row.kind in ("started", "proposed"):
            data = {**data, "arm": {key: data["arm"].get(key) for key in ("config", "commit", "ref")}}
        found.append({"step": row.step, "kind": row.kind, **data})
    return found
