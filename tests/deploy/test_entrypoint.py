"""As PID 1 of a process namespace of its own, as in a container."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from support.compose_file import DEPLOY

# One process of the first session, and one that left it, as engines do; both need a moment to end.
SERVER = """
drain() { sleep 0.5; echo "$1" >>"$0"; exit 0; }
setsid sh -c 'trap "sleep 0.5; echo engine >>$0; exit 0" TERM; echo up >>$0; while :; do sleep 0.1; done' "$0" &
trap 'drain server' TERM
echo up >>"$0"
while :; do sleep 0.1; done
"""


def started(*command: str) -> subprocess.Popen[bytes]:
    unshare = ["unshare", "--pid", "--fork"] + ([] if os.getuid() == 0 else ["--user", "--map-root-user"])
    # Whoever is started with SIGTERM ignored can't trap it, and Dagster ignores it in a process that ignores SIGINT
    return subprocess.Popen([*unshare, str(DEPLOY / "entrypoint"), *command], preexec_fn=_heeding)


def _heeding() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def inside(process: subprocess.Popen[bytes]) -> int:
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])


def lines_of(log: Path) -> list[str]:
    return log.read_text().split() if log.exists() else []


@pytest.mark.slow
def test_a_stop_reaches_every_session_and_waits_for_all(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = started("sh", "-c", SERVER, str(log))
    try:
        deadline = time.monotonic() + 30
        while lines_of(log) != ["up", "up"] and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(inside(process), signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
    assert sorted(lines_of(log)) == ["engine", "server", "up", "up"]


def test_the_exit_code_is_that_of_the_command() -> None:
    assert started("sh", "-c", "exit 7").wait(30) == 7
