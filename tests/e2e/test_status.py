"""What people see of a run under way: why cells are open, an engine that died, an arm that fails as a whole."""

from __future__ import annotations

import os
import signal

import pytest
from support.project import Project

pytestmark = pytest.mark.slow

RATES = dict.fromkeys(["input_uncached", "cache_read", "cache_write_5m", "cache_write_1h", "output"], "10")
PRICE = {"provider": "test", "model": "m", "effective_from": "2026-01-01", **RATES, "source": "made up"}


@pytest.mark.long
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


@pytest.mark.long
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
    assert [(one["arm"], one["outcome"]) for one in board["alarms"]] == [("bad", "agent_error")]
    project.env["COLUMNS"] = "200"
    shown, _ = project.start("leaderboard", "loud").communicate(timeout=60)
    assert "!! ALL 3 cells of arm bad failed the same way: agent_error" in shown and "bad !! FAILED AS A WHOLE" in shown
    bad = next(one["cell"] for one in project.cells("loud") if one["arm"] == "bad")
    printed, _ = project.start("cell", "logs", bad).communicate(timeout=60)
    lines = printed.splitlines()
    assert lines[lines.index("--- agent.stderr") + 1] == "no key" and "--- error of attempt 1" in lines


@pytest.mark.long
def test_an_engine_that_died_before_its_cells_began_is_said_with_its_log(project: Project) -> None:
    project.agent("answer yes")
    project.case()
    project.experiment("unborn")
    watcher = project.start("experiment", "run", "unborn", "--wait")
    lock = project.wait_for(lambda: next((project.state_dir / "engines").glob("drive-unborn-*.lock"), None))
    os.kill(int(lock.stem.rpartition("-")[2]), signal.SIGKILL)
    stdout, stderr = watcher.communicate(timeout=60)
    assert watcher.returncode == 1 and "missing 1: 1 open" in stdout
    assert "the engine died at" in stderr and "/logs/unborn-" in stderr
    shown, _ = project.start("experiment", "status", "unborn").communicate(timeout=60)
    assert "THE ENGINE DIED at" in shown and "/logs/unborn-" in shown and "go on with: evals experiment" in shown
    assert project.run("unborn")["n_ok"] == 1
    assert project.evals("experiment", "status", "unborn")["engine_died_at"] is None


@pytest.mark.long
def test_a_budget_that_is_used_up_says_what_the_next_cell_needs(project: Project) -> None:
    usage = '{"type":"usage","model":"m","input_uncached":2000,"output":0}'
    project.write("prices.yaml", [PRICE])
    project.agent(f"echo '{usage}' > $EVALS_OUTPUT/transcript.jsonl; answer yes")
    project.case(limits={"cost_usd": 0.03})
    project.experiment("poor", trials=2, budget={"cost_usd": 0.029})
    refused = project.run("poor", check=False)
    assert (refused["exit_code"], refused["error"]["code"]) == (2, "spec")
    assert "poor.yaml:" in refused["error"]["message"] and "no cell can start" in refused["error"]["message"]
    project.experiment("poor", trials=2, budget={"cost_usd": 0.04})
    stopped = project.run("poor", check=False)
    assert (stopped["exit_code"], stopped["error"]["code"]) == (3, "budget_exceeded")
    assert (
        "1 of 2 cells have no valid result: the next cell must reserve 0.03 USD, and 0.02 of 0.04 are left"
        in (stopped["error"]["message"])
    )
    assert "raise budget.cost_usd to 0.05 at least" in stopped["error"]["hint"]
    status = project.evals("experiment", "status", "poor")
    assert status["waiting"] == {"the budget (needs 0.03, 0.02 left)": 1}
    project.experiment("poor", trials=2, budget={"cost_usd": 0.05})
    assert project.run("poor")["n_ok"] == 2
