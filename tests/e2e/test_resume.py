"""Resume, rerun, cancel, crash: evidence is the agent's own marks, one file a start, against the ledger."""

from __future__ import annotations

import os
import signal

import pytest
from support.project import Project

from eval_pipeline.settings import Settings
from eval_pipeline.store.postgres import server_status

pytestmark = pytest.mark.slow


@pytest.mark.long
def test_the_same_file_resumes_and_runs_nothing_again(project: Project) -> None:
    project.agent("answer yes")
    project.case()
    project.experiment("again", trials=3)
    first, second = project.run("again"), project.run("again")
    assert (first["resumed"], second["resumed"]) == (False, True)
    assert first["experiment"] == second["experiment"]
    assert [len(cell["attempts"]) for cell in project.cells("again")] == [1, 1, 1]


@pytest.mark.long
def test_a_moved_ref_resumes_the_locked_commit_unless_fresh(project: Project) -> None:
    project.agent("answer yes")
    project.case()
    project.experiment("moved")
    first = project.run("moved")
    project.agent("answer no")
    resumed = project.evals("experiment", "run", "moved", "--wait", check=False)
    assert resumed["data"]["experiment"] == first["experiment"]
    assert "main (arm 'a') moved 1 commit" in resumed["stderr"]
    assert "evals experiment run moved --fresh" in resumed["data"]["moved"]
    planned, _ = project.start("experiment", "plan", "moved").communicate(timeout=60)
    assert "(MOVED since: now " in planned and "`evals experiment run moved --fresh` runs it as it is now" in planned
    fresh = project.run("moved", "--fresh")
    assert fresh["experiment"] != first["experiment"]
    assert [cell["score"] for cell in project.cells(fresh["experiment"])] == [0.0]
    assert [row["experiment"] for row in project.evals("experiment", "list")][:2] == [fresh["experiment"], first["experiment"]]


@pytest.mark.long
def test_a_changed_rubric_scores_again_without_running_again(project: Project) -> None:
    project.agent("answer yes")
    project.case()
    project.experiment("rescored")
    first = project.run("rescored")
    project.case(criteria=[{"id": "n", "text": "Says no", "points": 1, "check": {"contains": "no"}}])
    second = project.run("rescored")
    assert second["experiment"] == first["experiment"]
    (cell,) = project.cells(first["experiment"])
    assert (cell["score"], len(cell["attempts"])) == (0.0, 1)


@pytest.mark.long
def test_the_worktree_can_be_an_arm(project: Project) -> None:
    project.agent("answer no")
    script = (project.app / "bin" / "agent").read_text().replace("answer no", "answer yes")
    (project.app / "bin" / "agent").write_text(script)
    project.case()
    project.experiment("dirty", arms=[{"name": "head", "ref": "main"}, {"name": "tree", "ref": "WORKTREE"}])
    data = project.run("dirty")
    assert {cell["arm"]: cell["score"] for cell in project.cells(data["experiment"])} == {"head": 0.0, "tree": 1.0}


def test_kill_9_of_the_engine_costs_no_agent_its_run(project: Project) -> None:
    project.agent("echo s >> $EVALS_OUTPUT/starts; sleep 4; answer yes")
    project.case()
    project.experiment("killed", trials=4)
    started = project.evals("experiment", "run", "killed")
    name = started["experiment"]
    project.wait_for(lambda: project.evals("experiment", "status", name)["states"].get("running") == 4)
    project.kill_engines(name)
    project.run("killed")
    cells = project.cells(name)
    assert [(cell["outcome"], len(cell["attempts"])) for cell in cells] == [("ok", 1)] * 4
    for cell in cells:
        files = project.root / "files" / str(cell["trial"])
        project.evals("cell", "files", cell["cell"], "--into", str(files))
    assert project.evals("sandbox", "list") == []


@pytest.mark.long
def test_cancel_ends_sandboxes_and_opens_the_cells_again(project: Project) -> None:
    project.agent("[ $(ls $EVALS_OUTPUT | wc -l) = 0 ] && echo s > $EVALS_OUTPUT/s; sleep 60; answer yes")
    project.case()
    project.experiment("cancelled", trials=2)
    name = project.evals("experiment", "run", "cancelled")["experiment"]
    project.wait_for(lambda: project.evals("experiment", "status", name)["states"].get("running") == 2)
    project.evals("experiment", "cancel", name)
    project.wait_for(lambda: project.evals("experiment", "status", name)["status"] == "cancelled")
    cells = project.cells(name)
    assert [(cell["state"], cell["attempts"][0]["outcome"]) for cell in cells] == [("open", "cancelled")] * 2
    assert project.evals("sandbox", "list") == []


