"""A nightly experiment on the real instance: started once when it is due, on the branch's head, and not twice."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
import time_machine

if TYPE_CHECKING:
    import dagster as dg
    from conftest import Bench

pytestmark = pytest.mark.slow

SCHEDULE = {"cron": "0 2 * * *", "timezone": "Europe/Berlin"}
JUNE = lambda day, hour=0, minute=30: datetime(2027, 6, day, hour, minute, tzinfo=UTC)  # noqa: E731


def tick(bench: Bench, at: datetime, cursor: str | None) -> tuple[list[dg.RunRequest], str | None]:
    import dagster as dg

    from eval_pipeline.definitions import defs
    from eval_pipeline.defs.resources import EvalsResource

    sensor = defs.resolve_sensor_def("start_due_experiments")
    with dg.build_sensor_context(
        instance=bench.instance, cursor=cursor, resources={"evals": EvalsResource()}, definitions=defs
    ) as context:
        with time_machine.travel(at, tick=False):
            result: Any = sensor(context)
        return result.run_requests or [], result.cursor


def started(bench: Bench, request: dg.RunRequest) -> dg.ExecuteInProcessResult:
    from eval_pipeline.definitions import defs

    job = defs.resolve_job_def("start_experiment")
    return job.execute_in_process(instance=bench.instance, run_config=request.run_config, tags=request.tags, raise_on_error=False)


def said(result: dg.ExecuteInProcessResult) -> str:
    (event,) = [event for event in result.all_events if event.event_type_value == "STEP_OUTPUT"]
    data: Any = event.event_specific_data
    return data.metadata["said"].value


@pytest.mark.long
def test_a_nightly_experiment(bench: Bench) -> None:
    import dagster as dg

    project = bench.project
    project.case("c")
    project.experiment("nightly", schedule=SCHEDULE)
    project.experiment("by-hand")
    requests, first = tick(bench, JUNE(1, 12), None)
    assert requests == []
    (request,), second = tick(bench, JUNE(2), first)
    assert (request.run_key, request.tags["evals/due"]) == ("nightly.yaml:2027-06-02T00:00:00+00:00", "2027-06-02T00:00:00+00:00")
    assert tick(bench, JUNE(2, 1), second) == ([], second)
    (again,), _ = tick(bench, JUNE(2, 1), first)  # the cursor of a tick that died is not kept
    assert again.run_key == request.run_key  # which Dagster launches once

    result = started(bench, request)
    assert result.success
    (row,) = [row for row in project.evals("experiment", "list") if row["name"] == "nightly"]
    assert (row["n_done"], row["n_cells"], row["created_by"]) == (1, 1, "schedule")
    assert bench.statuses(row["experiment"]) == {f"{row['experiment']}/w.c/a/0": "materialized"}
    assert said(result) == f"{row['experiment']}: 1 of 1 cells to run"

    assert said(started(bench, request)).endswith("nothing has moved since it was locked, and nothing is run again")
    assert bench.attempts(row["experiment"]) == {f"{row['experiment']}/w.c/a/0": 1}

    project.agent("answer 'yes, still'")
    assert started(bench, request).success
    rows = [row for row in project.evals("experiment", "list") if row["name"] == "nightly"]
    assert len(rows) == 2 and rows[1] == row  # the head has moved: an experiment of its own

    (missed,), third = tick(bench, JUNE(9), second)
    assert missed.tags["evals/due"] == "2027-06-09T00:00:00+00:00"  # of seven the last

    running = dg.DagsterRun(
        job_name="start_experiment", run_id=str(uuid4()), status=dg.DagsterRunStatus.STARTED, tags={"evals/file": "nightly.yaml"},
    )  # fmt: skip
    bench.instance.add_run(running)
    requests, fourth = tick(bench, JUNE(10), third)
    assert requests == []
    bench.instance.report_run_failed(running)
    (late,), fifth = tick(bench, JUNE(10, 9), fourth)
    assert late.tags["evals/due"] == "2027-06-10T00:00:00+00:00"

    project.write("experiments/nightly.yaml", "name: [")
    assert tick(bench, JUNE(11), fifth)[0] == []
    project.experiment("nightly", schedule=SCHEDULE)
    assert [one.tags["evals/due"] for one in tick(bench, JUNE(11), fifth)[0]] == ["2027-06-11T00:00:00+00:00"]


def test_what_can_not_be_started_fails_with_the_reason(bench: Bench) -> None:
    import dagster as dg

    project = bench.project
    project.case("c")
    project.experiment("lost", schedule=SCHEDULE, dataset="none")
    config = {"ops": {"start_due": {"config": {"file": "lost.yaml", "due": "2027-06-02T00:00:00+00:00"}}}}
    result = started(bench, dg.RunRequest(run_config=config))
    assert not result.success
    failure: Any = next(event for event in result.all_events if event.event_type_value == "STEP_FAILURE").event_specific_data
    assert "there is no dataset 'none'" in failure.user_failure_data.description
    assert [row for row in project.evals("experiment", "list") if row["name"] == "lost"] == []
