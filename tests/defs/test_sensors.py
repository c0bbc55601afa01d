"""The sensors: what a crash left is repaired once, and a finished batch is scored once."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

if TYPE_CHECKING:
    import dagster as dg
    from conftest import Bench

pytestmark = pytest.mark.slow


def run_status(bench: Bench, run_id: str) -> dg.DagsterRunStatus:
    run = bench.instance.get_run_by_id(run_id)
    assert run is not None
    return run.status


def evaluate(bench: Bench, sensor: str, cursor: str | None = None) -> dg.SensorResult:
    """One tick, as the daemon makes it: the partitions it asks for are added or deleted."""
    import dagster as dg

    from eval_pipeline.definitions import defs
    from eval_pipeline.defs.resources import EvalsResource

    definition = defs.resolve_sensor_def(sensor)
    with dg.build_sensor_context(
        instance=bench.instance, cursor=cursor, resources={"evals": EvalsResource()}, definitions=defs
    ) as context:
        result: Any = definition(context)
    if isinstance(result, dg.SkipReason):
        return dg.SensorResult(skip_reason=result)
    for request in result.dynamic_partitions_requests or []:
        if isinstance(request, dg.AddDynamicPartitionsRequest):
            bench.instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
        else:
            for key in request.partition_keys:
                bench.instance.delete_dynamic_partition(request.partitions_def_name, key)
    return result


def ran(bench: Bench, name: str, trials: int = 2) -> str:
    bench.project.case("c")
    bench.project.experiment(name, trials=trials)
    return bench.project.run(name)["experiment"]


@pytest.mark.long
def test_lost_partitions_come_back_in_their_order(bench: Bench) -> None:
    name = ran(bench, "partitions", trials=3)
    before = [key for key in bench.instance.get_dynamic_partitions("cells") if key.startswith(name)]
    for key in before:
        bench.instance.delete_dynamic_partition("cells", key)
    bench.instance.delete_dynamic_partition("experiments", name)
    bench.instance.delete_dynamic_partition("worlds", "w")
    evaluate(bench, "repair_records")
    assert [key for key in bench.instance.get_dynamic_partitions("cells") if key.startswith(name)] == before
    assert name in bench.instance.get_dynamic_partitions("experiments")
    assert "w" in bench.instance.get_dynamic_partitions("worlds")
    assert evaluate(bench, "repair_records").skip_reason is not None


@pytest.mark.long
def test_partitions_of_an_archived_experiment_go_and_come_back(bench: Bench) -> None:
    name = ran(bench, "put-away")
    cells = lambda: [key for key in bench.instance.get_dynamic_partitions("cells") if key.startswith(f"{name}/")]  # noqa: E731
    others = {key for key in bench.instance.get_dynamic_partitions("cells") if not key.startswith(f"{name}/")}
    before = cells()
    assert len(before) == 2
    bench.project.evals("experiment", "archive", name)
    evaluate(bench, "repair_records")
    assert (cells(), name in bench.instance.get_dynamic_partitions("experiments")) == ([], False)
    assert others <= set(bench.instance.get_dynamic_partitions("cells"))
    evaluate(bench, "repair_records")
    assert cells() == []
    bench.project.evals("experiment", "restore", name)
    evaluate(bench, "repair_records")
    assert (cells(), name in bench.instance.get_dynamic_partitions("experiments")) == (before, True)
    assert set(bench.statuses(name).values()) == {"materialized"}


@pytest.mark.long
def test_a_result_without_an_event_gets_one_and_only_one(bench: Bench) -> None:
    name = ran(bench, "events")
    lost, kept = f"{name}/w.c/a/0", f"{name}/w.c/a/1"
    (event,) = bench.events(lost)
    # as when the process is killed between the two commits: the ledger has the result, Dagster has not heard of it
    delete = sa.text("DELETE FROM public.event_logs WHERE dagster_event_type = 'ASSET_MATERIALIZATION' AND partition = :cell")
    forget = sa.text("UPDATE evals.cells SET logged_attempt_id = NULL WHERE key = :cell")
    for statement in (delete, forget):
        bench.records.database.run(lambda c, statement=statement: c.execute(statement, {"cell": lost}))
    assert (bench.events(lost), bench.records.views.unlogged(name)) == ([], [lost])
    for _ in range(2):
        evaluate(bench, "repair_records")
        assert [found.metadata["score"] for found in bench.events(lost)] == [event.metadata["score"]]
        assert len(bench.events(kept)) == 1
    assert bench.statuses(name) == {lost: "materialized", kept: "materialized"}
    assert bench.attempts(name) == {lost: 1, kept: 1}


@pytest.mark.long
def test_a_run_whose_process_was_killed_is_ended_and_others_are_left_alone(bench: Bench) -> None:
    import dagster as dg

    project = bench.project
    project.case("slow")
    project.experiment("killed")
    name = project.evals("experiment", "run", "killed")["experiment"]
    project.wait_for(lambda: project.evals("experiment", "status", name)["states"].get("running") == 1)
    (pid,) = project.engine_pids(name)
    (run,) = bench.instance.get_runs(dg.RunsFilter(job_name="run_cells", statuses=[dg.DagsterRunStatus.STARTED]))
    evaluate(bench, "repair_records")
    assert run_status(bench, run.run_id) is dg.DagsterRunStatus.STARTED
    os.kill(pid, signal.SIGKILL)
    project.wait_for(lambda: not alive(pid))
    evaluate(bench, "repair_records")
    assert run_status(bench, run.run_id) is dg.DagsterRunStatus.FAILURE
    project.run("killed")
    assert bench.statuses(name) == {f"{name}/w.slow/a/0": "materialized"}
    assert bench.attempts(name) == {f"{name}/w.slow/a/0": 1}


@pytest.mark.long
def test_a_finished_batch_is_scored_once(bench: Bench) -> None:
    name = ran(bench, "scored")
    first = evaluate(bench, "score_finished_experiments")
    assert name in asked(first)
    second = evaluate(bench, "score_finished_experiments", first.cursor)
    assert name not in asked(second)
    bench.project.evals("experiment", "rerun", name, "--cell", "w.c/a/0", "--discard", "a test", "--wait")
    third = evaluate(bench, "score_finished_experiments", second.cursor)
    assert asked(third).count(name) == 1
    assert {request.run_key for request in third.run_requests or []}.isdisjoint(r.run_key for r in first.run_requests or [])
    assert name not in asked(evaluate(bench, "score_finished_experiments", third.cursor))


@pytest.mark.long
def test_an_experiment_at_work_is_not_scored(bench: Bench) -> None:
    project = bench.project
    project.case("c")
    project.case("slow")
    project.experiment("busy")
    name = project.evals("experiment", "run", "busy")["experiment"]
    project.wait_for(lambda: project.evals("experiment", "status", name)["states"].get("done") == 1)
    assert name not in asked(evaluate(bench, "score_finished_experiments"))
    project.evals("experiment", "cancel", name)
    project.wait_for(lambda: project.engine_pids(name) == [])
    assert name in asked(evaluate(bench, "score_finished_experiments"))


def asked(result: dg.SensorResult) -> list[str]:
    return [request.partition_key or "" for request in result.run_requests or []]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
