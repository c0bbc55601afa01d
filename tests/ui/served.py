"""`evals up` for a project, spoken to as its users do: GraphQL, as the browser does, and the ledger through the CLI."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterable, Mapping
from typing import Any

from support.project import Project

_STATUSES = """query S($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode { assetPartitionStatuses {
  ... on DefaultPartitionStatuses { materializedPartitions failedPartitions unmaterializedPartitions materializingPartitions } } } } }"""
_LAUNCH = """mutation L($p: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $p) {
  __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""
_BACKFILL = """query B($id: String!) { partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill { status error { message }
  runs(limit: 5000) { id status pipelineName tags { key value } } } } }"""
_RUNS = """query R($filter: RunsFilter) { runsOrError(filter: $filter) { ... on Runs { results { id status pipelineName startTime tags { key value } } } } }"""
_LAUNCH_RUN = """mutation L($p: ExecutionParams!) { launchPipelineExecution(executionParams: $p) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
_CANCEL = """mutation C($id: String!) { cancelPartitionBackfill(backfillId: $id) { __typename } }"""
_TERMINATE = """mutation T($id: String!) { terminateRun(runId: $id) { __typename } }"""
_HEALTH = "{ instance { daemonHealth { allDaemonStatuses { daemonType required healthy } } } }"
_SENSORS = """{ sensorsOrError(repositorySelector: {repositoryName: "__repository__", repositoryLocationName: "eval_pipeline.definitions"}) {
  ... on Sensors { results { name id sensorState { id status selectorId } } } } }"""
_STOP_SENSOR = "mutation S($id: String!) { stopSensor(id: $id) { __typename ... on PythonError { message } } }"


class Served:
    def __init__(self, project: Project) -> None:
        self.project = project
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = project.start("up", "--port", str(self.port))
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)

    def wait_ready(self) -> None:
        self.wait_for(self._answers, "the UI to answer", 120)

    def _answers(self) -> bool:
        assert self.process.poll() is None, f"evals up ended: {self.said}\n{self.project.logs()}"
        try:
            return self.required_daemons() != {}
        except (OSError, KeyError):
            return False

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """The exit code and what was said on the way."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            code = self.process.wait(90)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self._reader.join()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return code, "".join(self.said)

    def graphql(self, query: str, **variables: Any) -> Any:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            data = json.load(answer)
        assert not data.get("errors"), data["errors"]
        return data["data"]

    def required_daemons(self) -> dict[str, bool]:
        found = self.graphql(_HEALTH)["instance"]["daemonHealth"]["allDaemonStatuses"]
        return {daemon["daemonType"]: daemon["healthy"] for daemon in found if daemon["required"]}

    def sensors(self) -> dict[str, dict[str, Any]]:
        return {sensor["name"]: sensor["sensorState"] for sensor in self.graphql(_SENSORS)["sensorsOrError"]["results"]}

    def stop_sensor(self, name: str) -> None:
        answer = self.graphql(_STOP_SENSOR, id=self.sensors()[name]["id"])["stopSensor"]
        assert answer["__typename"] == "StopSensorMutationResult", answer

    def statuses(self, experiment: str, asset: str = "cell_results") -> dict[str, str]:
        """Partition -> materialized, failed, missing or materializing, as the partitions page shows it."""
        mine = (experiment, f"{experiment}/")
        return {key: status for key, status in self.statuses_of_all(asset).items() if key == mine[0] or key.startswith(mine[1])}

    def statuses_of_all(self, asset: str) -> dict[str, str]:
        node = self.graphql(_STATUSES, key={"path": [asset]})["assetNodeOrError"]["assetPartitionStatuses"]
        lists = {
            "missing": node["unmaterializedPartitions"],
            "materialized": node["materializedPartitions"],
            "failed": node["failedPartitions"],
            "materializing": node["materializingPartitions"],
        }
        return {key: status for status, keys in lists.items() for key in keys}

    def backfill(self, keys: Iterable[str], asset: str = "cell_results") -> str:
        params = {"assetSelection": [{"path": [asset]}], "partitionNames": list(keys)}
        answer = self.graphql(_LAUNCH, p=params)["launchPartitionBackfill"]
        assert answer["__typename"] == "LaunchBackfillSuccess", answer
        return answer["backfillId"]

    def job_backfill(self, job: str, keys: Iterable[str]) -> str:
        repository = {"repositoryName": "__repository__", "repositoryLocationName": "eval_pipeline.definitions"}
        selector = {"partitionSetName": f"{job}_partition_set", "repositorySelector": repository}
        answer = self.graphql(_LAUNCH, p={"selector": selector, "partitionNames": list(keys)})["launchPartitionBackfill"]
        assert answer["__typename"] == "LaunchBackfillSuccess", answer
        return answer["backfillId"]

    def launch(self, job: str, partition: str) -> str:
        """One run of a job for one partition, as the Launchpad asks for it; returns the run's id."""
        repository = {"repositoryName": "__repository__", "repositoryLocationName": "eval_pipeline.definitions"}
        tags = [{"key": "dagster/partition", "value": partition}]
        params = {"selector": {"pipelineName": job, **repository}, "executionMetadata": {"tags": tags}, "runConfigData": {}}
        answer = self.graphql(_LAUNCH_RUN, p=params)["launchPipelineExecution"]
        assert answer["__typename"] == "LaunchRunSuccess", answer
        return answer["run"]["runId"]

    def state_of(self, backfill: str) -> dict[str, Any]:
        return self.graphql(_BACKFILL, id=backfill)["partitionBackfillOrError"]

    def runs_of(self, backfill: str) -> list[dict[str, Any]]:
        return self.state_of(backfill)["runs"]

    def wait_backfill(self, backfill: str, timeout_s: float = 300) -> dict[str, Any]:
        """The backfill once it has ended."""
        return self.wait_for(lambda: _ended(self.state_of(backfill)), f"backfill {backfill} to end", timeout_s)

    def runs(self, job: str) -> list[dict[str, Any]]:
        return self.graphql(_RUNS, filter={"pipelineName": job})["runsOrError"]["results"]

    def run_status(self, run_id: str) -> str:
        return self.graphql(_RUNS, filter={"runIds": [run_id]})["runsOrError"]["results"][0]["status"]

    def cancel_backfill(self, backfill: str) -> None:
        self.graphql(_CANCEL, id=backfill)

    def terminate(self, run_id: str) -> None:
        self.graphql(_TERMINATE, id=run_id)

    def wait_for(self, condition: Any, what: str, timeout_s: float = 60) -> Any:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if found := condition():
                return found
            time.sleep(0.3)
        raise AssertionError(f"waited {timeout_s} s in vain for {what}\n{self.project.logs()}")


def tag(run: Mapping[str, Any], key: str) -> str | None:
    return next((item["value"] for item in run["tags"] if item["key"] == key), None)


def _ended(backfill: dict[str, Any]) -> dict[str, Any] | None:
    return backfill if backfill["status"] not in ("REQUESTED", "CANCELING", "FAILING") else None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
