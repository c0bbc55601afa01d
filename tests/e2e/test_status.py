"""What people see of a run under way: why cells are open, an engine that died, an arm that fails as a whole."""

from __future__ import annotations

import os
import signal

import pytest
from support.project import Project

pytestmark = pytest.mark.slow


def test_a_run_under_way_is_explained_and_so_is_its_engines_death(project: Project) -> None:
    project.agent("sleep 30; answer yes")
    project.case(limits={"wall_s": 120.0})
    project.experiment("explained", trials=2)
    watcher = project.start("experiment", "run", "explained", "--wait")
    project.wait_for(lambda: any(row["name"] == "explained" for row in project.evals("experiment", "list")))

    def waiting() -> bool:
        status = project.evals("experiment", "status", "explained")
        return status["waiting"] == {"its agent": 2} and all(one["deadline_at"] for one in status["open_cells"])

    project.wait_for(waiting)
    (engine,) = project.engine_pids("explained")
    os.kill(engine, signal.SIGKILL)
    stdout, stderr = watcher.communicate(timeout=60)
    assert watcher.returncode == 1
    assert "missing 2: 2 running" in stdout
    assert "the engine died" in stderr and "evals experiment rerun explained-" in stderr
    status = project.evals("experiment", "status", "explained")
    assert status["engine_died_at"] is not None and status["eta_s"] is None
    assert list(status["waiting"]) == ["an engine: the one that had it died"]
    project.evals("experiment", "rerun", "explained", "--failed")
    project.wait_for(lambda: project.evals("experiment", "status", "explained")["status"] == "done", 120)
    assert [len(cell["attempts"]) for cell in project.cells("explained")] == [1, 1], "nobody ran again"


def test_an_arm_that_fails_as_a_whole_is_said_loudly(project: Project) -> None:
    project.agent("grep -q broken $EVALS_CASE && { echo no key >&2; exit 3; }; answer yes")
    for n in range(3):
        project.case(f"c{n}")
    arms = [{"name": "good", "ref": "main"}, {"name": "bad", "ref": "main", "config": {"way": "broken"}}]
    project.experiment("loud", arms=arms)
    done = project.start("experiment", "run", "loud", "--wait")
    stdout, stderr = done.communicate(timeout=120)
    assert "6 of 6 cells have a valid result; outcomes: 3 agent_error, 3 ok" in stdout
    assert "!! ALL 3 cells of arm bad failed the same way: agent_error; first error: ended with code 3" in stderr
    (alarm,) = project.evals("experiment", "status", "loud")["alarms"]
    assert (alarm["arm"], alarm["n_ended"], alarm["n_cells"]) == ("bad", 3, 3)
    board = project.evals("leaderboard", "loud")
    assert (board["n_cells"], board["missing"]) == (6, {})
