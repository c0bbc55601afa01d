"""What is said of an experiment under way, against runs that are simulated to their end."""

from __future__ import annotations

import heapq
import random
from datetime import UTC, datetime

import pytest

from eval_pipeline.analysis.standing import alarm, died_at, eta_s, expected, explain
from eval_pipeline.store.standing import ArmEnds, OpenCell, Pace

T = datetime(2026, 1, 1, tzinfo=UTC)
LATER = datetime(2026, 1, 2, tzinfo=UTC)


def simulated(lengths: list[float], at_once: int) -> tuple[list[tuple[float, Pace]], float]:
    """The paces after each end of a cell, with its time, and when all had ended."""
    running: list[tuple[float, float]] = []
    left, took, seen, now = list(lengths), list[float](), list[tuple[float, Pace]](), 0.0
    while left or running:
        while left and len(running) < at_once:
            heapq.heappush(running, (now + left[0], now))
            left.pop(0)
        now, began = heapq.heappop(running)
        took.append(now - began)
        ages = [now - start for _, start in running] + ([0.0] if left else [])
        seen.append((now, Pace(took_s=took[-500:], ages_s=ages, pending=max(0, len(left) - 1))))
    return seen, now


@pytest.mark.parametrize("kind", ["equal", "even", "exponential"])
@pytest.mark.parametrize("at_once", [1, 16, 64])
def test_the_estimate_is_near_what_comes(kind: str, at_once: int) -> None:
    rng = random.Random(7)
    draw = {"equal": lambda: 60.0, "even": lambda: rng.uniform(30, 90), "exponential": lambda: rng.expovariate(1 / 60)}[kind]
    seen, end = simulated([draw() for _ in range(400)], at_once)
    for now, pace in seen[max(20, at_once) : int(len(seen) * 0.6)]:
        told = eta_s(pace)
        assert told is not None and 1 / 3 < told / (end - now) < 3, (kind, now, end, told)
    early = [told for _, pace in seen[:at_once] if (told := eta_s(pace)) is not None]
    assert all(told < 3 * end for told in early), "not wild at the start"


def test_nothing_is_told_without_evidence() -> None:
    assert eta_s(Pace(took_s=[], ages_s=[5.0], pending=9)) is None
    assert eta_s(Pace(took_s=[1.0, 2.0], ages_s=[0.0], pending=9)) is None
    assert eta_s(Pace(took_s=[10.0] * 3, ages_s=[], pending=9)) is None
    assert eta_s(Pace(took_s=[10.0], ages_s=[4.0], pending=0)) == 10.0
    assert eta_s(Pace(took_s=[10.0] * 3, ages_s=[0.0, 0.0], pending=2)) == 20.0


def test_an_arm_that_fails_as_a_whole() -> None:
    assert alarm(ArmEnds(arm="a", ends={("done", "agent_error"): 3, ("running", None): 5})) is not None
    assert alarm(ArmEnds(arm="a", ends={("done", "agent_error"): 2, ("running", None): 5})) is None
    assert alarm(ArmEnds(arm="a", ends={("done", "agent_error"): 9, ("done", "ok"): 1})) is None
    assert alarm(ArmEnds(arm="a", ends={("done", "agent_error"): 9, ("failed", None): 1})) is None
    assert alarm(ArmEnds(arm="a", ends={("done", "ok"): 9})) is None
    assert alarm(ArmEnds(arm="a", ends={("open", None): 9})) is None
    whole = alarm(ArmEnds(arm="a", ends={("failed", None): 2}))
    one = alarm(ArmEnds(arm="a", ends={("done", "agent_error"): 1}))
    assert one is not None and str(one) == "THE ONLY CELL of arm a failed: agent_error"
    assert whole is not None and str(whole) == "ALL 2 cells of arm a failed the same way: infra_failure"


def cell(**more: object) -> OpenCell:
    fields: dict[str, object] = {"key": "x/w.c/a/0", "state": "open", "updated_at": T, "owned": False, "living": False}
    fields |= {"left_at": None, "doing": None, "attempt": None, "deadline_at": None, "handed_over": False, "error": None}
    return OpenCell(**{**fields, **more})  # pyright: ignore[reportArgumentType]


def test_each_open_cell_is_explained() -> None:
    told = explain(cell(state="running", owned=True, living=True, doing=("its agent", LATER), deadline_at=LATER, attempt=1))
    assert (told.waits_for, told.since, told.deadline_at) == ("its agent", LATER, LATER)
    assert explain(cell(owned=True, living=True)).waits_for == "a place to run"
    assert explain(cell(state="failed", error="e")).waits_for is None
    dead = cell(state="running", owned=True, left_at=LATER)
    assert explain(dead).since == LATER and "died" in (explain(dead).waits_for or "")
    assert died_at([dead, cell()]) == LATER
    assert died_at([dead, cell(owned=True, living=True)]) is None
    assert died_at([cell(), cell(state="failed", owned=True, left_at=LATER)]) is None
    assert [explain(one, "the budget").waits_for for one in (cell(), dead)] == ["the budget", explain(dead).waits_for]


def test_expected_against_actual() -> None:
    assert expected(2, 2, {"done": 2}) == "2 of 2 cells have a valid result"
    line = "1 of 4 cells have a valid result; missing 3: 2 open, 1 failed (infrastructure; no further attempt)"
    assert expected(1, 4, {"done": 1, "failed": 1, "open": 2}) == line
