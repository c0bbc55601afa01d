"""`evals up`: what it serves, what it says, and that nothing stays behind."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest
from support.places import short_dir
from support.project import Project
from ui.served import Served

pytestmark = pytest.mark.slow


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


def test_a_taken_port_is_said_before_anything_starts(served: Served) -> None:
    process = served.project.start("up", "--port", str(served.port))
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert f"port {served.port} of 127.0.0.1 is taken" in said and "starting" not in said
