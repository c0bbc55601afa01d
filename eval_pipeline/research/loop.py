"""The loop: what comes next is done and written into the journal, until somebody must propose or it stops. Nothing here runs a cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from eval_pipeline.errors import BudgetExceeded
from eval_pipeline.research.decide import Columns, Span, decide
from eval_pipeline.research.goal import DecideRule, Metric, StopRule
from eval_pipeline.research.journal import Half, Next, Row, State, following, question


@dataclass(frozen=True, kw_only=True)
class Ground:
    """What decisions rest on. world: of every case. span: of bounded columns."""

    metric: Metric
    rule: DecideRule
    world: Mapping[str, str]
    span: Mapping[str, Span]

    def clusters(self, values: Columns, half: Half) -> Mapping[str, str] | None:
        """Of the cases measured: their worlds. On dev, where a step is only chosen, one world's cases stand for themselves."""
        worlds = {case: self.world[case] for case in values[self.metric.column]}
        return None if half == "dev" and len(set(worlds.values())) == 1 else worlds


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """arm: locked. why: it is none, and why. Neither: there is nothing left to propose."""

    arm: dict[str, Any] | None = None
    why: str | None = None
    note: str | None = None
    cost_usd: float | None = None


@dataclass(frozen=True, kw_only=True)
class Hands:
    """append: a row to the journal. measure: runs the cells of a step on one half that have no result, and returns what the row holds
    besides the half (`columns`); raises BudgetExceeded. propose: None: proposals come from outside. halted: why somebody wants it to
    stop, asked before every step."""

    append: Callable[[str, int, dict[str, Any]], Row]
    measure: Callable[[State, int, Half], dict[str, Any]]
    propose: Callable[[State, int], Proposal] | None = None
    halted: Callable[[], str | None] = lambda: None


def advance(state: State, ground: Ground, rule: StopRule, hands: Hands) -> Next:
    """Returns what it can't do itself: `propose` when proposals come from outside, or `stop`, which is in the journal then."""
    while True:
        due = following(state, rule)
        if due.do != "stop" and (why := hands.halted()) is not None:
            due = Next(do="stop", why=why)
        if due.do == "stop":
            if state.stopped is None:
                _note(state, hands, "stopped", len(state.steps) - 1, {"why": due.why})
            return due
        if due.do == "propose" and hands.propose is None:
            return due
        try:
            kind, data = _act(state, ground, hands, due)
        except BudgetExceeded as error:
            kind, data = "stopped", {"why": f"budget: {error}", "hint": error.hint}
        _note(state, hands, kind, due.step, data)


def _note(state: State, hands: Hands, kind: str, step: int, data: dict[str, Any]) -> None:
    state.apply(hands.append(kind, step, data))


def _act(state: State, ground: Ground, hands: Hands, due: Next) -> tuple[str, dict[str, Any]]:
    step = state.steps[due.step] if due.step < len(state.steps) else None
    if due.do == "measure":
        return "measured", {"half": due.half, **hands.measure(state, due.step, due.half)}
    if due.do == "ask":
        return "asked", question(state, ground.rule.alpha) | {"incumbent": state.incumbent.number}
    if step is None:
        return _proposed(state, hands, due)
    if due.do == "decide":
        assert state.incumbent.dev is not None and step.dev is not None
        world = ground.clusters(step.dev, "dev")
        verdict = decide(ground.metric, state.incumbent.dev, step.dev, world, ground.rule.dev_alpha, ground.span)
        return "decided", {**asdict(verdict), "incumbent": state.incumbent.number, "label": "selected on dev"}
    assert state.incumbent.holdout is not None and step.holdout is not None and step.query is not None
    alpha = question(State(n_queries=step.query - 1), ground.rule.alpha)["alpha"]
    verdict = decide(
        ground.metric, state.incumbent.holdout, step.holdout, ground.clusters(step.holdout, "holdout"), alpha, ground.span
    )
    return "answered", {"accepted": verdict.better, "query": step.query, **asdict(verdict), "incumbent": state.incumbent.number}


def _proposed(state: State, hands: Hands, due: Next) -> tuple[str, dict[str, Any]]:
    assert hands.propose is not None
    found = hands.propose(state, due.step)
    if found.why is not None:
        return "refused", {"why": found.why, "note": found.note, "cost_usd": found.cost_usd}
    if found.arm is None:
        return "stopped", {"why": f"nothing left to propose: {found.note or 'the space is used up'}"}
    return "proposed", {"arm": found.arm, "note": found.note, "cost_usd": found.cost_usd}
