"""Persisting on another host: an engine that persists nothing itself, workers with a state directory of their own, and kill -9."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.places import short_dir
from support.project import EVALS, Project

pytestmark = pytest.mark.slow

N = 4
AGENT = """
cp "$EVALS_CASE" "$EVALS_OUTPUT/case.json"
yes '{"type":"message","text":"words without an end to them, and no usage"}' | head -c 60000000 >"$EVALS_OUTPUT/transcript.jsonl"
printf '\\n%s\\n' '{"type":"usage","model":"m","input_uncached":1}' >>"$EVALS_OUTPUT/transcript.jsonl"
answer yes
"""


@pytest.fixture
def far(state_dir: Path, database_url: str) -> Generator[Project]:
    """Its engines hand everything over. The ledger is a server's, the store a directory that others may share."""
    with short_dir() as root, short_dir() as store:
        env = {"EVALS_POSTGRES_URL": database_url, "EVALS_ARTIFACTS_URL": f"file://{store}", "EVALS_PERSIST": "workers"}
        yield Project(root, state_dir, env)


def worker(project: Project, state: Path, *more: str) -> subprocess.Popen[str]:
    env = {**project.env, "EVALS_STATE_DIR": str(state)}
    command = [*EVALS, "worker", "persist", *more]
    return subprocess.Popen(command, env=env, cwd=project.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.long
def test_outputs_are_persisted_elsewhere_and_kill_9_costs_nothing(far: Project, database_url: str) -> None:
    far.agent(AGENT)
    far.case(limits={"wall_s": 120.0})
    far.experiment("far", trials=N)
    run = far.start("experiment", "run", "far", "--wait")

    def status() -> Any:
        return far.evals("experiment", "status", "far", check=False)["data"] or {"states": {}, "engines": []}

    far.wait_for(lambda: status()["states"].get("persisting") == N, 180)
    assert status()["waiting"] == {"a persist worker, or an engine that persists": N}
    assert far.evals("sandbox", "list") == [], "what is stored needs no sandbox"
    with short_dir() as elsewhere:
        first = worker(far, elsewhere, "--limit", "1")
        far.wait_for(lambda: [one["kind"] for one in status()["engines"]] == ["persist"])
        first.send_signal(signal.SIGKILL)
        first.communicate()
        left = status()["states"].get("persisting", 0)
        assert left >= 1
        second = worker(far, elsewhere, "--once", "--limit", "2", "--memory-mib", "256")
        stdout, stderr = second.communicate(timeout=120)
        assert f"{left} attempts were brought to their end" in stdout, stderr
    stdout, stderr = run.communicate(timeout=120)
    assert (run.returncode, f"{N} of {N} cells have a valid result; outcomes: {N} ok" in stdout) == (0, True), stdout + stderr
    cells = far.cells("far")
    assert [(cell["outcome"], len(cell["attempts"]), cell["score"]) for cell in cells] == [("ok", 1, 1.0)] * N
    shown = far.evals("cell", "show", cells[0]["cell"])
    assert shown["attempts"][0]["evidence"]["calls"] == 1 and shown["attempts"][0]["evidence"]["isolation"]
    engine = sa.create_engine(database_url)
    with engine.connect() as connection:
        assert connection.execute(sa.text("select count(*), max(vote) from evals.verdicts")).one() == (N, 0)
        assert connection.execute(sa.text("select count(distinct bundle) from evals.attempts")).scalar_one() == N
        assert connection.execute(sa.text("select count(*) from evals.cells where engine_id is not null")).scalar_one() == 0
    engine.dispose()
