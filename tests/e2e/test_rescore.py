"""Stored results scored again: another rubric, another judge, and no agent that runs a second time."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from support.loopback_judge import LoopbackJudge, Read, fails, loopback_judge
from support.project import Project

pytestmark = pytest.mark.slow

LEASE = {"id": "lease", "text": "Says that the Kiel lease needs written consent", "points": 1, "judge": True}
FUEL = {"id": "fuel", "text": "Says that the fuel supply ends in Rotterdam", "points": 1, "judge": True}
MARKED = """answer "The Kiel lease needs written consent. Run $(cat /proc/sys/kernel/random/uuid)" """


@pytest.fixture
def judge() -> Generator[LoopbackJudge]:
    with loopback_judge() as opened:
        yield opened


def runs(project: Project, name: str) -> dict[str, tuple[str, int]]:
    """Cell -> the mark that each run of its agent makes anew, and how often it was tried."""
    keys = [cell["cell"] for cell in project.cells(name)]
    shown = {key: project.evals("cell", "show", key) for key in keys}
    return {key: (cell["answer"].partition("Run ")[2], len(cell["attempts"])) for key, cell in shown.items()}


def scores(project: Project, name: str) -> list[float | None]:
    return [cell["score"] for cell in project.cells(name)]


def test_results_are_scored_again_and_no_agent_runs(project: Project, judge: LoopbackJudge) -> None:
    project.agent(MARKED)
    for name in ("a", "b"):
        project.case(name, criteria=[LEASE, FUEL])
    spec = {"model": "openai:first", "base_url": judge.url}
    project.experiment("again", judge=spec, budget={"cost_usd": 5}, limits={"cost_usd": 0.01})
    project.run("again")
    before = runs(project, "again")
    assert len({mark for mark, _ in before.values()}) == 2 and scores(project, "again") == [0.5, 0.5]
    assert len(judge.requests) == 4

    project.case("a", criteria=[{**LEASE, "points": 3}, FUEL])
    project.case(
        "b", criteria=[LEASE, FUEL, {"id": "run", "text": "Ends with a run", "points": 2, "check": {"contains": "Run "}}]
    )
    changed = project.evals("score", "again", "--rubric", "latest", check=False)
    assert (changed["exit_code"], changed["data"]["n_calls"], len(judge.requests)) == (0, 0, 4)  # a weight is no question
    assert scores(project, "again") == [0.75, 0.75]
    (arm,) = changed["data"]["arms"]
    assert (arm["old"], arm["new"], arm["change"]["diff"], arm["n_differ"]) == (0.5, 0.75, 0.25, 2)

    judge.decide = never
    other = project.evals("score", "again", "--judge", "openai:second", "--base-url", judge.url)
    assert (other["n_calls"], scores(project, "again")) == (4, [0.0, 0.5])
    assert other["arms"][0]["change"]["diff"] == pytest.approx(-0.5)
    back = project.evals("score", "again", "--judge", "openai:first", "--base-url", judge.url)
    assert (back["n_calls"], scores(project, "again")) == (0, [0.75, 0.75])  # what the first judge said is still there
    assert runs(project, "again") == before


@pytest.mark.long
def test_what_could_not_be_judged_is_asked_again(project: Project, judge: LoopbackJudge) -> None:
    project.agent(MARKED)
    project.case("a", criteria=[LEASE])
    project.experiment("failing", judge={"model": "openai:failing", "base_url": judge.url})
    judge.faults.extend([fails(401)] * 2)
    project.run("failing")
    before = runs(project, "failing")
    (cell,) = project.cells("failing")
    assert (cell["outcome"], cell["score"], cell["n_not_judged"]) == ("ok", None, 1)
    told = project.evals("score", "failing", check=False)
    assert (told["exit_code"], told["error"]["code"]) == (1, "not_judged") and "401" in told["error"]["message"]
    judge.faults.clear()
    asked = project.evals("score", "failing")
    assert (asked["n_calls"], asked["n_without_score_before"], asked["n_without_score"]) == (1, 1, 0)
    assert (scores(project, "failing"), runs(project, "failing")) == ([1.0], before)


@pytest.mark.long
def test_a_budget_without_room_stops_the_judge_alone(project: Project, judge: LoopbackJudge) -> None:
    project.agent(MARKED)
    project.case("a", criteria=[LEASE])
    project.write("prices.yaml", [price("openai", "dear")])
    spec: dict[str, Any] = {"judge": {"model": "openai:dear", "base_url": judge.url}, "limits": {"cost_usd": 0.0005}}
    project.experiment("poor", **spec, budget={"cost_usd": 0.001})
    project.run("poor")
    told = project.evals("score", "poor", check=False)
    assert (told["exit_code"], told["error"]["code"], judge.requests) == (3, "budget_exceeded", [])
    project.experiment("poor", **spec, budget={"cost_usd": 50})
    project.run("poor")
    assert project.evals("score", "poor")["n_without_score"] == 0
    board = project.evals("leaderboard", "poor")
    assert board["judge"]["cost_usd"] == pytest.approx(0.0114) and board["judge"]["n_calls"] == 1
    (cell,) = project.cells("poor")
    assert cell["cost_usd"] == 0  # the agent's own


def never(request: Read) -> dict[str, Any]:
    return {"criterion_id": request.criterion_id, "evidence": "", "reasoning": "never", "verdict": "not_met"}


def price(provider: str, model: str) -> dict[str, str]:
    inputs = {"input_uncached": "10", "cache_read": "1", "cache_write_5m": "10", "cache_write_1h": "10", "output": "100"}
    return {"provider": provider, "model": model, "effective_from": "2026-01-01", **inputs, "source": "made up"}
