"""However much is open and queued, what a clock starts begins within a minute: through the real daemon."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from ui.served import Served

from eval_pipeline.runner.planning import commit, plan
from eval_pipeline.settings import load_settings
from eval_pipeline.specs.library import Library
from eval_pipeline.specs.lock import lock_experiment
from eval_pipeline.store.records import Records, open_records
from eval_pipeline.vault.delivery import Secrets

pytestmark = pytest.mark.long

HOURLY = {"snapshot_worlds": "w", "score_experiment": "packed"}
WITHIN_S = 60


@pytest.fixture
def records(served: Served) -> Generator[Records]:
    with open_records(load_settings(served.project.env)) as opened:
        yield opened


def opened(served: Served, records: Records, name: str, trials: int = 1) -> str:
    """An experiment in the ledger that nobody works on."""
    path = served.project.experiment(name, trials=trials)
    locked = lock_experiment(Library(served.project.worlds), path)
    secrets = Secrets(load_settings(served.project.env), records)
    return commit(locked, plan(locked, records, secrets, fresh=False), records).id


def begun(served: Served, name: str) -> str:
    """An experiment that an engine of the CLI's works on: it never queues."""
    served.project.experiment(name)
    return served.project.evals("experiment", "run", name)["experiment"]


def agents(records: Records, experiments: list[str]) -> int:
    tallies = records.views.tallies()
    return sum(tallies[name].states.get("running", 0) for name in experiments)


def queued(served: Served, backfills: list[str]) -> int:
    return sum(run["status"] == "QUEUED" for backfill in backfills for run in served.runs_of(backfill))


def test_hourly_work_starts_beside_ten_open_experiments_and_a_full_queue(served: Served, records: Records) -> None:
    project = served.project
    project.case("c")
    project.experiment("packed")
    packed = project.run("packed")["experiment"]
    (project.worlds / "worlds/w/cases/c.yaml").unlink()
    project.case("long")
    at_work = [opened(served, records, f"open-{number}") for number in range(10)]
    by_cli = [begun(served, f"cli-{number}") for number in range(2)]
    waiting = [opened(served, records, f"waits-{number}", trials=10) for number in range(3)]
    served.wait_for(lambda: {*at_work, *waiting} <= set(served.statuses_of_all("scored_table")), "the partitions", 120)
    runs = [served.launch("rerun_failed_cells", name) for name in at_work]
    busy = [*at_work, *by_cli]
    backfills: list[str] = []
    try:
        served.wait_for(lambda: agents(records, busy) == 12, "twelve agents of ten runs and two of the CLI's", 600)
        backfills += [served.backfill(records.views.keys(name)[::2]) for name in waiting]
        served.wait_for(lambda: queued(served, backfills) == 15, "a full queue", 120)
        started = {job: served.launch(job, {"packed": packed}.get(key, key)) for job, key in HOURLY.items()}
        for job, run_id in started.items():
            served.wait_for(lambda run_id=run_id: served.run_status(run_id) in ("STARTED", "SUCCESS"), job, WITHIN_S)
        assert (agents(records, busy), queued(served, backfills)) == (12, 15)
        for job, run_id in started.items():
            served.wait_for(lambda run_id=run_id: served.run_status(run_id) == "SUCCESS", job, 120)
        assert [served.run_status(run_id) for run_id in runs] == ["STARTED"] * 10
    finally:
        for backfill in backfills:
            served.cancel_backfill(backfill)
        for name in busy:
            records.ledger.request_cancel(name)
        served.wait_for(lambda: agents(records, busy) == 0, "the agents' end", 120)
