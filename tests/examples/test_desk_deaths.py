"""A service of the desk that dies while its agent works, and who is to blame: the processes are real and die on the host."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from support import desk_repo
from support.desk_repo import QUESTION, SAYS_60
from support.places import short_dir
from support.project import Project

from eval_pipeline.sandbox.local import launch
from eval_pipeline.sandbox.local.limits import find_groups
from eval_pipeline.sandbox.local.places import prepare

pytestmark = pytest.mark.long

# What is sent SIGKILL, by its command line
KILLED = {"postgres": "/bin/postgres -D ", "documents": "/bin/documents", "supervisor": "bin/up"}
# What the app does to itself, and what stands in the error
BROKEN = {"segfault": "documents (pid 0) ended with signal 11", "collapse": "documents (pid 0) ended with exit code 3"}

# An agent that works until it is told to go on with its case. The mark `go` is set by the test, `working` for it.
WAITING = """#!/usr/bin/env python3
import json, os, sys, time
from pathlib import Path

sys.path[0] = os.path.dirname(sys.path[0])

from matter_desk import agent
from matter_desk.client import own_desk

OUT = Path(os.environ["EVALS_OUTPUT"])
answer = agent.run


def run(case, files, transcript, started):
    desk, eaten = own_desk(), []
    while "wait" in case["prompt"] and not (OUT / "go").exists():
        desk.documents()
        (OUT / "working").touch()
        time.sleep(0.05)
    while "devour" in case["prompt"]:
        eaten.append(bytearray(b"x" * (4 << 20)))
        desk.documents()
    return answer(case, files, transcript, started)


agent.run = run
sys.exit(agent.main())
"""
# A search for one of these words ends the document service, as a fault of its own would
FAULT = """        asked = dict(parse_qsl(request.query_string))
        if "segfault" in asked.get("query", ""):
            import ctypes

            ctypes.string_at(0)
        if "collapse" in asked.get("query", ""):
            import os

            os._exit(3)
