"""Dagster's own daemon starts an experiment every minute: once for each, and no result is run again."""

from __future__ import annotations

import pytest
from ui.served import Served

pytestmark = pytest.mark.long


def test_every_minute_starts_once(served: Served) -> None:
    served.project.case("c")
    served.project.experiment("minutely", schedule="* * * * *")
    served.wait_for(
        lambda: len([run for run in served.runs("start_experiment") if run["status"] == "SUCCESS"]) >= 2, "two starts", 400
    )
    runs = served.runs("start_experiment")
    due = [tag["value"] for run in runs for tag in run["tags"] if tag["key"] == "evals/due"]
    assert len(due) == len(set(due)) == len(runs)
    (row,) = [row for row in served.project.evals("experiment", "list") if row["name"] == "minutely"]
    assert (row["n_done"], row["n_cells"], row["created_by"]) == (1, 1, "schedule")
    assert [len(cell["attempts"]) for cell in served.project.cells("minutely")] == [1]
