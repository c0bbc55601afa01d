"""`evals up`: what it serves, what it says, and that nothing stays behind."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest
from support.places import short_dir
from support.project import Project
from ui.served import Served

pytestmark = pytest.mark.long


def processes_of(state: Path) -> list[str]:
    """Command lines of the processes that know the state directory from their environment or arguments."""
    found: list[str] = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), *process.environ().values()]
        except psutil.Error:
            continue
        if any(str(state) in word for word in words):
            found.append(" ".join(process.cmdline())[:200])
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_everything(state_dir: Path, number: int) -> None:
    with short_dir() as root:
        up = Served(Project(root, state_dir / "s"))
        try:
            up.wait_ready()
            assert len(processes_of(state_dir)) > 5
        finally:
            code, said = up.stop(number)
        assert code == 0, said
        assert "stopped: Dagster and Postgres have ended" in said
        assert processes_of(state_dir) == []


def test_a_signal_before_dagster_is_up_stops_everything(state_dir: Path) -> None:
    with short_dir() as root:
        up = Served(Project(root, state_dir / "s"))
        up.wait_for(lambda: any("starting Dagster" in line for line in up.said), "the start")
        code, said = up.stop()
        assert code == 0, said
        assert processes_of(state_dir) == []


def test_dagster_that_dies_is_said_and_takes_the_rest_with_it(state_dir: Path) -> None:
    with short_dir() as root:
        up = Served(Project(root, state_dir / "s"))
        up.wait_ready()
        (dagster,) = [child for child in psutil.Process(up.process.pid).children() if "dagster" in child.cmdline()]
        dagster.kill()
        code, said = up.stop(0)
        assert code == 1
        assert "Dagster ended by itself with code -9" in said
        assert processes_of(state_dir) == []


def test_a_taken_port_is_said_before_anything_starts(served: Served) -> None:
    process = served.project.start("up", "--port", str(served.port))
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert f"port {served.port} of 127.0.0.1 is taken" in said and "starting" not in said


def test_a_run_of_the_ui_goes_on_after_a_restart_and_no_agent_is_started_twice(state_dir: Path) -> None:
    with short_dir() as root:
        project = Project(root, state_dir / "s")
        project.agent('echo s >> "$EVALS_OUTPUT/starts"; sleep 30; answer yes')
        project.case("c")
        project.experiment("restarted", trials=2)
        name = project.evals("experiment", "run", "restarted")["experiment"]
        project.evals("experiment", "cancel", name)
        project.wait_for(lambda: project.evals("experiment", "status", name)["states"] == {"open": 2})
        before = {cell["cell"]: len(cell["attempts"]) for cell in project.cells(name)}
        first = Served(project)
        try:
            first.wait_ready()
            first.backfill(before)
            running = lambda: project.evals("experiment", "status", name)["states"].get("running") == 2  # noqa: E731
            first.wait_for(running, "two agents", 60)
        finally:
            code, said = first.stop()
        assert code == 0, said
        assert len(project.evals("sandbox", "list")) == 2
        second = Served(project)
        try:
            second.wait_ready()
            second.wait_for(lambda: project.evals("experiment", "status", name)["n_done"] == 2, "the retried run", 180)
            done = dict.fromkeys(before, "materialized")
            second.wait_for(lambda: second.statuses(name) == done, "the events", 60)
            second.wait_for(
                lambda: all(run["status"] in ("SUCCESS", "FAILURE") for run in second.runs("__ASSET_JOB")), "ends", 60
            )
        finally:
            second.stop()
        assert {cell["cell"]: len(cell["attempts"]) for cell in project.cells(name)} == {k: n + 1 for k, n in before.items()}