@pytest.mark.long
def test_ctrl_c_cancels_and_a_second_one_detaches(project: Project) -> None:
    project.agent("sleep 60; answer yes")
    project.case()
    project.experiment("interrupted")
    process = project.start("experiment", "run", "interrupted", "--wait")
    project.wait_for(lambda: project.evals("experiment", "list")[0]["name"] == "interrupted")
    project.wait_for(lambda: project.evals("experiment", "status", "interrupted")["states"].get("running") == 1)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert "cancelling" in stderr and process.returncode == 1
    assert project.evals("experiment", "status", "interrupted")["status"] == "cancelled"
    assert project.evals("sandbox", "list") == []


@pytest.mark.long
def test_the_budget_is_reserved_before_anything_runs(project: Project) -> None:
    names = ("input_uncached", "cache_read", "cache_write_5m", "cache_write_1h", "output")
    row = {"provider": "p", "model": "m", "effective_from": "2020-01-01", "source": "invented", **dict.fromkeys(names, "1000")}
    project.write("prices.yaml", [row])
    usage = '{"type":"usage","model":"m","input_uncached":1000,"output":0}'
    project.agent(f"echo '{usage}' > $EVALS_OUTPUT/transcript.jsonl; answer yes")
    project.case(limits={"wall_s": 60.0, "cost_usd": 1.5})
    project.experiment("budget", trials=6, budget={"cost_usd": 4.0})
    ran = project.run("budget", check=False)
    assert ran["exit_code"] == 3
    cells = project.cells("budget")
    spent = sum(cell["cost_usd"] or 0 for cell in cells)
    assert (ran["data"]["n_ok"], spent) == (3, 3.0)  # a fourth would reserve 1.5 beside 3.0 spent
    assert {cell["state"] for cell in cells if cell["outcome"] is None} == {"open"}
    project.experiment("budget", trials=6, budget={"cost_usd": 10.0})
    assert project.run("budget")["n_ok"] == 6
    assert [len(cell["attempts"]) for cell in project.cells("budget")] == [1] * 6


@pytest.mark.long
def test_a_budget_of_cells_or_of_time_stops_and_goes_on_when_it_is_raised(project: Project) -> None:
    project.agent("sleep 1; answer yes")
    project.case(limits={"wall_s": 60.0, "cost_usd": 0.25})
    project.env["EVALS_USER"] = "sam"
    for budget, n_ok, why in (
        ({"cells": 1}, 1, "1 cells were begun, and its budget is 1"),
        ({"cells": 3, "wall_s": 0.5}, 1, "and its budget is 0 s"),
        ({"cells": 3}, 3, "3 cells were begun, and its budget is 3"),
    ):
        project.experiment("bounded", trials=4, budget=budget)
        ran = project.run("bounded", check=False)
        assert (ran["exit_code"], ran["error"]["code"], ran["data"]["n_ok"]) == (3, "budget_exceeded", n_ok)
        assert why in ran["error"]["message"]
    project.env["EVALS_USER"] = "kim"
    project.experiment("bounded", trials=4)
    project.evals("budget", "--monthly-cap", "0.2", "--confirm-above", "0.1")
    asked = project.run("bounded", check=False)
    assert (asked["exit_code"], "--yes" in asked["error"]["hint"]) == (2, True)
    assert "1 cells of bounded-" in asked["error"]["message"] and "may cost 0.25 USD" in asked["error"]["message"]
    capped = project.run("bounded", "--yes", check=False)
    assert (capped["exit_code"], capped["data"]["n_ok"]) == (3, 3)
    assert "this installation's month" in capped["error"]["message"]
    project.evals("budget", "--monthly-cap", "none", "--confirm-above", "100")
    assert project.run("bounded")["n_ok"] == 4
    status = project.evals("experiment", "status", "bounded")
    assert (status["created_by"], status["begun_cells"], status["worked_s"] >= 2) == ("sam", 4, True)
    assert status["failures"] == dict.fromkeys(["agent", "timeout", "budget", "refusal", "infra", "provider", "judge"], 0)


@pytest.mark.long
def test_only_named_cells_run_again_and_discarding_is_counted(project: Project) -> None:
    project.agent("answer yes")
    project.case()
    project.experiment("rerun", trials=2)
    name = project.run("rerun")["experiment"]
    key = f"{name}/w.c/a/1"
    project.evals("experiment", "rerun", name, "--cell", key, "--wait")
    assert [len(cell["attempts"]) for cell in project.cells(name)] == [1, 1]
    project.evals("experiment", "rerun", name, "--cell", key, "--discard", "a test", "--wait")
    assert [len(cell["attempts"]) for cell in project.cells(name)] == [1, 2]
    assert project.evals("leaderboard", name)["arms"][0]["n_discarded"] == 1


