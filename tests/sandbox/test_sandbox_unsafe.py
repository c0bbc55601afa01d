"""Where no user namespace can be made, and the user permits sandboxes without: refused, permitted, recorded, and what still holds.

Each test starts a process in such a place (support/no_user_namespaces.py); nothing of the machine is changed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from support import forked_cli
from support.places import short_dir
from support.project import Project

from eval_pipeline.gateway.client import stop
from eval_pipeline.settings import Settings
from eval_pipeline.store.postgres import embedded_server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.getuid() != 0, reason="without user namespaces only root can start a sandbox"),
]
REPOSITORY = Path(__file__).resolve().parents[2]
WITHOUT = [sys.executable, str(REPOSITORY / "tests" / "support" / "no_user_namespaces.py")]
EVALS = [sys.executable, "-m", "eval_pipeline.cli"]
PREFLIGHT = [sys.executable, "-I", "-S", str(REPOSITORY / "eval_pipeline" / "sandbox" / "local" / "preflight.py")]
FLAG = "--unsafe-no-isolation"


@pytest.fixture(scope="module")
def project() -> Generator[Project]:
    with short_dir() as folder:
        state = folder / "state"
        state.mkdir()
        with embedded_server(Settings(state_dir=state, worlds_dir=folder)):
            made = Project(folder / "project", state)
            made.case()
            made.experiment("one")
            yield made
        stop(state)


def in_project(project: Project, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=project.env, cwd=project.root, capture_output=True, text=True, timeout=300, check=False)


def as_it_is(project: Project, *args: str, **more: str) -> subprocess.CompletedProcess[str]:
    """`evals`, where user namespaces can be made."""
    return forked_cli.evals(args, {**project.env, **more}, project.root, 300)


AGENT = r"""
get() { curl -s -m 9 -o /dev/null -w '%{http_code}' "$@"; }
for way in 'http://model-stand-in/v1/models' 'http://other.example/' "--noproxy * http://192.0.2.1/"; do
  set -f; seen="$seen $(get $way)"
done
answer "$(id -un) $(grep -c -E '^Cap...:.0000000000000000$' /proc/self/status) $(grep -c NoNewPrivs:.1 /proc/self/status)$seen yes"
"""


def test_refused_then_permitted_then_said_everywhere(project: Project) -> None:
    project.manifest(egress=["model-stand-in:80"])
    project.agent(AGENT)
    refused = in_project(project, *WITHOUT, *EVALS, "experiment", "run", "one", "--wait", "--json")
    error = json.loads(refused.stdout)["error"]
    assert (refused.returncode, error["code"]) == (2, "isolation_unavailable")
    assert "sysctl -w user.max_user_namespaces=" in error["hint"] and FLAG in error["hint"]

    ran = in_project(project, *WITHOUT, *EVALS, "experiment", "run", "one", "--wait", "--json", FLAG)
    assert ran.returncode == 0, ran.stderr + project.logs()
    assert "UNSAFE" in ran.stderr
    name = json.loads(ran.stdout)["data"]["experiment"]
    (cell,) = project.cells(name)
    assert cell["score"] == 1.0
    shown = project.evals("cell", "show", cell["cell"])
    assert shown["answer"] == "evals 5 1 200 403 000 yes"  # user, empty sets of capabilities, allowed, refused, no route
    isolation = shown["attempts"][0]["evidence"]["isolation"]
    assert (isolation["level"], list(isolation["missing"])) == ("unsafe", ["user namespace"])
    line = "UNSAFE: 1 cell ran without isolation"
    assert project.evals("experiment", "status", name)["n_unsafe"] == project.evals("leaderboard", name)["n_unsafe"] == 1
    for verb in (["experiment", "status", name], ["leaderboard", name]):
        assert line in as_it_is(project, *verb).stdout
    assert "isolation of attempt 1: unsafe, without: user namespace" in as_it_is(project, "cell", "show", cell["cell"]).stdout


@pytest.mark.parametrize(("flags", "code", "level"), [([], 2, "none"), ([FLAG], 0, "unsafe")])
def test_the_doctor_says_which(project: Project, flags: list[str], code: int, level: str) -> None:
    done = in_project(project, *WITHOUT, *EVALS, "doctor", "--json", *flags)
    found = json.loads(done.stdout)
    assert (done.returncode, found["data"]["level"]) == (code, level), done.stderr
    held = {each["name"]: each["enforced"] for each in found["data"]["guarantees"]}
    assert held == {} if level == "none" else (held["no network but the proxy"], held["user namespace"]) == (True, False)


def test_a_permission_is_no_preference(project: Project) -> None:
    done = as_it_is(project, "doctor", FLAG)
    assert "UNSAFE" not in done.stdout and "is not needed" in done.stdout
    assert done.returncode == 0


def test_preflight_knows_the_flag_and_who_asks() -> None:
    def run(*command: str) -> tuple[int, str]:
        done = subprocess.run([*WITHOUT, *command], capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    assert run(*PREFLIGHT)[0] == 2
    assert run(*PREFLIGHT, FLAG)[0] == 0
    python = "/usr/bin/python3"  # other users can reach it
    as_nobody = ["setpriv", "--reuid=65534", "--clear-groups", python, *PREFLIGHT[1:], FLAG]
    code, said = run(*as_nobody)
    assert code == 2 and "only root" in said and "sysctl -w" in said
    code, said = run("setpriv", "--bounding-set=-sys_admin", *PREFLIGHT, FLAG)
    assert code == 2 and "CAP_SYS_ADMIN" in said


def test_make_hands_the_permission_on() -> None:
    for value, code in (("1", 0), ("0", 2), ("", 2)):
        env = {**os.environ, "EVALS_UNSAFE_NO_ISOLATION": value}
        done = subprocess.run([*WITHOUT, "make", "-s", "preflight"], env=env, cwd=REPOSITORY, capture_output=True, check=False)
        assert done.returncode == code, done.stderr


def test_a_permission_is_0_or_1(project: Project) -> None:
    done = as_it_is(project, "doctor", "--json", EVALS_UNSAFE_NO_ISOLATION="yes")
    assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (2, "spec")


def test_a_hostile_layer_does_not_become_root(project: Project) -> None:
    """A layer that says who a user is, what is preloaded and where mount points lead is below the machine's own."""
    script = REPOSITORY / "tests" / "sandbox" / "hostile_layer.py"
    done = subprocess.run(
        [*WITHOUT, sys.executable, str(script), str(project.state_dir)], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["evals", "evals", "4", "0"]


@pytest.mark.long
def test_the_contract_holds() -> None:
    """The suite that every backend passes, where the backend has no user namespace."""
    env = {**os.environ, "EVALS_UNSAFE_NO_ISOLATION": "1"}
    suite = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
        "-o",
        "addopts=",
        "-k",
        "local and not ends_by_itself",  # bwrap has no right left to signal a child of another user
        "tests/contract",
    ]
    done = subprocess.run([*WITHOUT, *suite], env=env, cwd=REPOSITORY, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout
    assert " skipped" not in done.stdout and " passed" in done.stdout
