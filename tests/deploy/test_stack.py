"""The commands and health checks of compose.yaml as processes here, with their own environment, a real Postgres and an S3 server."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
from support.aws import aws_server
from support.compose_file import DEPLOY, FILLED, REPOSITORY, rendered
from support.project import Project

from eval_pipeline.defs.home import prepare_home
from eval_pipeline.gateway.client import stop as stop_gateway
from eval_pipeline.settings import Settings

_LAUNCH = """mutation L($p: ExecutionParams!) { launchPipelineExecution(executionParams: $p) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
_STATUS = "query R($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"
_AWS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Stack:
    """The services but Postgres, as `docker compose up` starts them, on loopback ports of their own."""

    def __init__(self, folder: Path, project: Project, empty_database_url: str, s3: str) -> None:
        self.project = project
        self.log = folder / "log"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.ports = {"4000": str(free_port()), "3000": str(free_port())}
        self.services: dict[str, dict[str, Any]] = rendered(folder, {**FILLED, **_AWS})["services"]
        self.workspace = folder / "workspace.yaml"
        self.workspace.write_text((DEPLOY / "workspace.yaml").read_text().replace("4000", self.ports["4000"]))
        self.home = folder / "home"
        self.home.mkdir()
        (self.home / "dagster.yaml").write_bytes((DEPLOY / "dagster.yaml").read_bytes())
        url = prepare_home(
            Settings(state_dir=folder / "unused", worlds_dir=folder, postgres_url=empty_database_url), empty_database_url
        )
        self.here = {
            "EVALS_POSTGRES_URL": url["EVALS_POSTGRES_URL"],
            "EVALS_CODE_HOST": "127.0.0.1",
            "EVALS_STATE_DIR": str(project.state_dir),
            "EVALS_WORLDS_DIR": str(project.worlds),
            "EVALS_WEBHOOK_URL": "",
            "EVALS_SECRETS_AWS_PREFIX": "",
            "DAGSTER_HOME": str(self.home),
            "AWS_ENDPOINT_URL": s3,
            "NO_PROXY": "127.0.0.1",
            "PATH": f"{REPOSITORY / '.venv/bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
        }

    def here_of(self, words: list[str]) -> list[str]:
        line = "\0".join(words).replace("0.0.0.0", "127.0.0.1").replace("/opt/evals/deploy/workspace.yaml", str(self.workspace))
        for port, own in self.ports.items():
            line = line.replace(port, own)
        return line.split("\0")

    def env(self, name: str) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("EVALS_", "AWS_", "MODAL_", "DAGSTER_"))}
        return {**kept, **self.services[name]["environment"], **self.here}

    def start(self, name: str) -> None:
        with self.log.open("ab") as sink:
            command = self.here_of(self.services[name]["command"])
            self.processes[name] = subprocess.Popen(command, env=self.env(name), cwd=self.project.root, stdout=sink, stderr=sink)

    def healthy(self, name: str) -> bool:
        kind, *command = self.services[name]["healthcheck"]["test"]
        assert kind == "CMD"
        assert self.processes[name].poll() is None, self.said()
        return subprocess.run(self.here_of(command), env=self.env(name), capture_output=True, check=False).returncode == 0

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-6000:] + self.project.logs()

    def wait_for(self, condition: Callable[[], Any], what: str, timeout_s: float = 120) -> Any:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if found := condition():
                return found
            time.sleep(0.5)
        raise AssertionError(f"waited {timeout_s} s in vain for {what}\n{self.said()}")

    def graphql(self, query: str, **variables: Any) -> Any:
        body = json.dumps({"query": query, "variables": variables}).encode()
        url = f"http://127.0.0.1:{self.ports['3000']}/graphql"
        with urllib.request.urlopen(
            urllib.request.Request(url, body, {"Content-Type": "application/json"}), timeout=60
        ) as answer:
            data = json.load(answer)
        assert not data.get("errors"), data["errors"]
        return data["data"]

    def launch(self, job: str, config: dict[str, Any]) -> str:
        selector = {
            "pipelineName": job,
            "repositoryName": "__repository__",
            "repositoryLocationName": "eval_pipeline.definitions",
        }
        answer = self.graphql(_LAUNCH, p={"selector": selector, "runConfigData": config})["launchPipelineExecution"]
        assert answer["__typename"] == "LaunchRunSuccess", answer
        return answer["run"]["runId"]

    def status(self, run_id: str) -> str:
        return self.graphql(_STATUS, id=run_id)["runOrError"]["status"]

    def stop(self) -> None:
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in reversed(self.processes.values()):
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def running(folder: Path, empty_database_url: str) -> Generator[tuple[Stack, Any]]:
    with ExitStack() as stack:
        s3 = stack.enter_context(aws_server())
        client = boto3.client("s3", endpoint_url=s3, aws_access_key_id="t", aws_secret_access_key="t", region_name="us-east-1")
        for bucket in ("artifacts", "logs"):
            client.create_bucket(Bucket=bucket)
        (folder / "project").mkdir()
        project = Project(folder / "project", folder / "state")
        services = Stack(folder, project, empty_database_url, s3)
        stack.callback(stop_gateway, project.state_dir)
        stack.callback(services.stop)
        services.start("code")
        services.wait_for(lambda: services.healthy("code"), "the code server to be healthy")
        for name in ("daemon", "webserver"):
            services.start(name)
        for name in ("webserver", "daemon"):
            services.wait_for(lambda name=name: services.healthy(name), f"the {name} to be healthy")
        yield services, client


def keys(client: Any, bucket: str) -> list[str]:
    return [item["Key"] for item in client.list_objects_v2(Bucket=bucket).get("Contents", [])]


@pytest.mark.long
def test_an_experiment_that_the_ui_starts(state_dir: Path, empty_database_url: str) -> None:
    with running(state_dir, empty_database_url) as (stack, s3):
        stack.project.case()
        stack.project.agent("answer yes")
        stack.project.experiment("small", trials=2)
        run = stack.launch(
            "start_experiment", {"ops": {"start_due": {"config": {"file": "small.yaml", "due": "2026-01-01T00:00:00Z"}}}}
        )
        ended = stack.wait_for(lambda: (s := stack.status(run)) in ("SUCCESS", "FAILURE", "CANCELED") and s, "the run to end")
        assert ended == "SUCCESS", stack.said()
        assert keys(s3, "artifacts") != []
        written = stack.wait_for(lambda: [key for key in keys(s3, "logs") if run in key], "the run's log to be in its bucket")
        assert all(key.startswith("compute-logs/") for key in written)
        # Read-only in the image; the webserver's empty folders for telemetry are made only where they can be.
        assert [path.name for path in stack.home.rglob("*") if path.is_file()] == ["dagster.yaml"]
