"""A whole experiment on Modal, through the command line; the Modal is the loopback one, the sandboxes are real."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from support.modal_loopback import LoopbackModal
from support.places import short_dir
from support.project import Project

pytestmark = pytest.mark.slow
APP = "e2e"
USD_PER_S = (0.2 + 0.03) / 3600  # as the server's billing says, for the core and the GiB of a sandbox that asks for nothing else


@pytest.fixture
def project(modal_server: LoopbackModal, shared_state: Path) -> Generator[Project]:
    with short_dir() as root:
        yield Project(root, shared_state, {"EVALS_MODAL_APP": APP, "EVALS_MODAL_CREATES_PER_S": "50"})


def cell_sandbox(server: LoopbackModal, before: set[str]) -> str | None:
    """The name of a new one that an agent has."""
    found = [one for one in server.sandboxes(APP) if one["id"] not in before and one["tags"].get("purpose") == "cell"]
    return found[0]["name"] if found else None


def running(project: Project, name: str, count: int) -> None:
    project.wait_for(lambda: project.evals("experiment", "status", name)["states"].get("running") == count)


def test_an_experiment_runs_on_modal_and_leaves_nothing(project: Project, modal_server: LoopbackModal) -> None:
    project.manifest(restore=["bin/restore"], build=["bin/build"], egress=["api.example.com:443"])
    project.commit(
        {
            "bin/build": "#!/bin/sh\necho built >/app/built\n",
            "bin/restore": "#!/bin/sh\ncp -r /world/documents /app/restored\n",
        }
    )
    project.agent(
        'test "$(cat built restored/lease.txt)" = "built\nThe notice period is 60 days." && id -u >"$EVALS_OUTPUT/uid" && answer yes'
    )
    project.case()
    project.case("other")
    project.experiment("cloud", backend="modal", trials=2)
    name = project.run("cloud")["experiment"]
    cells = project.cells(name)
    assert [(cell["state"], cell["score"]) for cell in cells] == [("done", 1.0)] * 4
    ours = modal_server.sandboxes(APP)
    assert [one["name"] for one in ours if one["alive"] or one["folder"]] == []
    agents = [one for one in ours if one["tags"].get("purpose") == "cell"]
    assert len(agents) == 4
    assert {(one["runtime"], one["timeout_s"], one["memory_mib"], *one["domains"]) for one in agents} == {
        ("vm", 4500, 1024, "api.example.com")
    }
    assert [one["domains"] for one in ours if one["tags"].get("purpose") == "build"] == [[]] * 2
    shown = [project.evals("experiment", "status", name), project.evals("leaderboard", name)]
    assert all("by the name in a TLS greeting on port 443" in one["open_egress"] for one in shown)
    assert project.evals("sandbox", "list", "--backend", "modal") == []
    for cell in cells:
        assert cell["sandbox_s"] >= cell["latency_s"]
        assert float(cell["sandbox_cost_usd"]) == pytest.approx(cell["sandbox_s"] * USD_PER_S, abs=5e-10)
    board = project.evals("leaderboard", name)
    assert board["sandbox_spent_usd"] == pytest.approx(sum(float(cell["sandbox_cost_usd"]) for cell in cells))
    assert (board["spent_usd"], board["n_sandbox_unknown"]) == (0, 0)


@pytest.mark.long
def test_a_budget_holds_the_sandboxes_too(project: Project, modal_server: LoopbackModal) -> None:
    project.agent("answer yes")
    for name in ("one", "two"):
        project.case(name, limits={"wall_s": 900, "cost_usd": 0.001})
    project.experiment("dear", backend="modal", budget={"cost_usd": 0.05})
    planned = project.evals("experiment", "plan", "dear")["sandboxes"]
    assert (planned["seconds"] > 0, planned["rate"].startswith("billing-")) == (True, True)
    before = {one["id"] for one in modal_server.sandboxes(APP)}
    refused = project.run("dear", check=False)
    assert (refused["exit_code"], refused["error"]["code"]) == (3, "budget_exceeded")
    assert cell_sandbox(modal_server, before) is None
    project.experiment(
        "dear", backend="modal", budget={"cost_usd": 0.06}
    )  # room for 900 s of one, which are 0.0575, and its models
    cells = project.cells(project.run("dear")["experiment"])
    first, second = sorted((cell["attempts"][0] for cell in cells), key=lambda attempt: attempt["started_at"])
    assert second["started_at"] >= first["ended_at"]
    spent = sum(float(cell["sandbox_cost_usd"]) for cell in cells)
    assert float(project.evals("experiment", "status", "dear")["committed_usd"]) == pytest.approx(spent)


@pytest.mark.long
def test_a_lost_worker_is_our_fault_and_the_cell_is_tried_again(project: Project, modal_server: LoopbackModal) -> None:
    project.agent("sleep 2; answer yes")
    project.case()
    project.experiment("lost", backend="modal")
    before = {one["id"] for one in modal_server.sandboxes(APP)}
    started = project.start("experiment", "run", "lost", "--wait")
    modal_server.lose(project.wait_for(lambda: cell_sandbox(modal_server, before)))
    _, errors = started.communicate(timeout=100)
    assert started.returncode == 0, errors
    (name,) = [row["experiment"] for row in project.evals("experiment", "list") if row["experiment"].startswith("lost-")]
    (cell,) = project.cells(name)
    assert [attempt["outcome"] for attempt in cell["attempts"]] == ["infra_failure", "ok"]
    assert "SandboxLost" in cell["attempts"][0]["error"]


@pytest.mark.long
def test_another_engine_goes_on_with_what_a_killed_one_began(project: Project, modal_server: LoopbackModal) -> None:
    project.agent("sleep 6; answer yes")
    project.case()
    project.experiment("killed", backend="modal")
    name = project.evals("experiment", "run", "killed")["experiment"]
    running(project, name, 1)
    project.kill_engines(name)
    project.run("killed")
    (cell,) = project.cells(name)
    assert [attempt["outcome"] for attempt in cell["attempts"]] == ["ok"]
    assert [one["name"] for one in modal_server.sandboxes(APP) if one["alive"]] == []


@pytest.mark.long
def test_images_are_built_ahead_and_cells_move_into_warm_sandboxes(project: Project, modal_server: LoopbackModal) -> None:
    services = {"up": ["bin/up"], "ready": ["bin/ready"]}
    project.manifest(build=["bin/build"], services=services, secrets={"agent": ["MODEL_KEY"]})
    project.commit(
        {
            "bin/build": "#!/bin/sh\necho built >/app/built\n",
            "bin/up": "#!/bin/sh\necho $MODEL_KEY >/tmp/served; exec sleep 1000\n",
            "bin/ready": "#!/bin/sh\ntest -s /tmp/served\n",
        }
    )
    head = project.agent('test "$(cat built /tmp/served) $MODEL_KEY" = "built\ncanary canary" && answer yes')
    warm = {"count": 1, "max_cost_usd_per_hour": 0.2}
    project.write("app.yaml", {"name": "tiny", "repo": "app", "path": ".", "backends": ["modal"], "warm": warm})
    file = project.state_dir / "secrets.env"
    file.touch(mode=0o600)
    file.write_text("MODEL_KEY=canary\n")
    project.case()
    name = f"{APP}-tiny-agent"
    written = project.evals("secrets", "sync")["modal"]
    assert [(one["name"], one["done"]) for one in written] == [(name, "written")]
    assert modal_server.state()["secrets"][name]["MODEL_KEY"] == "canary"

    built = project.evals("image", "build", "--backend", "modal")
    assert (built["commit"], built["built"], built["published"]) == (head, True, f"{APP}-tiny:{head}")
    assert built["ref"] in modal_server.state()["image_names"].values()
    again = project.evals("image", "build", "--backend", "modal")
    assert (again["built"], again["ref"]) == (False, built["ref"])
    listed = {row["ref"]: row for row in project.evals("image", "list", "--backend", "modal")}
    assert listed[built["ref"]]["kind"] == "image" and listed[built["ref"]]["expires_at"] is not None
    assert project.evals("image", "list") == []

    # at $0.166 an hour the cap leaves one, whatever is asked for
    warmed = project.evals("image", "warm", "--count", "3", "--backend", "modal")
    assert (warmed["allowed"], warmed["started"], warmed["ready"]) == (1, {"w": 1}, {"w": 1})
    (ready,) = project.evals("image", "status", "--backend", "modal")["warm"]
    assert {one["name"]: one["alive"] for one in modal_server.sandboxes(APP)}[ready["sandbox"]]
    found = project.evals("sandbox", "list", "--backend", "modal")
    assert [(one["sandbox"], one["owner"]) for one in found] == [(ready["sandbox"], "warm")]
    project.experiment("warm", backend="modal", arms=[{"name": "a", "ref": "main", "config": {"model": "real"}}])
    (cell,) = project.cells(project.run("warm")["experiment"])
    (attempt,) = project.evals("cell", "show", cell["cell"])["attempts"]
    assert (cell["state"], cell["score"], attempt["evidence"]["setup"]["warm"]) == ("done", 1.0, True)
    assert attempt["evidence"]["secrets"].keys() == {"MODEL_KEY"} and attempt["evidence"]["modal_secret"]["name"] == name
    assert project.evals("image", "gc", "--backend", "modal")["removed"] == []
    assert [one["name"] for one in modal_server.sandboxes(APP) if one["alive"]] == []