@pytest.mark.long
def test_a_build_that_fails_is_an_infrastructure_failure_with_its_log(project: Project) -> None:
    project.agent("answer yes")
    project.commit({"bin/restore": "#!/bin/sh\necho no such table: matters >&2; exit 4\n"})
    project.manifest(restore=["bin/restore", "/world"])
    project.commit({})
    project.case()
    project.experiment("nobuild")
    ran = project.run("nobuild", check=False)
    assert (ran["exit_code"], ran["data"]["n_failed"]) == (1, 1)
    (cell,) = project.cells("nobuild")
    assert (cell["state"], cell["score"], len(cell["attempts"])) == ("failed", None, 1)
    assert "no such table: matters" in cell["attempts"][0]["error"]
    board = project.evals("leaderboard", "nobuild")
    assert (board["status"], board["arms"][0]["score"], board["arms"][0]["n_infra"]) == ("provisional", None, 1)
    assert project.evals("sandbox", "list") == []


@pytest.mark.long
def test_postgres_gone_in_mid_run_loses_nothing(lone_project: Project) -> None:
    lone_project.agent("echo s >> $EVALS_OUTPUT/starts; sleep 5; answer yes")
    lone_project.case()
    lone_project.experiment("outage", trials=3)
    name = lone_project.evals("experiment", "run", "outage")["experiment"]
    lone_project.wait_for(lambda: lone_project.evals("experiment", "status", name)["states"].get("running") == 3)
    settings = Settings(state_dir=lone_project.state_dir, worlds_dir=lone_project.worlds)
    pid = server_status(settings).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    lone_project.wait_for(lambda: lone_project.evals("experiment", "status", name)["n_done"] == 3)
    lone_project.run("outage")
    assert [(cell["outcome"], len(cell["attempts"])) for cell in lone_project.cells(name)] == [("ok", 1)] * 3
    lone_project.wait_for(lambda: server_status(settings).pid is None)  # the engine scores, and is the last to leave


@pytest.mark.long
def test_a_check_of_ones_own_that_breaks_is_judged_again_and_no_agent_runs(project: Project) -> None:
    """It is given what the agent left. Its file stays out of the agent's sandbox."""
    broken = "def check(answer, files, usage):\n    return files['note.txt'] == b'yes' and 1 / 0  # mark-of-the-check\n"
    project.write("worlds/w/cases/checks/mine.py", broken)
    project.agent(
        "mkdir -p $EVALS_OUTPUT/files; printf yes > $EVALS_OUTPUT/files/note.txt\n"
        'find=$(find / -name mine.py 2>/dev/null); mark=mark-of; answer "$(grep -rl $mark-the-check /world /app /run/evals 2>/dev/null)${find}none"'
    )
    project.case(criteria=[{"id": "mine", "text": "Mine", "points": 1, "check": {"python": "checks/mine.py"}}])
    project.experiment("own")
    name = project.run("own")["experiment"]
    (cell,) = project.cells(name)
    shown = project.evals("cell", "show", cell["cell"])
    assert (cell["outcome"], cell["score"], shown["answer"]) == ("ok", None, "none")
    assert (shown["criteria"][0]["status"], "ZeroDivisionError" in shown["criteria"][0]["reason"]) == ("failed", True)
    project.write("worlds/w/cases/checks/mine.py", broken.replace(" and 1 / 0", ", f'{len(files)} file'"))
    assert project.run("own")["experiment"] == name
    (cell,) = project.cells(name)
    shown = project.evals("cell", "show", cell["cell"])
    assert (cell["score"], len(cell["attempts"]), shown["criteria"][0]["reason"]) == (1.0, 1, "checks/mine.py: 1 file")


@pytest.mark.long
def test_a_fix_in_the_working_tree_is_told_of_fresh_first_while_nothing_counts(project: Project) -> None:
    project.manifest(build=["false"])
    project.agent("answer yes")
    project.case()
    project.experiment("trap", arms=[{"name": "tree", "ref": "WORKTREE"}])
    broken = project.run("trap", check=False)
    assert (broken["error"]["code"], broken["data"]["moved"]) == ("cells_failed", None)
    project.manifest()
    again = project.run("trap", check=False)
    assert again["data"]["experiment"] == broken["data"]["experiment"]
    assert (
        again["error"]["hint"].startswith("these run the tree of 20")
        and "your working tree has changed" in again["error"]["hint"]
    )
    assert "`evals experiment run trap --fresh`" in again["error"]["hint"].splitlines()[0]
    assert project.run("trap", "--fresh")["n_ok"] == 1
