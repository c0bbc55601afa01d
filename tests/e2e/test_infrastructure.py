"""Who decides what was the platform's fault, and what a signal to the engine costs."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from support.project import Project

from eval_pipeline.gateway.client import ensure_gateway
from eval_pipeline.sandbox.local import launch
from eval_pipeline.sandbox.local.limits import find_groups
from eval_pipeline.sandbox.local.places import prepare

pytestmark = pytest.mark.slow

CALL_OUT = """#!/usr/bin/env python3
import json, os, pathlib, urllib.request
out = pathlib.Path(os.environ["EVALS_OUTPUT"])
try:
    urllib.request.urlopen("http://nowhere.invalid:80/", timeout=5)
except OSError as error:
    (out / "result.json").write_text(json.dumps({"status": "error", "answer": None, "error": f"provider: {error}"}))
"""


def running(project: Project, name: str, count: int) -> None:
    project.wait_for(lambda: project.evals("experiment", "status", name)["states"].get("running") == count)


@pytest.mark.long
def test_a_lost_sandbox_is_our_fault_and_the_cell_is_tried_again(project: Project) -> None:
    project.agent("sleep 12; answer yes")
    project.case()
    project.experiment("lost")
    name = project.evals("experiment", "run", "lost")["experiment"]
    running(project, name, 1)
    sandbox = project.cells(name)[0]["attempts"][0]["sandbox"]
    inmate = launch.inmate(Path(prepare(project.state_dir).scratch) / sandbox)
    assert inmate is not None
    os.kill(inmate.pid, signal.SIGKILL)
    project.wait_for(lambda: project.evals("experiment", "status", name)["status"] == "done")
    (cell,) = project.cells(name)
    assert [attempt["outcome"] for attempt in cell["attempts"]] == ["infra_failure", "ok"]
    assert "SandboxLost" in cell["attempts"][0]["error"]
    assert cell["score"] == 1.0
    assert project.evals("sandbox", "list") == []


@pytest.mark.long
def test_a_sandbox_lost_at_its_own_limit_is_the_agents_fault(project: Project) -> None:
    if "memory" not in find_groups().parents:
        pytest.skip("no control groups can be made here")
    project.agent("/usr/bin/python3 -c 'x = bytearray(900 << 20)'; echo hit >$EVALS_OUTPUT/hit; sleep 60; answer yes")
    project.manifest(resources={"cpu": 1.0, "memory_mib": 64, "disk_mib": 16})
    project.commit({})
    project.case()
    project.experiment("starved")
    name = project.evals("experiment", "run", "starved")["experiment"]
    running(project, name, 1)
    home = Path(prepare(project.state_dir).scratch) / project.cells(name)[0]["attempts"][0]["sandbox"]
    project.wait_for((home / "disk" / "out" / "hit").exists)
    inmate = launch.inmate(home)
    assert inmate is not None
    os.kill(inmate.pid, signal.SIGKILL)
    project.wait_for(lambda: project.evals("experiment", "status", name)["status"] == "done")
    (cell,) = project.cells(name)
    assert [attempt["outcome"] for attempt in cell["attempts"]] == ["agent_error"]
    assert cell["attempts"][0]["error"].startswith("out of memory: limit 64 MiB; ended with code unknown")


@pytest.mark.long
def test_a_dial_failure_seen_by_the_proxy_is_no_agent_error(project: Project) -> None:
    project.commit({"bin/agent": CALL_OUT})
    project.manifest(egress=["nowhere.invalid:80"])
    project.commit({})
    project.case()
    project.experiment("dial")
    assert project.run("dial", check=False)["data"]["n_failed"] == 1
    (cell,) = project.cells("dial")
    assert [attempt["outcome"] for attempt in cell["attempts"]] == ["infra_failure"] * 4
    assert "the proxy could not reach nowhere.invalid:80" in cell["attempts"][0]["error"]
    assert cell["score"] is None


@pytest.mark.long
def test_what_the_allowlist_refuses_is_the_agents_own_error(project: Project) -> None:
    project.commit({"bin/agent": CALL_OUT})
    project.manifest(egress=["elsewhere.invalid:80"])
    project.commit({})
    project.case()
    project.experiment("denied")
    project.run("denied")
    (cell,) = project.cells("denied")
    assert (cell["outcome"], len(cell["attempts"]), cell["score"]) == ("agent_error", 1, 0.0)
    evidence = project.evals("cell", "show", cell["cell"])["attempts"][0]["evidence"]
    refused = {"host": "nowhere.invalid", "port": 80, "reason": "nowhere.invalid:80 is not in the egress list", "count": 1}
    assert (evidence["egress_refused_count"], evidence["egress_refused"]) == (1, [refused])


CALL_FOR_A_WHILE = """#!/bin/sh
for i in $(seq 60); do
  if ! curl -sSf -m 5 http://model-stand-in/v1/models >/dev/null; then
    printf '{"status": "error", "answer": null, "error": "provider: unreachable"}' >$EVALS_OUTPUT/result.json; exit 0
  fi
  echo x >>$EVALS_OUTPUT/calls; sleep 0.2
