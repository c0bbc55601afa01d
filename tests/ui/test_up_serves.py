"""What `evals up` serves while experiments come and go beside it."""

from __future__ import annotations

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
