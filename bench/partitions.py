"""The UI's page of one partitioned asset: N cells registered and materialized as the product does it, then the page's own queries.

    python bench/partitions.py [--cells 2000 20000] [--failed 100]

A Dagster on an embedded Postgres as `evals up` sets it up. Partitions are added and events are written by the product's own functions;
no sandbox runs. Then `dagster dev` is started as `evals up` starts it, and GraphQL is asked what the asset's page, its dialog to launch a
backfill and the list of a partition's events ask. cold: the first answer after the start, or after a further event, which Dagster takes
up into its own cache first; warm: the median of five more.

Prints one JSON line, and a table on standard error, in ms of wall: name the machine's load with them (load1). bare is a query that
answers nothing (`{ version }`), the floor of any.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from eval_pipeline.cli.up import _start
from eval_pipeline.defs.events import BATCH, CELL_RESULTS, CellEvents, Described
from eval_pipeline.defs.home import prepare_home
from eval_pipeline.defs.partitions import CELLS, add_partitions
from eval_pipeline.settings import Settings
from eval_pipeline.store.postgres import embedded_server
from eval_pipeline.store.records import Records, open_records

KEY = {"path": ["cell_results"]}
QUERIES: dict[str, str] = {
    "bare": "query Bare { version }",
    "PartitionHealthQuery": """query PartitionHealthQuery($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
      id partitionKeysByDimension { name type partitionKeys } assetPartitionStatuses { ... on DefaultPartitionStatuses {
      materializedPartitions materializingPartitions failedPartitions } } } } }""",
    "FullPartitionsQuery": """query FullPartitionsQuery($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
      id partitionKeysByDimension { name type partitionKeys } } } }""",
    "LatestAssetPartitionsQuery": """query LatestAssetPartitionsQuery($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) {
      ... on AssetNode { id partitionKeyConnection(limit: 100, ascending: false) { results } } } }""",
    "AssetPartitionDetailQuery": """query AssetPartitionDetailQuery($key: AssetKeyInput!, $partition: String!) {
      assetOrError(assetKey: $key) { ... on Asset { id definition { id opNames latestRunForPartition(partition: $partition) { id } }
      assetEventHistory(partitions: [$partition], limit: 1000, eventTypeSelectors: [MATERIALIZATION, OBSERVATION]) {
      results { ... on MaterializationEvent { runId timestamp } } } } } }""",
    "AssetPartitionStaleQuery": """query AssetPartitionStaleQuery($key: AssetKeyInput!, $partition: String!) {
      assetNodeOrError(assetKey: $key) { ... on AssetNode { id staleStatus(partition: $partition)
      staleCauses(partition: $partition) { reason category } } } }""",
}
STATUS = "PartitionHealthQuery"


def dagster_instance(environment: dict[str, str]) -> dg.DagsterInstance:
    os.environ.update(environment)
    return dg.DagsterInstance.get()


def described(keys: Sequence[str]) -> Described:
    metadata = {"score": 0.5, "cost_usd": 0.01, "latency_s": 12.5, "outcome": "ok"}
    return [(dg.AssetMaterialization(CELL_RESULTS, partition=key, metadata=metadata), 0) for key in keys]


def materialize(instance: dg.DagsterInstance, records: Records, keys: list[str], failed: Sequence[str]) -> None:
    """A run whose op writes through the product's writer, and which fails, as the product's does, when cells failed."""

    @dg.op
    def cells(context) -> None:  # Dagster reads the type itself, and here it would be text
        with CellEvents(context, records.ledger, described) as events:
            for key in keys:
                events.put(key)
        events.failed(failed)
        if failed:
            raise dg.Failure(f"{len(failed)} cells failed", allow_retries=False)

    @dg.job(name="bench", config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}})
    def job() -> None:
        cells()

    assert job.execute_in_process(instance=instance, raise_on_error=False).success == (not failed)


class Ui:
    def __init__(self, environment: dict[str, str], settings: Settings) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._process = _start(environment, settings, self.port)
        deadline = time.monotonic() + 300
        while True:
            try:
                self.ask("query L { workspaceOrError { ... on Workspace { locationEntries { loadStatus } } } }")
                return
            except OSError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    self.stop()
                    raise
                time.sleep(1)

    def ask(self, query: str, **variables: Any) -> tuple[float, Any]:
        """ms, and what was said."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/graphql", body, {"Content-Type": "application/json"})
        started = time.monotonic()
        with urllib.request.urlopen(request, timeout=300) as answer:
            data = json.load(answer)
        if data.get("errors"):
            sys.exit(f"the UI refused {query[:60]}: {data['errors']}")
        return (time.monotonic() - started) * 1e3, data["data"]

    def stop(self) -> None:
        os.killpg(self._process.pid, signal.SIGINT)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def timed(ui: Ui, partition: str) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for name, query in QUERIES.items():
        variables = {"key": KEY} if "$key" in query else {}
        variables |= {"partition": partition} if "$partition" in query else {}
        cold, *warm = [ui.ask(query, **variables)[0] for _ in range(6)]
        found[name] = {"cold": round(cold), "warm": round(statistics.median(warm))}
    return found


