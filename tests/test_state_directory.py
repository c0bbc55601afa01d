"""Where state is, and that what only reads makes none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.places import short_dir
from support.project import EVALS, Project

pytestmark = pytest.mark.slow

READS = [
    ["experiment", "list"],
    ["experiment", "status", "x"],
    ["experiment", "cells", "x"],
    ["leaderboard", "x"],
    ["cell", "show", "x/w.c/a/0"],
    ["image", "list"],
    ["secrets", "list"],
    ["sandbox", "list"],
    ["world", "close", "w"],
]


@pytest.mark.parametrize("args", READS, ids=" ".join)
def test_what_reads_makes_no_state_directory(tmp_path: Path, args: list[str]) -> None:
    project = Project(tmp_path, tmp_path / "state")
    envelope = project.evals(*args, check=False)
    assert (envelope["exit_code"], envelope["error"]["code"]) == (2, "not_found")
    assert f"no state directory at {tmp_path / 'state'}" in envelope["error"]["message"]
    assert "EVALS_STATE_DIR" in envelope["error"]["hint"]
    assert not (tmp_path / "state").exists()


def test_outside_of_a_project_nothing_is_made(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("EVALS_")}
    for args in (["experiment", "list"], ["up"], ["budget"], ["doctor"]):
        done = subprocess.run([*EVALS, *args], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert (done.returncode, f"no state directory at {tmp_path / '.evals'}" in done.stderr) == (2, True), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_second_up_of_one_state_directory_is_refused() -> None:
    from eval_pipeline.cli.up import alone
    from eval_pipeline.settings import load_settings

    with short_dir() as root:
        project = Project(root, root / "state")
        with alone(load_settings({"EVALS_STATE_DIR": str(root / "state")}), 3000):
            envelope = project.evals("up", "--port", "3993", check=False)
        assert (envelope["exit_code"], envelope["error"]["code"]) == (2, "spec")
        assert f"process {os.getpid()}, http://127.0.0.1:3000" in envelope["error"]["message"]


MODES = """
import os, stat, sys
from pathlib import Path
from eval_pipeline.gateway.paths import Paths
from eval_pipeline.host import reachable_root
os.umask(0o022)
if os.getuid() == 0 and sys.argv[2] == "user":
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
state = Path(sys.argv[1]) / "made" / "state"
Paths.of(state)
assert reachable_root(state) == state
for name in ("logs", "dagster", "tmp", "engines"):
    (state / name).mkdir(parents=True, exist_ok=True)
print(oct(state.stat().st_mode & 0o777), *(name for name in sorted(os.listdir(state)) if (state / name).stat().st_mode & 0o077))
"""


@pytest.mark.parametrize("who", ["user", "root"])
def test_a_state_directory_is_its_owners_alone(who: str) -> None:
    """As root others pass through it to what sandboxes read, and to nothing else."""
    if who == "root" and os.getuid() != 0:
        pytest.skip("needs root")
    with short_dir() as folder:
        folder.chmod(0o777)
        command = [sys.executable, "-c", MODES, str(folder), who]
        done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    mode, *open_to_others = done.stdout.split()
    # a user's: nobody gets as far as what is in it
    assert (mode, open_to_others) == (("0o711", []) if who == "root" else ("0o700", ["dagster", "engines", "logs", "tmp"]))
