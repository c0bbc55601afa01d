"""What an engine leaves in the middle of something, and what the next one makes of it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Generator
from pathlib import Path

import pytest
from support.places import short_dir
from support.project import Project

from eval_pipeline.domain.cell import Outcome
from eval_pipeline.host import host_identity
from eval_pipeline.runner.attempt import AGENT
from eval_pipeline.runner.backends import local_backend
from eval_pipeline.sandbox.base import Phase
from eval_pipeline.settings import Settings
from eval_pipeline.store.postgres import embedded_server, server_status
from eval_pipeline.store.records import Records, open_records
from eval_pipeline.store.rows import Stopping

pytestmark = pytest.mark.slow

ENGINE = Path(__file__).parents[1] / "chaos" / "chaos_engine.py"


def running(project: Project, name: str) -> None:
    project.wait_for(lambda: project.evals("experiment", "status", name)["states"].get("running") == 1)


def decide_and_die(settings: Settings, records: Records, key: str, decided: Stopping) -> None:
    """As an engine that is killed once it has stopped the agent."""
    engine, host = str(uuid.uuid4()), host_identity(settings.state_dir)
    records.leases.open_engine(engine, host, os.getpid(), None)
    (claim,) = records.ledger.claim(engine, [key], host.place)
    assert claim.open_attempt is not None
    records.ledger.stopping(claim, claim.open_attempt.id, decided)
    backend = local_backend(settings, records.ledger.installation_id())

    async def stop(name: str) -> None:
        sandbox = await backend.find(name)
        assert sandbox is not None
        await sandbox.stop(AGENT)
        while (await sandbox.state(AGENT)).phase is Phase.RUNNING:
            await asyncio.sleep(0.02)

    asyncio.run(stop(claim.open_attempt.sandbox))
    records.leases.close_engine(engine)


@pytest.mark.long
@pytest.mark.parametrize(
    ("decided", "outcomes"),
    [
        (Stopping(reason="cancelled on request", outcome=Outcome.CANCELLED), ["cancelled", "ok"]),
        (Stopping(reason="StoreError: the disk is full", outcome=Outcome.INFRA_FAILURE), ["infra_failure", "ok"]),
        (Stopping(reason="turns"), ["budget_exceeded"]),
    ],
)
def test_an_agent_that_was_stopped_by_an_engine_did_not_fail_by_itself(
    project: Project, decided: Stopping, outcomes: list[str]
) -> None:
    project.agent(
        '[ -e /world/documents/lease.txt ] && sleep "$(sed -n \'s/^ *"sleep": "\\(.*\\)".*/\\1/p\' "$EVALS_CASE")"; answer yes'
    )
    project.case()
    name_of = f"stopped-{decided.reason.split()[0].lower().rstrip(':')}"
    project.experiment(name_of, arms=[{"name": "a", "ref": "main", "config": {"sleep": "8"}}])
    name = project.evals("experiment", "run", name_of)["experiment"]
    running(project, name)
    project.kill_engines(name)
    settings = Settings(state_dir=project.state_dir, worlds_dir=project.worlds)
    with open_records(settings) as records:
        decide_and_die(settings, records, project.cells(name)[0]["cell"], decided)
    project.run(name_of, check=False)
    (cell,) = project.cells(name)
    assert [attempt["outcome"] for attempt in cell["attempts"]] == outcomes
    if len(outcomes) == 2:
        assert cell["attempts"][0]["error"] == decided.reason
    assert project.evals("sandbox", "list") == []


@pytest.fixture
def away(state_dir: Path) -> Generator[Settings]:
    """A server that engines can't start again: they know its URL only."""
    settings = Settings(state_dir=state_dir, worlds_dir=state_dir)
    yield settings
    with embedded_server(settings):
        pass


@pytest.mark.long
def test_an_agent_outlives_an_engine_that_waited_for_postgres_in_vain(away: Settings) -> None:
    with short_dir() as root, embedded_server(away) as url:
        (root / "s").mkdir()
        project = Project(root / "p", root / "s", {"EVALS_POSTGRES_URL": url, "EVALS_CHAOS_PATIENCE_S": "2"})
        project.agent("sleep 12; answer yes")
        project.case()
        project.experiment("waited")
        name = project.evals("experiment", "run", "waited")["experiment"]
        running(project, name)
        project.kill_engines(name)
        engine = [sys.executable, str(ENGINE), name]
        with subprocess.Popen(engine, env=project.env, stderr=subprocess.PIPE, text=True) as first:
            project.wait_for(lambda: project.engine_pids(name) == [first.pid])
            pid = server_status(away).pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            _, said = first.communicate(timeout=60)
        assert first.returncode != 0 and "LedgerUnavailable" in said
        with embedded_server(away):
            assert [row["owner"] for row in project.evals("sandbox", "list")] == ["attempt"]
            began = time.monotonic()
            done = subprocess.run(engine, env=project.env, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, done.stderr
            assert time.monotonic() > began
            (cell,) = project.cells(name)
            assert [attempt["outcome"] for attempt in cell["attempts"]] == ["ok"], done.stderr
            assert project.evals("sandbox", "list") == []
