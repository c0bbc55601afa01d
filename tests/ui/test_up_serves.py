"""What `evals up` serves while experiments come and go beside it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from ui.served import Served

pytestmark = pytest.mark.slow


def test_the_daemons_are_healthy_and_every_sensor_runs(served: Served) -> None:
    served.wait_for(lambda: all(served.required_daemons().values()), "healthy daemons", 90)
    assert {"SENSOR", "BACKFILL", "QUEUED_RUN_COORDINATOR"} <= set(served.required_daemons())
    assert {state["status"] for state in served.sensors().values()} == {"RUNNING"}


def test_an_experiment_made_meanwhile_is_shown_and_can_be_launched(served: Served) -> None:
    project = served.project
    project.case("c")
    project.case("c", world="bad")
    project.case("slow")
    project.experiment("meanwhile", trials=2)
    name = project.evals("experiment", "run", "meanwhile")["experiment"]
    project.wait_for(lambda: project.evals("experiment", "status", name)["states"] == {"done": 2, "failed": 2, "running": 2})
    project.evals("experiment", "cancel", name)
    project.wait_for(lambda: project.evals("experiment", "status", name)["status"] == "cancelled")
    served.wait_for(lambda: all(run["status"] == "FAILURE" for run in served.runs("run_cells")), "the run to end")
    bad, good, slow = ([f"{name}/{case}/a/{trial}" for trial in (0, 1)] for case in ("bad.c", "w.c", "w.slow"))
    expected = {**dict.fromkeys(bad, "failed"), **dict.fromkeys(good, "materialized"), **dict.fromkeys(slow, "missing")}
    assert served.statuses(name) == expected

    backfill = served.wait_backfill(served.backfill([bad[1], good[0]]))
    assert [run["status"] for run in backfill["runs"]] == ["FAILURE"]
    assert served.statuses(name) == expected
    attempts = {cell["cell"]: len(cell["attempts"]) for cell in project.cells(name)}
    assert attempts == {bad[0]: 1, bad[1]: 2, **dict.fromkeys([*good, *slow], 1)}


def test_a_rested_experiment_is_scored_without_being_asked(served: Served) -> None:
    names = [row["experiment"] for row in served.project.evals("experiment", "list")]
    served.wait_for(lambda: set(names) <= materialized(served, "leaderboard"), "the leaderboards", 120)
    assert set(names) <= materialized(served, "scored_table")


def materialized(served: Served, asset: str) -> set[str]:
    names = [row["experiment"] for row in served.project.evals("experiment", "list")]
    return {name for name in names if served.statuses(name, asset).get(name) == "materialized"}


def test_a_sensor_that_is_switched_off_is_said(served: Served) -> None:
    served.stop_sensor("repair_records")
    served.wait_for(lambda: any("the sensor repair_records is stopped" in line for line in served.said), "the warning", 120)
    assert not any("score_finished_experiments is stopped" in line for line in served.said)


def test_nothing_of_it_listens_but_on_this_machine_itself(served: Served) -> None:
    assert any("for this machine alone" in line for line in served.said)
    found = listening(descendants(served.process.pid))
    assert (LOOPBACK, served.port) in found
    assert {address for address, _ in found} <= {LOOPBACK, LOOPBACK_6, LOOPBACK_MAPPED}


LOOPBACK, LOOPBACK_6, LOOPBACK_MAPPED = "0100007F", "0" * 24 + "01000000", "0" * 16 + "FFFF00000100007F"


def descendants(pid: int) -> set[int]:
    """Of a process, with it."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            parents[int(folder.name)] = int((folder / "stat").read_bytes().rpartition(b")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def listening(pids: set[int]) -> set[tuple[str, int]]:
    """Address, as the kernel writes it, and port."""
    inodes: set[str] = set()
    for pid in pids:
        with suppress(OSError):
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    inodes.add(str(entry.readlink()))
    found: set[tuple[str, int]] = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
                address, port = words[1].split(":")
                found.add((address, int(port, 16)))
    return found
