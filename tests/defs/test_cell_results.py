"""What Dagster shows of cells, against the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

if TYPE_CHECKING:
    from conftest import Bench

pytestmark = pytest.mark.slow


def test_good_cells_are_materialized_broken_ones_failed_and_cancelled_ones_missing(bench: Bench) -> None:
    project = bench.project
    project.case("c")
    project.case("c", world="bad")
    project.case("slow")
    project.experiment("mixed", trials=2)
    name = project.evals("experiment", "run", "mixed")["experiment"]
    expected = {"done": 2, "failed": 2, "running": 2}
    project.wait_for(lambda: project.evals("experiment", "status", name)["states"] == expected)
    project.evals("experiment", "cancel", name)
    project.wait_for(lambda: project.evals("experiment", "status", name)["status"] == "cancelled")
    project.wait_for(lambda: all(run.is_finished for run in bench.instance.get_runs()))
    assert bench.statuses(name) == {
        **{f"{name}/bad.c/a/{trial}": "failed" for trial in (0, 1)},
        **{f"{name}/w.c/a/{trial}": "materialized" for trial in (0, 1)},
        **{f"{name}/w.slow/a/{trial}": "missing" for trial in (0, 1)},
    }


@pytest.mark.long
def test_a_result_is_shown_with_its_numbers_and_launched_again_only_logged_again(bench: Bench) -> None:
    bench.project.case("c")
    bench.project.experiment("twice", trials=3)
    name = bench.project.run("twice")["experiment"]
    cells = bench.project.cells(name)
    keys = [cell["cell"] for cell in cells]
    (event,) = bench.events(keys[0])
    shown = {key: value.value for key, value in event.metadata.items()}
    assert (shown["outcome"], shown["score"], shown["passed"], shown["attempts"]) == ("ok", 1.0, True, 1)
    assert shown["latency_s"] == round(cells[0]["latency_s"], 3)
    assert f"evals cell show {keys[0]}" in str(shown["show"])
    assert bench.records.views.unlogged(name) == []
    assert checks(bench, name) == {"completeness": True, "infra_rate": True, "leaked_sandboxes": True}

    assert bench.materialize(keys[1]).success
    assert [len(bench.events(key)) for key in keys] == [1, 2, 1]
    assert bench.materialize(*keys).success
    assert [len(bench.events(key)) for key in keys] == [2, 3, 2]
    assert bench.attempts(name) == dict.fromkeys(keys, 1)


@pytest.mark.long
def test_partitions_run_what_the_cancelled_experiment_left_open(bench: Bench) -> None:
    import dagster as dg

    project = bench.project
    project.case("c")
    project.case("slow")
    project.experiment("resumed")
    name = project.evals("experiment", "run", "resumed")["experiment"]
    project.wait_for(lambda: project.evals("experiment", "status", name)["states"].get("done") == 1)
    project.evals("experiment", "cancel", name)
    project.wait_for(lambda: project.evals("experiment", "status", name)["status"] == "cancelled")
    project.agent("answer yes")  # the experiment stays with the commit it was locked to
    slow, quick = f"{name}/w.slow/a/0", f"{name}/w.c/a/0"
    project.wait_for(lambda: project.engine_pids(name) == [])
    runs = bench.instance.get_runs(dg.RunsFilter(job_name="run_cells", tags={"evals/experiment": name}))
    assert [run.status for run in runs] == [dg.DagsterRunStatus.CANCELED]
    assert bench.materialize(quick, slow).success
    assert bench.statuses(name) == {quick: "materialized", slow: "materialized"}
    assert bench.attempts(name) == {quick: 1, slow: 2}


@pytest.mark.long
def test_a_range_with_a_broken_world_fails_those_cells_only(bench: Bench) -> None:
    project = bench.project
    project.case("c")
    project.case("c", world="bad")
    project.experiment("ranged")
    name = project.run("ranged", check=False)["data"]["experiment"]
    bad, good = f"{name}/bad.c/a/0", f"{name}/w.c/a/0"
    assert checks(bench, name) == {"completeness": False, "infra_rate": False, "leaked_sandboxes": True}
    result = bench.materialize(bad, good)
    assert not result.success
    assert "no such table: matters" in str(result.all_events)
    assert bench.statuses(name) == {bad: "failed", good: "materialized"}
    assert bench.attempts(name) == {bad: 2, good: 1}


@pytest.mark.long
def test_an_experiment_that_cannot_run_leaves_the_others_of_the_run_alone(bench: Bench) -> None:
    project = bench.project
    project.world("lost", {"lost.txt": "only here\n"})
    project.case("c", world="lost")
    project.experiment("first")
    first = project.run("first")["experiment"]
    (project.worlds / "worlds/lost/cases/c.yaml").unlink()
    project.case("c")
    project.experiment("second")
    second = project.run("second")["experiment"]
    lost, kept = f"{first}/lost.c/a/0", f"{second}/w.c/a/0"
    assert bench.records.ledger.discard([lost, kept], "a test") == 2
    bench.records.database.run(lambda c: c.execute(sa.text("DELETE FROM evals.snapshots WHERE world = 'lost'")))
    result = bench.materialize(lost, kept)
    assert not result.success
    assert "was never packed" in str(result.all_events)
    assert (bench.attempts(first), bench.attempts(second)) == ({lost: 1}, {kept: 2})
    assert len(bench.events(kept)) == 2


@pytest.mark.long
def test_one_run_over_two_versions_of_a_world_gives_each_cell_its_own(bench: Bench) -> None:
    project = bench.project
    project.agent('answer "$(cat /world/documents/said.txt)"')
    cells: dict[str, str] = {}
    for said in ("yes, 60 days", "yes, 90 days"):
        project.world("turning", {"said.txt": said})
        project.case("c", world="turning")
        project.experiment(f"says-{said[5:7]}")
        cells[project.run(f"says-{said[5:7]}")["experiment"] + "/turning.c/a/0"] = said
    assert bench.records.ledger.discard(list(cells), "a test") == 2
    assert bench.materialize(*cells).success
    shown = {key: project.evals("cell", "show", key) for key in cells}
    assert {key: cell["answer"] for key, cell in shown.items()} == cells
    assert [len(cell["attempts"]) for cell in shown.values()] == [2, 2]


def checks(bench: Bench, experiment: str) -> dict[str, bool]:
    """The latest results of the experiment's own scoring runs, by check."""
    import dagster as dg

    (run,) = bench.instance.get_runs(dg.RunsFilter(job_name="score_experiment", tags={"dagster/partition": experiment}))
    kinds = {dg.DagsterEventType.ASSET_CHECK_EVALUATION}
    entries = bench.instance.all_logs(run.run_id, kinds)
    found = [entry.dagster_event.asset_check_evaluation_data for entry in entries if entry.dagster_event]
    assert {check.partition for check in found} == {experiment}
    return {check.check_name: check.passed for check in found}
