"""kill -9 of all at once: the run worker, the code server, the daemon, the web server, Postgres and the egress proxy."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from support.places import short_dir
from support.project import Project
from ui.served import Served

from eval_pipeline.gateway.client import ensure_gateway
from eval_pipeline.settings import Settings
from eval_pipeline.store.postgres import server_status

pytestmark = pytest.mark.long


def dagster_processes(state: Path) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("EVALS_STATE_DIR") == str(state) and process.pid != os.getpid():
                found.append(process)
    return found


def test_the_next_start_goes_on_with_every_agent_that_lives(state_dir: Path) -> None:
    with short_dir() as root:
        state = state_dir / "s"
        project = Project(root, state)
        project.manifest(egress=["model-stand-in:80"])
        project.agent("sleep 75; curl -sSf http://model-stand-in/v1/models >/dev/null && answer yes")
        project.case("c")
        project.experiment("all", trials=2)
        name = project.evals("experiment", "run", "all")["experiment"]
        project.evals("experiment", "cancel", name)
        project.wait_for(lambda: project.evals("experiment", "status", name)["states"] == {"open": 2})
        before = {cell["cell"]: len(cell["attempts"]) for cell in project.cells(name)}
        first = Served(project)
        first.wait_ready()
        first.backfill(before)
        first.wait_for(lambda: project.evals("experiment", "status", name)["states"].get("running") == 2, "two agents", 60)
        postgres = server_status(Settings(state_dir=state, worlds_dir=project.worlds)).pid
        assert postgres is not None
        victims = [*dagster_processes(state), psutil.Process(postgres), psutil.Process(ensure_gateway(state).pid())]
        assert len(victims) >= 6
        for victim in victims:
            with suppress(psutil.NoSuchProcess):
                victim.kill()
        first.stop()
        second = Served(project)
        try:
            second.wait_ready()
            second.wait_for(
                lambda: project.evals("experiment", "status", name)["n_done"] == 2, "the run that is tried again", 240
            )
            second.wait_for(lambda: second.statuses(name) == dict.fromkeys(before, "materialized"), "the events", 90)
        finally:
            second.stop()
        cells = project.cells(name)
        assert {cell["cell"]: len(cell["attempts"]) for cell in cells} == {key: n + 1 for key, n in before.items()}
        assert [cell["outcome"] for cell in cells] == ["ok", "ok"]
        assert project.evals("sandbox", "list") == []
