"""Runs whose process and code server were killed at once: ended and tried again by the real daemon, valid cells never."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ui.served import Served

pytestmark = pytest.mark.long

WITHIN_S = 120


def below(pid: int) -> dict[int, str]:
    """Every process that descends from `pid`, with its command line."""
    parents: dict[int, int] = {}
    lines: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_bytes().rpartition(b")")[2].split()[1])
            lines[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue

    def descends(one: int) -> bool:
        while one in parents:
            if one == pid:
                return True
            one = parents[one]
        return False

    return {one: lines[one] for one in parents if one != pid and descends(one)}


def kill(pids: Iterator[int] | list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def prepared(served: Served, name: str) -> str:
    """An experiment with one valid cell and one that nobody works on."""
    project = served.project
    for path in project.worlds.glob("worlds/*/cases/*.yaml"):
        path.unlink()
    project.case("c")
    project.case("doze")
    project.experiment(name)
    experiment = project.evals("experiment", "run", name)["experiment"]
    project.wait_for(lambda: states(served, experiment) == {"done": 1, "running": 1}, 120)
    return experiment


def status_of(served: Served, run: str) -> str | None:
    """None while Dagster is being started again."""
    try:
        return served.run_status(run)
    except (OSError, KeyError):
        return None


def runs(served: Served, job: str) -> list[dict[str, Any]]:
    try:
        return served.runs(job)
    except (OSError, KeyError):
        return []


def states(served: Served, experiment: str) -> dict[str, int]:
    return served.project.evals("experiment", "status", experiment)["states"]


def attempts(served: Served, experiment: str) -> dict[str, int]:
    return {cell["case"]: len(cell["attempts"]) for cell in served.project.cells(experiment)}


def test_a_run_of_the_daemons_is_ended_and_tried_again(served: Served) -> None:
    experiment = prepared(served, "orphaned")
    served.project.evals("experiment", "cancel", experiment)
    served.wait_for(lambda: states(served, experiment) == {"done": 1, "open": 1}, "the cancel")
    served.wait_for(lambda: experiment in served.statuses_of_all("scored_table"), "the partition", 90)
    run = served.launch("rerun_failed_cells", experiment)
    served.wait_for(lambda: states(served, experiment).get("running") == 1, "the agent", 120)
    (worker,) = served.project.engine_pids(experiment)
    family = below(served.process.pid)
    servers = [pid for pid, line in family.items() if " api grpc" in line]
    assert worker in family and servers, family
    kill([*servers, worker])
    served.wait_for(lambda: status_of(served, run) == "FAILURE", "the orphan's end", WITHIN_S)
    again = served.wait_for(lambda: [one for one in runs(served, "rerun_failed_cells") if one["id"] != run], "the retry", 120)
    served.wait_for(lambda: status_of(served, again[0]["id"]) == "SUCCESS", "the retry's end", 180)
    assert any("code server is gone" in line for line in served.said)
    assert states(served, experiment) == {"done": 2}
    # the cancelled one, and the one whose agent lived on while nobody looked after it
    assert attempts(served, experiment) == {"w.c": 1, "w.doze": 2}


def test_a_run_of_the_command_line_goes_on_without_anybody_asking(served: Served) -> None:
    experiment = prepared(served, "headless")
    (run,) = [one for one in runs(served, "run_cells") if mine(one, experiment)]
    kill(served.project.engine_pids(experiment))
    served.wait_for(lambda: status_of(served, run["id"]) == "FAILURE", "the orphan's end", WITHIN_S)
    served.wait_for(lambda: states(served, experiment) == {"done": 2}, "the rest", 180)
    assert attempts(served, experiment) == {"w.c": 1, "w.doze": 1}, "adopted: the agent lived on"


def mine(run: dict[str, Any], experiment: str) -> bool:
    return {"key": "evals/experiment", "value": experiment} in run["tags"]
