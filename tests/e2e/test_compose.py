"""An app of containers on Modal: a real engine in a virtual machine of the loopback server, images from nothing, no registry in reach."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from support.container_engine import unpack
from support.modal_loopback import LoopbackModal, loopback_modal
from support.places import short_dir
from support.project import EVALS, Project

pytestmark = pytest.mark.long
APP = "compose"

# Static busybox is all that an image FROM scratch holds
BUILD = "#!/bin/sh\nset -e\nmkdir -p tiny\ncp /usr/bin/busybox tiny/\n"
TINY = """FROM scratch
COPY busybox /bin/busybox
COPY busybox /bin/sh
COPY busybox /bin/httpd
COPY busybox /bin/wget
"""
HEALTHY = '{test: ["CMD", "wget", "-q", "-O", "/dev/null", "http://127.0.0.1/up"], interval: 1s, timeout: 2s, retries: 20}'
SERVE = "exec httpd -f -p 80 -h /www"
FILE = f"""version: "3.8"
services:
  store:
    image: tiny:1
    build: tiny
    command: ["/bin/sh", "-c", "busybox mkdir /www; echo from-the-store >/www/up; {SERVE}"]
    healthcheck: {HEALTHY}
  web:
    image: tiny:1
    build: tiny
    depends_on: [store]
    ports: ["127.0.0.1:8080:80"]
    command:
    - /bin/sh
    - -c
    - busybox mkdir /www; until wget -q -O /www/up http://store/up; do busybox sleep 0.2; done; echo web has what the store has; {SERVE}
    healthcheck: {HEALTHY}
"""
MANIFEST: dict[str, Any] = {
    "image": {"dockerfile": "Dockerfile"},
    "build": ["bin/build"],
    "services": {"compose": "docker-compose.yml", "agent_engine": True, "ready_timeout_s": 90},
    "resources": {"memory_mib": 2048},
}
FETCH = """fetch() { python3 -c 'import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=5).read().decode())' "$1"; }
"""

AGENT = f"""{FETCH}
soon() {{ n=0; until "$@" 2>/dev/null; do n=$((n + 1)); [ $n -lt 50 ] || exit 1; sleep 0.1; done; }}
has() {{ [ "$(fetch "$1")" = from-the-store ]; }}
set -ex
has http://127.0.0.1:8080/up
docker run -d --name extra --network app_default -p 127.0.0.1::80 tiny:1 /bin/sh -c \\
  'busybox mkdir /www; wget -q -O /www/x http://web/up; {SERVE}'
port=$(docker port extra 80/tcp | head -n 1)
soon has "http://$port/x"
echo "its own container answers at $port"
! docker pull alpine
grep fuse.fuse-overlayfs /proc/mounts
docker info --format '{{{{.Driver}}}}'
answer yes
"""


@pytest.fixture(scope="module")
def engine_server() -> Generator[LoopbackModal]:
    if os.getuid() != 0:
        pytest.skip("the loopback Modal serves as root")
    before = dict(os.environ)
    with short_dir() as folder, loopback_modal(folder, options=["--programs", str(unpack(folder))]) as server:
        os.environ.update(server.env)
        yield server
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def root(engine_server: LoopbackModal) -> Generator[Path]:
    with short_dir() as folder:
        yield folder


@pytest.fixture
def project(engine_server: LoopbackModal, shared_state: Path) -> Generator[Project]:
    with short_dir() as root:
        made = Project(root, shared_state, {"EVALS_MODAL_APP": APP, "EVALS_MODAL_CREATES_PER_S": "50"})
        made.case(limits={"wall_s": 120})
        yield made
        assert [one["name"] for one in engine_server.sandboxes(APP) if one["alive"] or one["folder"]] == []
        assert groups() == []


def groups() -> list[str]:
    return [str(path) for path in Path("/sys/fs/cgroup").rglob("evals-loopback-*")]


def app(project: Project, agent: str, file: str = FILE, **services: Any) -> None:
    project.manifest(**{**MANIFEST, "services": {**MANIFEST["services"], **services}})
    project.commit({"Dockerfile": "FROM debian:12\n", "tiny/Dockerfile": TINY, "docker-compose.yml": file, "bin/build": BUILD})
    project.agent(agent)


def run(project: Project, name: str, check: bool = True) -> dict[str, Any]:
    project.experiment(name, backend="modal")
    project.run(name, check=check, timeout_s=400)
    (row,) = [one for one in project.evals("experiment", "list") if one["experiment"].startswith(f"{name}-")]
    (cell,) = project.cells(row["experiment"])
    return cell


def logs(project: Project, cell: dict[str, Any]) -> dict[str, str]:
    return {name.removeprefix("logs/"): text for name, text in project.evals("cell", "logs", cell["cell"])["logs"].items()}


def test_services_a_container_of_the_agent_and_their_logs(project: Project) -> None:
    app(project, AGENT)
    cell = run(project, "whole")
    said = logs(project, cell)
    assert (cell["score"], cell["attempts"][0]["outcome"]) == (1.0, "ok"), said
    agent = said["agent.stdout"]
    assert "its own container answers at 127.0.0.1:" in agent
    assert "fuse.fuse-overlayfs" in agent  # each container stands on a FUSE mount
    assert "proxyconnect" in said["agent.stderr"]  # what `docker pull` came upon
    assert "web has what the store has" in said["service.app_web_1.stdout"]
    assert {"service.app_store_1.stdout", "service.extra.stdout", "engine.stderr", "up.stderr"} <= said.keys()
    evidence = project.evals("cell", "show", cell["cell"])["attempts"][0]["evidence"]
    assert sorted(evidence["services_logged"]) == ["app_store_1", "app_web_1", "extra"]
    assert "down_error" not in evidence


def test_an_agent_without_leave_has_no_engine_and_a_dead_service_is_the_app(project: Project) -> None:
    dies = "busybox sleep 8; echo the web gives up; exit 3"
    file = FILE.replace(f"echo web has what the store has; {SERVE}", f"httpd -p 80 -h /www; {dies}")
    app(
        project,
        "docker ps >/out/files 2>&1 && answer no; sleep 20; test -w /run/docker.sock || exit 9\n",
        file,
        agent_engine=False,
    )
    cell = run(project, "dies", check=False)
    said = logs(project, cell)
    (attempt,) = cell["attempts"]
    assert attempt["outcome"] == "agent_error", said
    assert "the service web ended with code 3" in attempt["error"]
    assert "the web gives up" in attempt["error"]
    assert "the web gives up" in said["service.app_web_1.stdout"]


def test_a_service_that_never_is_healthy_is_named(project: Project) -> None:
    app(
        project,
        "answer yes\n",
        FILE.replace("until wget -q -O /www/up http://store/up; do busybox sleep 0.2; done", ":"),
        ready_timeout_s=15,
    )
    cell = run(project, "sick", check=False)
    assert {attempt["outcome"] for attempt in cell["attempts"]} == {"infra_failure"}
    assert "app_web_1 running" in cell["attempts"][0]["error"], cell


def test_the_doctor_sees_whether_containers_start(engine_server: LoopbackModal, shared_state: Path) -> None:
    command = [*EVALS, "doctor", "--backend", "modal", "--try", "containers"]
    env = {**os.environ, "EVALS_STATE_DIR": str(shared_state), "EVALS_MODAL_APP": "doctor-engine"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a container ran on its own network" in done.stdout
    assert "cgroup v2; packet filter works; FUSE is there" in done.stdout
