"""An arm, a case and a trial are added: only what is new runs, the rest are results of the experiment before."""

from __future__ import annotations

from typing import Any

import pytest
from support.project import Project

pytestmark = pytest.mark.slow

MARKED = """answer "yes $(cat /proc/sys/kernel/random/uuid)" """


def shown(project: Project, name: str) -> dict[str, dict[str, Any]]:
    cells = [project.evals("cell", "show", cell["cell"]) for cell in project.cells(name)]
    return {cell["cell"].partition("/")[2]: cell for cell in cells}


@pytest.mark.long
def test_only_what_is_new_runs(project: Project) -> None:
    project.agent(MARKED)
    project.case("a")
    project.case("b")
    project.experiment("first", seed=7)
    project.run("first")
    first = shown(project, "first")

    project.case("c")
    arms = [{"name": "a", "ref": "main"}, {"name": "b", "ref": "main", "config": {"k": 1}}]
    project.experiment("second", seed=7, arms=arms, trials=2)
    plan = project.evals("experiment", "plan", "second")
    assert (plan["n_cells"], plan["n_reused"], plan["n_new"]) == (12, 2, 10)
    assert sorted(plan["adopted"].values()) == sorted(cell["cell"] for cell in first.values())
    assert project.evals("experiment", "plan", "second", "--no-reuse")["n_new"] == 12

    done = project.run("second")
    assert (done["n_cells"], done["n_ok"]) == (12, 12)
    second = shown(project, "second")
    taken = {key for key, cell in second.items() if cell["adopted_from"] is not None}
    assert taken == set(first)
    for key, cell in second.items():
        assert len(cell["attempts"]) == (0 if key in taken else 1)
    assert all(second[key]["answer"] == first[key]["answer"] and second[key]["score"] == 1 for key in taken)
    assert len({cell["answer"] for cell in second.values()}) == 12  # each other one is the answer of a run of its own
    board = project.evals("leaderboard", "second")
    assert (board["status"], [arm["n_valid"] for arm in board["arms"]]) == ("final", [6, 6])

    # the whole of an experiment: nothing is left to run, and it is complete all the same
    project.experiment("third", seed=7, arms=arms, trials=2)
    assert project.evals("experiment", "plan", "third")["n_new"] == 0
    assert project.run("third")["n_ok"] == 12
    assert {cell["adopted_from"].partition("/")[0] for cell in shown(project, "third").values()} == {
        cell["cell"].partition("/")[0] for cell in [next(iter(first.values())), next(iter(second.values()))]
    }