def counted(ui: Ui) -> tuple[int, int, int]:
    """Partitions, materialized, failed: as the page has them."""
    _, data = ui.ask(QUERIES[STATUS], key=KEY)
    node = data["assetNodeOrError"]
    (dimension,) = node["partitionKeysByDimension"]
    statuses = node["assetPartitionStatuses"]
    return len(dimension["partitionKeys"]), len(statuses["materializedPartitions"]), len(statuses["failedPartitions"])


def level(root: Path, n_cells: int, n_failed: int) -> dict[str, Any]:
    settings = Settings(state_dir=root / f"state-{n_cells}", worlds_dir=root / "worlds_src")
    keys = [f"big-{n // 2000:012x}/w.c{n % 400:03}/a{n % 5}/{n}" for n in range(n_cells)]
    with embedded_server(settings) as url, open_records(settings) as records:
        environment = prepare_home(settings, url)
        with dagster_instance(environment) as instance:
            started = time.monotonic()
            add_partitions(instance, CELLS, keys)
            materialize(instance, records, keys[: n_cells - n_failed], keys[n_cells - n_failed :])
            written_s = time.monotonic() - started
            ui = Ui(environment, settings)
            try:
                queries = timed(ui, keys[n_cells // 2])
                materialize(instance, records, keys[:BATCH], [])
                queries["after 100 more events"] = {
                    "cold": round(ui.ask(QUERIES[STATUS], key=KEY)[0]),
                    "warm": queries[STATUS]["warm"],
                }
                partitions, materialized, failed = counted(ui)
            finally:
                ui.stop()
    return {
        "cells": partitions,
        "materialized": materialized,
        "failed": failed,
        "written_s": round(written_s, 1),
        "load1": round(os.getloadavg()[0], 1),
        "ms": queries,
    }


def table(levels: list[dict[str, Any]]) -> str:
    heads = [f"{one['cells']:>8} cold     warm" for one in levels]
    lines = [f"{'ms':28}" + "   ".join(heads)]
    for name in levels[0]["ms"]:
        lines.append(f"{name:28}" + "   ".join(f"{one['ms'][name]['cold']:>13} {one['ms'][name]['warm']:>8}" for one in levels))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, nargs="+", default=[2000, 20000])
    parser.add_argument("--failed", type=int, default=100)
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="evp-", dir="/tmp"))
    root.chmod(0o711)
    (root / "worlds_src").mkdir()
    try:
        levels = [level(root, n_cells, options.failed) for n_cells in options.cells]
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(table(levels), file=sys.stderr)
    print(json.dumps({"levels": levels}))


if __name__ == "__main__":
    main()
