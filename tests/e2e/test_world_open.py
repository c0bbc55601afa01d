"""The app up on a world for a person: opened, looked at through its port, kept from the reaper, closed."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Generator

import pytest
from support.desk import PORT, desk
from support.project import Project

pytestmark = [pytest.mark.slow]


@pytest.fixture
def opened(project: Project) -> Generator[Project]:
    desk(project)
    yield project
    project.evals("world", "close", "w", check=False)


def get(address: str) -> list[str]:
    with urllib.request.urlopen(f"http://{address}/", timeout=10) as answer:
        return [json.loads(line)["text"] for line in answer.read().splitlines()]


def post(address: str, text: str) -> None:
    urllib.request.urlopen(f"http://{address}/", data=text.encode(), timeout=10).read()


@pytest.mark.long
def test_open_look_and_close(opened: Project) -> None:
    project = opened
    data = project.evals("world", "open", "w", "--detach")
    address = data["addresses"][str(PORT)]
    assert get(address) == ["one", "two"]
    post(address, "mine")
    again = project.evals("world", "open", "w", "--detach", "--port", str(PORT))
    assert (again["sandbox"], again["commit"]) == (data["sandbox"], data["commit"])
    assert get(again["addresses"][str(PORT)]) == ["one", "two", "mine"]

    # The detached process serves the port: it is said where, and nothing is held.
    assert project.evals("world", "ports", "w")["addresses"] == {str(PORT): address}

    (listed,) = [row for row in project.evals("sandbox", "list") if row["sandbox"] == data["sandbox"]]
    assert (listed["owner"], listed["purpose"]) == ("person", "author")
    assert data["sandbox"] not in project.evals("sandbox", "reap")["reaped"]
    assert get(address)[-1] == "mine"

    project.agent("answer no\n")
    refused = project.evals("world", "open", "w", "--detach", check=False)
    assert (refused["exit_code"], refused["error"]["code"]) == (2, "spec")
    assert "is open already" in refused["error"]["message"]

    project.evals("world", "close", "w")
    with pytest.raises(OSError):
        get(address)
    gone = project.evals("world", "close", "w", check=False)
    assert (gone["exit_code"], gone["error"]["code"]) == (2, "not_found")


def test_until_ctrl_c_and_the_app_goes_on(opened: Project) -> None:
    project = opened
    process = project.start("world", "open", "w", "--app-ref", "WORKTREE", "--json")
    assert process.stdout is not None
    envelope = json.loads(process.stdout.readline())
    address = envelope["data"]["addresses"][str(PORT)]
    assert get(address) == ["one", "two"]
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 0, said
    assert "evals world save w" in said
    with pytest.raises(OSError):
        get(address)
    assert envelope["data"]["commit"] is None
    assert project.evals("world", "close", "w")["sandbox"] == envelope["data"]["sandbox"]


def test_an_app_that_does_not_come_up_says_why_and_leaves_nothing(opened: Project) -> None:
    project = opened
    project.commit({"bin/up": "#!/bin/sh\necho the key is missing >&2\nexit 3\n"})
    envelope = project.evals("world", "open", "w", "--detach", check=False)
    assert envelope["exit_code"] == 1
    assert "the key is missing" in envelope["error"]["message"]
    assert [row for row in project.evals("sandbox", "list") if row["purpose"] == "author"] == []
