"""Backfills through the real daemon: one process for all, each cell once, every run with the right end."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Generator, Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from backports.zstd import tarfile
from ui.served import Served, tag

from eval_pipeline.settings import load_settings
from eval_pipeline.store.artifacts import open_store
from eval_pipeline.store.records import Records, open_records

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def records(served: Served) -> Generator[Records]:
    with open_records(load_settings(served.project.env)) as opened:
        yield opened


def ran(served: Served, name: str, cases: Sequence[tuple[str, str]], trials: int) -> list[str]:
    """An experiment over just these (world, case); returns its cells in order."""
    project = served.project
    for path in project.worlds.glob("worlds/*/cases/*.yaml"):
        path.unlink()
    for world, case in cases:
        project.case(case, world=world)
    project.experiment(name, trials=trials)
    project.run(name, check=False, timeout_s=600)
    return [cell["cell"] for cell in project.cells(name)]


def attempts(served: Served, keys: Sequence[str]) -> dict[str, int]:
    cells = served.project.cells(keys[0].partition("/")[0])
    return {cell["cell"]: len(cell["attempts"]) for cell in cells}


def starts(served: Served, records: Records, keys: Sequence[str]) -> dict[str, int]:
    """How often an agent says it started, over the stored bundles of all attempts."""
    store = open_store(load_settings(served.project.env))
    counted = dict.fromkeys(keys, 0)
    for cell in records.views.cells(experiment_of(keys), keys):
        for attempt in cell.attempts:
            if attempt.bundle is not None:
                with store.open(attempt.bundle) as packed, tarfile.open(fileobj=packed, mode="r|*") as bundle:
                    counted[cell.key] += sum(member.size // 2 for member in bundle if member.name == "out/starts")
    return counted


def experiment_of(keys: Sequence[str]) -> str:
    return keys[0].partition("/")[0]


def processes(records: Records, run_ids: Sequence[str]) -> int:
    """How many processes drove cells for these runs."""
    query = sa.text("SELECT count(DISTINCT pid) FROM evals.engines WHERE run_id = ANY(:runs)")
    return records.database.run(lambda c: c.execute(query, {"runs": list(run_ids)}).scalar_one())


def drivers(records: Records, experiment: str) -> list[int]:
    """The processes that have cells of it at work now."""
    query = sa.text(
        "SELECT DISTINCT e.pid FROM evals.cells c JOIN evals.engines e ON e.id = c.engine_id"
        " WHERE c.experiment_id = :experiment AND c.state IN ('setup', 'running', 'persisting')"
    )
    return list(records.database.run(lambda c: c.execute(query, {"experiment": experiment}).scalars().all()))


def cells_of(run: dict[str, Any], keys: Sequence[str]) -> list[str]:
    one = tag(run, "dagster/partition")
    if one is not None:
        return [one]
    first, last = tag(run, "dagster/asset_partition_range_start"), tag(run, "dagster/asset_partition_range_end")
    assert first is not None and last is not None
    return list(keys[keys.index(first) : keys.index(last) + 1])


def assert_each_run_ended_as_its_cells(runs: Sequence[dict[str, Any]], keys: Sequence[str], bad: Sequence[str]) -> None:
    for run in runs:
        failed = set(cells_of(run, keys)) & set(bad)
        assert run["status"] == ("FAILURE" if failed else "SUCCESS"), (run, failed)


def scattered(served: Served, records: Records, name: str, trials: int, step: int) -> None:
    keys = ran(served, name, [("bad", "c"), ("w", "c")], trials)
    bad, good = keys[:trials], keys[trials:]
    # Every step-th alone, and a range over the border, in which some end well and some do not.
    again = sorted({*bad[::step], *good[1::step], *keys[trials - 2 : trials + 2]}, key=keys.index)
    records.ledger.discard(good, "a test")
    backfill = served.wait_backfill(served.backfill(again))
    runs = backfill["runs"]
    assert sorted(key for run in runs for key in cells_of(run, keys)) == sorted(again)
    assert len(runs) > 2 * (trials // step) - 3
    assert processes(records, [run["id"] for run in runs]) == 1
    assert_each_run_ended_as_its_cells(runs, keys, bad)
    assert attempts(served, keys) == {**dict.fromkeys(keys, 1), **dict.fromkeys(again, 2)}
    assert starts(served, records, good) == {**dict.fromkeys(good, 1), **{key: 2 for key in again if key in good}}
    shown = served.statuses(experiment_of(keys))
    assert shown == {**dict.fromkeys(bad, "failed"), **dict.fromkeys(good, "materialized")}


def test_scattered_cells_are_driven_by_one_process_and_each_once(served: Served, records: Records) -> None:
    scattered(served, records, "scattered", trials=9, step=3)


def test_a_hundred_scattered_cells_of_four_hundred(served: Served, records: Records) -> None:
    scattered(served, records, "hundred", trials=200, step=4)


def test_cells_that_are_done_are_logged_again_and_never_run(served: Served, records: Records) -> None:
    keys = ran(served, "valid", [("w", "c")], trials=6)
    backfill = served.wait_backfill(served.backfill(keys[::2]))
    assert (backfill["status"], {run["status"] for run in backfill["runs"]}) == ("COMPLETED_SUCCESS", {"SUCCESS"})
    assert processes(records, [run["id"] for run in backfill["runs"]]) == 0
    assert attempts(served, keys) == dict.fromkeys(keys, 1)


def test_cancelling_a_backfill_ends_its_sandboxes_and_opens_its_cells(served: Served, records: Records) -> None:
    keys = cancelled(served, "stopped", "slow", trials=6)
    backfill = served.backfill(keys[::2])
    served.wait_for(lambda: running(records, keys) == 3, "three agents", 90)
    served.cancel_backfill(backfill)
    ended = served.wait_backfill(backfill)
    assert (ended["status"], {run["status"] for run in ended["runs"]}) == ("CANCELED", {"CANCELED"})
    assert served.project.evals("experiment", "status", experiment_of(keys))["states"] == {"open": 6}
    assert served.project.evals("sandbox", "list") == []
    assert set(served.statuses(experiment_of(keys)).values()) == {"missing"}


def test_cancelling_the_experiment_cancels_all_runs_of_its_backfill(served: Served, records: Records) -> None:
    keys = cancelled(served, "called-off", "slow", trials=5)
    backfill = served.backfill(keys[::2])
    served.wait_for(lambda: running(records, keys) == 3, "three agents", 90)
    served.project.evals("experiment", "cancel", experiment_of(keys))
    ended = served.wait_backfill(backfill)
    assert {run["status"] for run in ended["runs"]} == {"CANCELED"}
    assert served.project.evals("experiment", "status", experiment_of(keys))["status"] == "cancelled"
    assert processes(records, [run["id"] for run in ended["runs"]]) == 1


def test_another_run_takes_over_when_the_leader_is_killed(served: Served, records: Records) -> None:
    keys = cancelled(served, "leaderless", "doze", trials=8)
    again = keys[::2]
    before = attempts(served, keys)
    backfill = served.backfill(again)
    served.wait_for(lambda: running(records, keys) == 4, "four agents", 90)
    (pid,) = drivers(records, experiment_of(keys))
    os.kill(pid, signal.SIGKILL)
    ended = served.wait_backfill(backfill)
    assert processes(records, [run["id"] for run in ended["runs"]]) == 2
    assert attempts(served, keys) == {key: count + (key in again) for key, count in before.items()}
    assert starts(served, records, again) == dict.fromkeys(again, 1)
    shown = served.statuses(experiment_of(keys))
    assert {key for key, status in shown.items() if status == "materialized"} == set(again)
    assert Counter(run["status"] for run in ended["runs"]) == {
        "SUCCESS": 4,
        "FAILURE": 1,
    }  # the killed one, which was tried again


def test_two_backfills_that_overlap_run_each_shared_cell_once(served: Served, records: Records) -> None:
    keys = ran(served, "overlap", [("bad", "c"), ("w", "nap")], trials=6)
    good = keys[6:]
    records.ledger.discard(good, "a test")
    one, two = served.backfill([keys[0], *good[0:4]]), served.backfill([keys[0], *good[2:6]])
    ended = [served.wait_backfill(backfill) for backfill in (one, two)]
    assert attempts(served, good) == {**dict.fromkeys(keys[:6], 1), keys[0]: 2, **dict.fromkeys(good, 2)}
    assert starts(served, records, good) == dict.fromkeys(good, 2)
    for backfill in ended:
        assert_each_run_ended_as_its_cells(backfill["runs"], keys, keys[:6])


def test_the_job_runs_what_has_no_valid_result(served: Served, records: Records) -> None:
    keys = ran(served, "job", [("bad", "c"), ("w", "c")], trials=3)
    bad, good = keys[:3], keys[3:]
    records.ledger.discard(good[:2], "a test")
    backfill = served.wait_backfill(served.job_backfill("rerun_failed_cells", [experiment_of(keys)]))
    assert [run["status"] for run in backfill["runs"]] == ["FAILURE"]
    assert attempts(served, keys) == {**dict.fromkeys(bad, 2), **dict.fromkeys(good[:2], 2), good[2]: 1}
    assert served.statuses(experiment_of(keys)) == {**dict.fromkeys(bad, "failed"), **dict.fromkeys(good, "materialized")}


def test_a_scoring_run_does_not_wait_for_backfills(served: Served, records: Records) -> None:
    names = ["long-a", "long-b", "long-c", "long-d", "long-e", "long-f"]
    cells = {name: cancelled(served, name, "slow", trials=1) for name in names}
    backfills = [served.backfill(keys) for keys in cells.values()]
    try:
        served.wait_for(lambda: sum(running(records, keys) for keys in cells.values()) == 5, "five backfills at work", 120)
        before = len(served.runs("score_experiment"))
        ran(served, "short", [("w", "c")], trials=1)
        served.wait_for(lambda: len(served.runs("score_experiment")) > before, "the sensor", 90)
        assert sum(running(records, keys) for keys in cells.values()) == 5
        served.wait_for(lambda: scored(served), "the scoring run", 90)
        assert sum(running(records, keys) for keys in cells.values()) == 5
    finally:
        for backfill in backfills:
            served.cancel_backfill(backfill)
        for backfill in backfills:
            served.wait_backfill(backfill)


def scored(served: Served) -> bool:
    """By the daemon: a run that the sensor asked for has ended well."""
    runs = [run for run in served.runs("score_experiment") if tag(run, "dagster/sensor_name")]
    return any(run["status"] == "SUCCESS" for run in runs)


def cancelled(served: Served, name: str, case: str, trials: int) -> list[str]:
    """An experiment whose cells are all open: cancelled before any agent had time to end."""
    project = served.project
    for path in project.worlds.glob("worlds/*/cases/*.yaml"):
        path.unlink()
    project.case(case)
    project.experiment(name, trials=trials)
    experiment = project.evals("experiment", "run", name)["experiment"]
    project.evals("experiment", "cancel", experiment)
    project.wait_for(lambda: project.evals("experiment", "status", experiment)["status"] == "cancelled")
    project.wait_for(lambda: project.evals("experiment", "status", experiment)["states"] == {"open": trials})
    # The engine may have begun to start when it was cancelled: it still tells Dagster of the cells, and ends
    served.wait_for(lambda: len(served.statuses(experiment)) == trials, "the partitions")
    served.wait_for(lambda: not project.engine_pids(experiment), "the engine's end")
    return [cell["cell"] for cell in project.cells(experiment)]


def running(records: Records, keys: Sequence[str]) -> int:
    """Agents at work. Straight from the ledger, as is who drives them: cells may end while a command starts."""
    return len(records.views.keys(experiment_of(keys), ["running"]))