done
printf '{"status": "ok", "answer": "yes"}' >$EVALS_OUTPUT/result.json
"""


@pytest.mark.long
def test_an_outage_of_the_proxy_is_no_agent_error(project: Project) -> None:
    project.commit({"bin/agent": CALL_FOR_A_WHILE})
    project.manifest(egress=["model-stand-in:80"])
    project.commit({})
    project.case()
    project.experiment("outage")
    name = project.evals("experiment", "run", "outage")["experiment"]
    running(project, name, 1)
    home = Path(prepare(project.state_dir).scratch) / project.cells(name)[0]["attempts"][0]["sandbox"]
    project.wait_for((home / "disk" / "out" / "calls").exists)
    os.kill(ensure_gateway(project.state_dir).pid(), signal.SIGKILL)
    project.wait_for(lambda: project.evals("experiment", "status", name)["status"] == "done")
    (cell,) = project.cells(name)
    assert [attempt["outcome"] for attempt in cell["attempts"]] == ["infra_failure", "ok"]
    assert "the egress proxy was down during the attempt" in cell["attempts"][0]["error"]
    assert cell["score"] == 1.0


@pytest.mark.long
def test_sigterm_drains_and_the_next_engine_adopts(project: Project) -> None:
    project.agent("echo s >> $EVALS_OUTPUT/starts; sleep 6; answer yes")
    project.case()
    project.experiment("drained", trials=2)
    name = project.evals("experiment", "run", "drained")["experiment"]
    running(project, name, 2)
    (pid,) = project.engine_pids(name)
    os.kill(pid, signal.SIGTERM)
    project.wait_for(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split(")")[1][:3])
    assert [row["owner"] for row in project.evals("sandbox", "list")] == ["attempt"] * 2
    project.run("drained")
    assert [(cell["outcome"], len(cell["attempts"])) for cell in project.cells(name)] == [("ok", 1)] * 2
    assert project.evals("sandbox", "list") == []


def test_the_reaper_ends_only_what_nobody_owns(project: Project) -> None:
    import asyncio

    from eval_pipeline.sandbox.base import SandboxSpec
    from eval_pipeline.sandbox.local.backend import LocalBackend
    from eval_pipeline.settings import Settings
    from eval_pipeline.store.records import open_records

    settings = Settings(state_dir=project.state_dir, worlds_dir=project.worlds)
    with open_records(settings) as records:
        ours = records.ledger.installation_id()

    async def make(name: str, installation: str) -> None:
        backend = LocalBackend(installation, project.state_dir)
        await backend.get_or_create(SandboxSpec(name=name, installation=installation))

    async def end(name: str, installation: str) -> None:
        sandbox = await LocalBackend(installation, project.state_dir).find(name)
        assert sandbox is not None and await sandbox.alive()
        await sandbox.terminate()

    asyncio.run(make("e-left", ours))
    asyncio.run(make("e-foreign", "somebody-else"))
    try:
        owners = {row["sandbox"]: row["owner"] for row in project.evals("sandbox", "list")}
        assert owners == {"e-left": "nobody", "e-foreign": "somebody-else"}
        reaped = project.evals("sandbox", "reap")
        assert reaped == {"reaped": ["e-left"], "waiting": [], "foreign": ["e-foreign"], "leaked_sandboxes": 0, "dry_run": False}
    finally:
        asyncio.run(end("e-foreign", "somebody-else"))


@pytest.mark.long
@pytest.mark.skipif(os.getuid() != 0, reason="needs root to make a small file system")
def test_a_full_artifact_store_costs_attempts_not_results(lone_project: Project) -> None:
    lone_project.agent("echo s >> $EVALS_OUTPUT/starts; head -c 3000000 /dev/urandom > $EVALS_OUTPUT/noise; answer yes")
    lone_project.case()
    lone_project.experiment("full")
    artifacts = lone_project.state_dir / "artifacts"
    artifacts.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(artifacts)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        assert lone_project.run("full", check=False)["exit_code"] == 1
        (cell,) = lone_project.cells("full")
        assert (cell["state"], cell["score"]) == ("failed", None)
        assert [attempt["outcome"] for attempt in cell["attempts"]] == ["infra_failure"] * 4
        assert "can't be stored" in cell["attempts"][0]["error"] and "the disk is full" in cell["attempts"][0]["error"]
        assert lone_project.evals("sandbox", "list") == []
        subprocess.run(["mount", "-o", "remount,size=64m", str(artifacts)], check=True)
        lone_project.run("full")
        (cell,) = lone_project.cells("full")
        assert (cell["outcome"], cell["score"], len(cell["attempts"])) == ("ok", 1.0, 5)
    finally:
        subprocess.run(["umount", str(artifacts)], check=True)
