"""A hundred scattered failures of two thousand cells, through the real daemon. What was executed is counted from the agents' own
marks in the artifact store, one for each time an agent ran; the ledger is not asked."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from backports.zstd import tarfile
from ui.served import Served
from ui.test_backfills import assert_each_run_ended_as_its_cells, cells_of, drivers, processes, running

from eval_pipeline.domain.ids import CellKey, sandbox_name
from eval_pipeline.sandbox.local.places import own_directory, prepare
from eval_pipeline.settings import load_settings
from eval_pipeline.store.records import Records, open_records
from eval_pipeline.store.schema import limits

pytestmark = pytest.mark.long

CASES, TRIALS, NAPPING = 100, 20, 7
NAP_S = 12
MARKING = f"""
case=$(cat "$EVALS_CASE")
printf '%s\\n' "$case" > "$EVALS_OUTPUT/case.json"
cat /proc/sys/kernel/random/uuid > "$EVALS_OUTPUT/mark"
case $case in *'"trial": {NAPPING},'*) sleep {NAP_S} ;; esac
answer yes
"""
FAULT = "another-installation"


class FullSize:
    """2000 cells of which the 100 of one trial, scattered over all, could not get a sandbox; theirs are also the agents that take a while."""

    def __init__(self, served: Served, records: Records) -> None:
        self.served, self.records = served, records
        project = served.project
        project.agent(MARKING)
        for number in range(CASES):
            project.case(f"c{number:02}")
        project.experiment("full", trials=TRIALS)
        self.experiment: str = project.evals("experiment", "plan", "full")["experiment"]
        self.keys = [f"{self.experiment}/w.c{case:02}/a/{trial}" for case in range(CASES) for trial in range(TRIALS)]
        self.scattered = self.keys[NAPPING::TRIALS]
        self.scratch = prepare(project.state_dir).scratch
        self._break_sandboxes()
        project.run("full", check=False, timeout_s=1800)

    def _break_sandboxes(self) -> None:
        """The names their sandboxes would have belong to somebody else."""
        own_directory(self.scratch)
        for key in self.scattered:
            home = self.scratch / sandbox_name(self.records.ledger.installation_id(), key, 1)
            home.mkdir()
            (home / "meta.json").write_text(json.dumps({"installation": FAULT, "tags": {}, "disk_mib": 1, "created_at": ""}))

    def repair_sandboxes(self) -> None:
        for meta in self.scratch.glob("*/meta.json"):
            if FAULT in meta.read_text():
                shutil.rmtree(meta.parent)

    def marks(self) -> Counter[str]:
        """Cell -> how many agents ran for it."""
        found: dict[str, str] = {}
        for path in (self.served.project.state_dir / "artifacts").glob("??/*"):
            if (mark := _mark(path)) is not None:
                uuid, case, trial = mark
                found[uuid] = f"{self.experiment}/w.{case}/a/{trial}"
        return Counter(found.values())

    def open_scattered(self) -> None:
        """All of them are without a valid result."""
        self.repair_sandboxes()
        done = set(self.records.views.keys(self.experiment, ["done"])).intersection(self.scattered)
        self.records.ledger.discard(sorted(done), "a test")

    def agents(self) -> int:
        return running(self.records, self.keys)

    @contextmanager
    def at_once(self, places: int) -> Generator[None]:
        """So many sandboxes: the scattered cells take many turns, and there is time to step in."""
        (was,) = self._limit(places)
        try:
            yield
        finally:
            self._limit(was)

    def _limit(self, places: int) -> Sequence[int]:
        with self.records.database.engine.begin() as c:
            was = c.execute(sa.select(limits.c.value).where(limits.c.name == "running")).scalars().all()
            c.execute(sa.update(limits).where(limits.c.name == "running").values(value=places))
        return was

    def ended(self, backfill: str) -> dict[str, Any]:
        return self.served.wait_backfill(backfill, timeout_s=600)

    def assert_only(self, before: Counter[str], again: Sequence[str]) -> None:
        """Each of `again` was executed once more since, and no other cell."""
        assert self.marks() - before == Counter(again)
        assert set(self.served.statuses(self.experiment).values()) == {"materialized"}


def _mark(path: Path) -> tuple[str, str, int] | None:
    try:
        with tarfile.open(path, "r:*") as bundle:
            uuid = bundle.extractfile("out/mark")
            case = bundle.extractfile("out/case.json")
            assert uuid is not None and case is not None
            told = json.loads(case.read())
            name = re.search(r"Answer (\w+)\.", told["prompt"])
            assert name is not None
            return uuid.read().decode().strip(), name[1], told["trial"]
    except (tarfile.ReadError, KeyError):  # another artifact: a world's archive, a table
        return None


def test_the_key_of_a_mark_is_a_cells(full: FullSize) -> None:
    assert full.records.views.keys(full.experiment) == full.keys
    assert {CellKey.parse(key).trial for key in full.scattered} == {NAPPING}


@pytest.fixture(scope="module")
def full(served: Served) -> Generator[FullSize]:
    with open_records(load_settings(served.project.env)) as records:
        made = FullSize(served, records)
        try:
            yield made
        finally:
            made.repair_sandboxes()


def test_a_hundred_scattered_failures_of_two_thousand_are_run_once_by_one_process(full: FullSize) -> None:
    if full.records.views.keys(full.experiment, ["failed"]) != full.scattered:
        pytest.skip("needs the first state of the experiment")
    before = full.marks()
    assert before == Counter(set(full.keys).difference(full.scattered))
    shown = full.served.statuses(full.experiment)
    assert {key for key, status in shown.items() if status == "failed"} == set(full.scattered)
    full.repair_sandboxes()
    ended = full.ended(full.served.backfill(full.scattered))
    runs = ended["runs"]
    assert (ended["status"], len(runs)) == ("COMPLETED_SUCCESS", len(full.scattered))
    assert processes(full.records, [run["id"] for run in runs]) == 1
    assert_each_run_ended_as_its_cells(runs, full.keys, [])
    full.assert_only(before, full.scattered)


def test_the_leader_is_killed_in_the_middle(full: FullSize) -> None:
    full.open_scattered()
    before = full.marks()
    backfill = full.served.backfill(full.scattered)
    full.served.wait_for(lambda: full.agents() >= 30, "thirty agents", 300)
    (pid,) = drivers(full.records, full.experiment)
    os.kill(pid, signal.SIGKILL)
    ended = full.ended(backfill)
    ends = Counter(run["status"] for run in ended["runs"])
    assert ends == {"SUCCESS": len(full.scattered), "FAILURE": 1}  # the killed one, which was tried again
    assert processes(full.records, [run["id"] for run in ended["runs"]]) == 2
    full.assert_only(before, full.scattered)


def test_cancelled_in_the_middle_and_run_to_its_end_by_another(full: FullSize) -> None:
    full.open_scattered()
    before = full.marks()
    with full.at_once(16):
        backfill = full.served.backfill(full.scattered)
        full.served.wait_for(lambda: full.agents() >= 16, "sixteen agents", 300)
        full.served.cancel_backfill(backfill)
        ended = full.ended(backfill)
    assert ended["status"] == "CANCELED"
    full.served.wait_for(lambda: full.served.project.evals("sandbox", "list") == [], "every sandbox's end", 120)
    done = set(full.records.views.keys(full.experiment, ["done"])).intersection(full.scattered)
    left = [key for key in full.scattered if key not in done]
    for run in ended["runs"]:
        cells = cells_of(run, full.keys)
        assert run["status"] == "CANCELED" or set(cells) <= done, (run, cells)
    assert left
    cut_short = full.marks() - before
    assert max(cut_short.values()) == 1 and set(cut_short) <= set(full.scattered)
    between = full.marks()
    ended = full.ended(full.served.backfill(full.scattered))
    assert ended["status"] == "COMPLETED_SUCCESS"
    full.assert_only(between, left)


def test_two_that_overlap_run_each_shared_cell_once(full: FullSize) -> None:
    full.open_scattered()
    before = full.marks()
    backfills = [full.served.backfill(cells) for cells in (full.scattered[:65], full.scattered[35:])]
    for ended in [full.ended(backfill) for backfill in backfills]:
        assert ended["status"] == "COMPLETED_SUCCESS"
        assert_each_run_ended_as_its_cells(ended["runs"], full.keys, [])
        assert processes(full.records, [run["id"] for run in ended["runs"]]) <= 1
    full.assert_only(before, full.scattered)
