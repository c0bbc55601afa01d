"""The partitions page as people see and use it. The picture in the README is made here: EVALS_SCREENSHOTS=docs."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest
from support.places import short_dir
from ui.browser import Browser, chromium
from ui.served import Served, tag

pytestmark = pytest.mark.slow


@pytest.fixture
def browser() -> Generator[Browser]:
    with short_dir() as folder, chromium(folder / "profile") as opened:
        yield opened


@pytest.fixture(scope="module")
def experiment(served: Served) -> str:
    """Two cells each that are materialized, failed (a world that can't be restored) and missing (cancelled)."""
    project = served.project
    project.world("annex", {"broken.txt": "x\n"})
    project.case("parties", world="annex")
    project.case("notice")
    project.case("doze")
    project.experiment("lease", trials=2)
    name = project.evals("experiment", "run", "lease")["experiment"]
    project.wait_for(lambda: project.evals("experiment", "status", name)["states"] == {"done": 2, "failed": 2, "running": 2})
    project.evals("experiment", "cancel", name)
    project.wait_for(lambda: project.evals("experiment", "status", name)["status"] == "cancelled")
    served.wait_for(lambda: all(run["status"] == "FAILURE" for run in served.runs("run_cells")), "the run to end")
    return name


@pytest.mark.long
def test_the_page_shows_what_is_materialized_failed_and_missing(
    served: Served, browser: Browser, experiment: str, tmp_path: Path
) -> None:
    cell = f"{experiment}/w.notice/a/1"
    browser.open(f"{served.url}/assets/cell_results?view=partitions&partition={cell.replace('/', '%2F')}")
    for label in ("Failed (2)", "Materialized (2)", "Materializing (0)", "Missing (2)"):
        browser.find("body", label)
    browser.find("body", f"evals cell show {cell}")
    text = browser.text()
    assert cell in text and "6 Partitions Selected" in text
    assert "Unsynced" not in text  # a world that was never packed is no input of this cell
    assert all(name in text for name in ("outcome", "score", "latency_s", "cost_usd", "run_cells"))
    browser.screenshot(Path(os.environ.get("EVALS_SCREENSHOTS", tmp_path)) / "ui-cells.png")


@pytest.mark.long
def test_failed_and_missing_cells_are_launched_from_the_page(served: Served, browser: Browser, experiment: str) -> None:
    browser.open(f"{served.url}/assets/cell_results?view=partitions")
    browser.find("body", "Missing (2)")
    browser.click("button", "Materialize")
    browser.click("[role=dialog] button", "Confirm")  # the hourly assets have no materialization yet, and cells do without them
    browser.click("[role=dialog] button, .bp5-dialog button", "Failed and missing")
    browser.find("body", "4 partitions")
    browser.click("button", "Launch backfill")
    runs = served.wait_for(lambda: [r for r in served.runs("__ASSET_JOB") if tag(r, "dagster/backfill")], "runs", 90)
    backfill = tag(runs[0], "dagster/backfill")
    assert backfill is not None
    served.wait_backfill(backfill)
    cells = {cell["cell"].partition("/")[2]: len(cell["attempts"]) for cell in served.project.cells(experiment)}
    twice = ["annex.parties/a/0", "annex.parties/a/1", "w.doze/a/0", "w.doze/a/1"]
    assert cells == {**dict.fromkeys(twice, 2), "w.notice/a/0": 1, "w.notice/a/1": 1}
    shown = {key.partition("/")[2]: status for key, status in served.statuses(experiment).items()}
    assert [shown[key] for key in twice] == ["failed", "failed", "materialized", "materialized"]
