"""What people and programs are told of a research. Numbers of the holdout only once it was opened, and it can't go on then."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from eval_pipeline.errors import SpecError
from eval_pipeline.research.decide import gain
from eval_pipeline.research.driver import rows_of
from eval_pipeline.research.journal import State, following, replay
from eval_pipeline.research.lab import bounds_of
from eval_pipeline.research.opening import goal_of, ground_of, notes_on
from eval_pipeline.store.records import Records
from eval_pipeline.store.researches import ResearchRow

_OPEN_TO_ALL = (
    "kind",
    "effect",
    "ci_lower",
    "ci_upper",
    "p",
    "alpha",
    "better",
    "why",
    "mean_a",
    "mean_b",
    "n_cases",
    "n_missing",
)


def status(records: Records, row: ResearchRow) -> dict[str, Any]:
    """Where it stands: nothing of the holdout but accepted or rejected."""
    state, goal = replay(rows_of(records, row.id)), goal_of(row)
    due = following(state, goal.stop)
    spent, bounds = records.researches.spent(row.id), bounds_of(goal)
    return {
        "research": row.id,
        "state": "opened"
        if state.opened
        else "stopped"
        if due.do == "stop"
        else "waits for a proposal"
        if due.do == "propose"
        else due.do,
        "step": due.step,
        "stop_reason": state.stopped or (due.why or None),
        "n_candidates": state.n_candidates,
        "n_refused": sum(step.refused is not None for step in state.steps),
        "n_accepted": state.n_accepted,
        "n_queries": state.n_queries,
        "champion": {"step": state.incumbent.number, **{key: state.incumbent.arm[key] for key in ("config", "commit", "ref")}},
        "spent": {"cost_usd": spent.committed_usd, "cells": spent.begun_cells, "worked_s": records.researches.worked_s(row.id)},
        "budget": asdict(bounds),
        "experiments": {
            name: {"step": step, "half": half}
            for name, (step, half) in records.researches.runs(row.id).items()
            if half == "dev" or state.opened
        },
        "n_dev": len(row.split["dev"]),
        "n_holdout": len(row.split["holdout"]),
        "notes": list(notes_on(row)),
        "created_by": row.created_by,
    }


def report(records: Records, row: ResearchRow, *, opens: bool) -> dict[str, Any]:
    """The whole of it. opens: show the numbers of the holdout, for good. Raises SpecError while it goes on."""
    rows = rows_of(records, row.id)
    state = replay(rows)
    if opens and not state.opened:
        if following(state, goal_of(row).stop).do != "stop":
            raise SpecError(
                f"{row.id} goes on: its holdout stays closed until it has stopped", hint=f"stop it: evals research stop {row.id}"
            )
        records.researches.append(row.id, state.n_rows, "opened", len(state.steps) - 1, {})
        state.opened = True
    decisions = {(one.step, one.kind): one.data for one in rows if one.kind in ("decided", "answered", "asked")}
    steps = [_step(state, number, decisions) for number in range(len(state.steps))]
    return {**status(records, row), "holdout_open": state.opened, "trajectory": steps, "published_gain": _published(row, state)}


def _step(state: State, number: int, decisions: dict[tuple[int, str], dict[str, Any]]) -> dict[str, Any]:
    step = state.steps[number]
    dev, asked, answer = (decisions.get((number, kind)) for kind in ("decided", "asked", "answered"))
    holdout: dict[str, Any] | None = None
    if asked is not None:
        holdout = {"query": asked["query"], "alpha": asked["alpha"], "accepted": step.accepted}
        if state.opened and answer is not None:
            holdout |= {key: answer[key] for key in _OPEN_TO_ALL}
    return {
        "step": number,
        "config": step.arm.get("config"),
        "commit": step.arm.get("commit"),
        "refused": step.refused,
        "against": None if dev is None else dev["incumbent"],
        "dev": None
        if dev is None
        else {key: dev[key] for key in (*_OPEN_TO_ALL, "constraint_held", "constraint_value", "label")},
        "holdout": holdout,
        "verdict": verdict_of(state, number),
    }


def verdict_of(state: State, number: int) -> str:
    step = state.steps[number]
    if number == 0:
        return "baseline"
    if step.refused is not None:
        return "refused"
    if step.accepted is not None:
        return "accepted" if step.accepted else "rejected by the holdout"
    return "under way" if step.promising is not False else "rejected on dev"


def _published(row: ResearchRow, state: State) -> dict[str, Any]:
    """The champion against the original baseline on the holdout, never what dev said."""
    champion, baseline = state.incumbent, state.steps[0]
    if champion.number == 0:
        return {"claim": "none: no candidate was accepted, and the champion is the baseline", "champion": 0}
    if not state.opened:
        return {"claim": "closed: `evals research report --open` shows it, and ends the research", "champion": champion.number}
    ground = ground_of(row)
    assert champion.holdout is not None and baseline.holdout is not None
    found = gain(ground.metric, baseline.holdout, champion.holdout, ground.world, ground.span)
    claim = f"{ground.metric.column} on the holdout, champion (step {champion.number}) against the original baseline; 95% CI, new cases"
    return {
        "claim": claim,
        "champion": champion.number,
        **{key: getattr(found, key) for key in _OPEN_TO_ALL if key not in ("alpha", "better", "why")},
        "flags": list(found.flags),
    }