"""
RESOURCES = "resources: {cpu: 1, memory_mib: 256, disk_mib: 96}"


def deploy(project: Project) -> None:
    changes = {
        "matter_desk/service.py": [("        asked = dict(parse_qsl(request.query_string))\n", FAULT)],
        "evals.app.yaml": [("resources: {cpu: 1, memory_mib: 768, disk_mib: 512}", RESOURCES)],
    }
    (project.app / "desk" / "bin" / "agent").write_text(WAITING)
    desk_repo.edit(project, changes)


class Stage:
    """The cells of one running experiment, by their cases; what happens in their sandboxes is seen and done from the host."""

    def __init__(self, project: Project, experiment: str) -> None:
        self.project = project
        self.experiment = experiment
        self.scratch = Path(prepare(project.state_dir).scratch)

    def attempts(self) -> dict[str, list[dict[str, Any]]]:
        return {cell["case"].partition(".")[2]: cell["attempts"] for cell in self.project.cells(self.experiment)}

    def out(self, attempt: dict[str, Any]) -> Path:
        return self.scratch / attempt["sandbox"] / "disk" / "out"

    def working(self, case: str, number: int = 1) -> dict[str, Any]:
        """The attempt of that number, once its agent works."""

        def found() -> dict[str, Any] | None:
            there = self.attempts()[case][number - 1 :]
            return there[0] if there and (self.out(there[0]) / "working").exists() else None

        return self.project.wait_for(found, 240)

    def go(self, attempt: dict[str, Any]) -> None:
        (self.out(attempt) / "go").touch()

    def pid(self, attempt: dict[str, Any], words: str) -> int:
        """On the host: the only process of the attempt's sandbox whose command line has these words."""
        inmate = launch.inmate(self.scratch / attempt["sandbox"])
        assert inmate is not None
        (found,) = [pid for pid in _pids() if _namespace(pid) == _namespace(inmate.pid) and words in _command(pid)]
        return found

    def end(self) -> dict[str, dict[str, Any]]:
        """Case -> what `cell show` says, when all is done."""
        self.project.wait_for(lambda: self.project.evals("experiment", "status", self.experiment)["status"] == "done", 240)
        cells = self.project.cells(self.experiment)
        return {cell["case"].partition(".")[2]: self.project.evals("cell", "show", cell["cell"]) for cell in cells}


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def _namespace(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


@pytest.fixture(scope="module")
def ends(shared_state: Path) -> Generator[dict[str, dict[str, Any]]]:
    """Case -> what `cell show` says of it. All run at once; each death comes when its agent is seen to work."""
    with short_dir() as root:
        project = desk_repo.desk_project(root, shared_state)
        deploy(project)
        project.case("calm", criteria=[SAYS_60], prompt=QUESTION)
        for name in KILLED:
            project.case(name, criteria=[SAYS_60], prompt=f"{QUESTION} (wait)")
        for word in BROKEN:
            project.case(word, criteria=[SAYS_60], prompt=f"Which {word} does the lease have?")
        if starves():
            project.case("starved", criteria=[SAYS_60], prompt="wait, then devour")
        desk_repo.desk_experiment(project, "deaths", {"a": "main"})
        stage = Stage(project, project.evals("experiment", "run", "deaths")["experiment"])
        for name, words in KILLED.items():
            os.kill(stage.pid(stage.working(name), words), signal.SIGKILL)
        if starves():
            starved = stage.working("starved")
            Path(f"/proc/{stage.pid(starved, KILLED['postgres'])}/oom_score_adj").write_text("1000")  # the limit's first victim
            stage.go(starved)
        for name in KILLED:
            stage.go(stage.working(name, 2))
        yield stage.end()


def starves() -> bool:
    return "memory" in find_groups().parents


def test_without_a_death_the_case_is_answered(ends: dict[str, Any]) -> None:
    assert [(a["outcome"], a["evidence"].get("service_end")) for a in ends["calm"]["attempts"]] == [("ok", None)]


@pytest.mark.parametrize("name", KILLED)
def test_a_service_killed_from_outside_costs_an_attempt_and_nothing_else(ends: dict[str, Any], name: str) -> None:
    first, second = ends[name]["attempts"]
    assert (first["outcome"], second["outcome"], ends[name]["score"]) == ("infra_failure", "ok", 1.0)
    assert "ended from outside: `up` ended with code 137" in first["error"], first
    assert first["sandbox"] != second["sandbox"]


@pytest.mark.parametrize("name", KILLED)
def test_the_evidence_of_the_first_attempt_is_kept(ends: dict[str, Any], name: str) -> None:
    first, second = ends[name]["attempts"]
    assert "137" in first["evidence"]["service_end"]
    assert name == "supervisor" or f"{name} (pid" in first["evidence"]["service_end"]
    assert first["bundle"] is not None and first["bundle"] != second["bundle"]
    assert first["evidence"]["layer"] == second["evidence"]["layer"]


@pytest.mark.parametrize("name", BROKEN)
def test_a_service_that_fails_by_itself_is_the_apps_fault(ends: dict[str, Any], name: str) -> None:
    (only,) = ends[name]["attempts"]
    assert (only["outcome"], only["error_class"], ends[name]["score"]) == ("agent_error", "service", 0.0), only
    said = BROKEN[name].partition("(pid 0)")
    assert said[0] in only["error"] and said[2] in only["error"]


def test_a_service_killed_at_the_sandboxs_own_limit_is_the_apps_fault(ends: dict[str, Any]) -> None:
    if not starves():
        pytest.skip("no control groups can be made here")
    (only,) = ends["starved"]["attempts"]
    assert (only["outcome"], ends["starved"]["score"]) == ("agent_error", 0.0), only
    assert only["error"].startswith("out of memory: limit 256 MiB")
    assert "postgres (pid" in only["evidence"]["service_end"] and "SIGKILL" in only["evidence"]["service_end"]
