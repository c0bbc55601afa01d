"""A shell in a cell's place: fed from a pipe, at a terminal, and beside a running agent."""

from __future__ import annotations

import os
import pty
import select
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest
from support.desk import AGENT, desk
from support.places import short_dir
from support.project import EVALS, Project

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def ran(shared_state: Path) -> Generator[tuple[Project, str]]:
    """One cell that has run, with its key."""
    with short_dir() as root:
        project = Project(root, shared_state, {"DESK_KEY": "s3cret"})
        desk(project, agent=AGENT + "mkdir -p /out/files\necho memo > /out/files/memo.txt\n", secrets={"agent": ["DESK_KEY"]})
        project.experiment("x")
        project.run("x")
        (cell,) = project.cells("x")
        assert cell["outcome"] == "ok"
        yield project, cell["cell"]


def shell(project: Project, *args: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    command = [*EVALS, "cell", "shell", *args]
    return subprocess.run(
        command, env=project.env, cwd=project.root, input=typed, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.long
def test_piped_input_the_cells_place_and_its_output(ran: tuple[Project, str]) -> None:
    project, key = ran
    script = """
    pwd; ls bin; cat /out/files/memo.txt
    python3 -c 'import json, os; print(json.load(open(os.environ["EVALS_CASE"]))["prompt"])'
    bin/ready && echo answered; cat /app/data/notes.jsonl | wc -l
    echo "key:$DESK_KEY"; echo aside >&2; exit 7
    """
    done = shell(project, key, typed=script)
    lines = done.stdout.splitlines()
    assert done.returncode == 7, done.stderr
    assert lines == ["/app", "agent", "dump", "ready", "restore", "up", "memo", "Answer c.", "answered", "2", "key:"]
    assert "aside" in done.stderr
    assert [row for row in project.evals("sandbox", "list") if row["purpose"] == "shell"] == []


def test_a_command_in_place_of_a_shell_and_a_large_input(ran: tuple[Project, str]) -> None:
    project, key = ran
    text = "".join(f"line {number}\n" for number in range(50_000))
    done = shell(project, key, "--", "cat", typed=text)
    assert (done.returncode, done.stdout == text) == (0, True), done.stderr


def test_closed_input_is_an_empty_one(ran: tuple[Project, str]) -> None:
    project, key = ran
    command = ["sh", "-c", 'exec "$@" <&-', "sh", *EVALS, "cell", "shell", key]
    done = subprocess.run(command, env=project.env, cwd=project.root, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_at_a_terminal_it_is_a_terminal(ran: tuple[Project, str]) -> None:
    project, key = ran
    ours, theirs = pty.openpty()
    command = [*EVALS, "cell", "shell", key]
    process = subprocess.Popen(
        command,
        env={**project.env, "TERM": "vt100"},
        cwd=project.root,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        close_fds=True,
    )
    os.close(theirs)
    select.select([ours], [], [], 60)  # its prompt
    os.write(ours, b"tty; echo term=$TERM; stty size; exit 3\n")
    seen = b""
    while True:
        try:
            seen += os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
    os.close(ours)
    assert process.wait(timeout=60) == 3, seen
    assert b"/dev/pts/" in seen
    assert b"term=vt100" in seen


@pytest.mark.long
def test_beside_a_running_agent(project: Project) -> None:
    desk(project, agent="until [ -e /out/go ]; do sleep 0.1; done\nanswer yes\n")
    project.experiment("live")
    engine = project.start("experiment", "run", "live", "--wait", "--json")
    key = project.wait_for(lambda: [c["cell"] for c in project.evals("experiment", "cells", "live", check=False)["data"] or []])[
        0
    ]
    done = project.wait_for(
        lambda: (d := shell(project, key, "--live", typed="ls /out; touch /out/go\n")).returncode == 0 and d, 60
    )
    assert done.stdout == "" or "result.json" not in done.stdout
    engine.communicate(timeout=60)
    assert engine.returncode == 0
    gone = project.evals("cell", "shell", key, "--live", check=False)
    assert (gone["exit_code"], gone["error"]["code"]) == (2, "not_found")
