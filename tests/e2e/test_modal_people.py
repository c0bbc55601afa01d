"""People's sandboxes on Modal: a shell in a cell's place, a world that is open, its port on this machine."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Generator
from pathlib import Path

import pytest
from support.desk import AGENT, PORT, desk
from support.modal_loopback import LoopbackModal
from support.places import short_dir
from support.project import EVALS, Project

pytestmark = pytest.mark.slow
APP = "people"
ON_MODAL = ("--backend", "modal")


@pytest.fixture(scope="module")
def project(modal_server: LoopbackModal, shared_state: Path) -> Generator[Project]:
    with short_dir() as root:
        made = Project(root, shared_state, {"EVALS_MODAL_APP": APP, "EVALS_MODAL_CREATES_PER_S": "50"})
        desk(made, agent=AGENT + "mkdir -p /out/files\necho memo > /out/files/memo.txt\n")
        yield made
        made.evals("world", "close", "w", *ON_MODAL, check=False)


def get(address: str) -> list[str]:
    with urllib.request.urlopen(f"http://{address}/", timeout=20) as answer:
        return [json.loads(line)["text"] for line in answer.read().splitlines()]


@pytest.mark.long
def test_a_shell_where_the_cell_was(project: Project, modal_server: LoopbackModal) -> None:
    project.experiment("shell", backend="modal")
    name = project.run("shell")["experiment"]
    (cell,) = project.cells(name)
    typed = 'pwd; cat /out/files/memo.txt; bin/ready && echo answered; [ "$(id -u)" = 0 ] || echo no root; exit 7'
    command = [*EVALS, "cell", "shell", cell["cell"]]
    done = subprocess.run(
        command, env=project.env, cwd=project.root, input=typed, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.splitlines()) == (7, ["/app", "memo", "answered", "no root"]), done.stderr
    assert [one["name"] for one in modal_server.sandboxes(APP) if one["alive"]] == []


@pytest.mark.long
def test_a_world_is_opened_changed_saved_and_closed(project: Project, modal_server: LoopbackModal) -> None:
    data = project.evals("world", "open", "w", "--detach", *ON_MODAL)
    address = data["addresses"][str(PORT)]
    assert get(address) == ["one", "two"]
    urllib.request.urlopen(f"http://{address}/", data=b"mine", timeout=20).read()
    (listed,) = project.evals("sandbox", "list", *ON_MODAL)
    assert (listed["sandbox"], listed["owner"], listed["purpose"]) == (data["sandbox"], "person", "author")
    assert project.evals("sandbox", "reap", *ON_MODAL)["reaped"] == []
    assert project.evals("world", "save", "w", "--into", "mine", *ON_MODAL)["written"]
    notes = (project.worlds / "worlds/mine/database/notes.jsonl").read_text().splitlines()
    assert [json.loads(line)["text"] for line in notes] == ["one", "two", "mine"]
    assert project.evals("world", "close", "w", *ON_MODAL)["sandbox"] == data["sandbox"]
    with pytest.raises(OSError):
        get(address)
    assert [one["name"] for one in modal_server.sandboxes(APP) if one["alive"]] == []


def test_the_doctor_tries_what_experiments_rest_on(project: Project, modal_server: LoopbackModal) -> None:
    before = {one["id"] for one in modal_server.sandboxes()}
    data = project.evals("doctor", *ON_MODAL, "--try", "ports", "--try", "snapshot")
    found = {one["what"]: one for one in data["findings"]}
    assert [one["what"] for one in data["findings"] if not one["works"]] == []
    assert set(found) == {"token", "image", "rates", "secrets", "sandbox", "ports", "snapshot"}
    assert "cpu_hour_cost_sandbox 0.2" in found["rates"]["said"]
    assert set(data["to_be_seen"]) == {f"evals doctor --backend modal --try {name}" for name in ("egress", "containers", "rate")}
    made = [one for one in modal_server.sandboxes() if one["id"] not in before]
    assert (len(made) >= 4, [one["name"] for one in made if one["alive"]]) == (True, [])


def test_without_a_token_the_doctor_says_what_to_do(project: Project) -> None:
    nobody = Project.__new__(Project)
    nobody.root, nobody.env = project.root, {k: v for k, v in project.env.items() if not k.startswith("MODAL_TOKEN")}
    refused = nobody.evals("doctor", *ON_MODAL, check=False)
    assert (refused["exit_code"], refused["ok"]) == (2, False)
    (finding,) = refused["data"]["findings"]
    assert (finding["what"], finding["works"]) == ("token", False)
    assert "modal token new" in finding["remedy"]
