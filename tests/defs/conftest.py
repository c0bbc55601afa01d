"""A project run by the real CLI, and Dagster's own instance on the same Postgres to look at what the CLI left there."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.clusters import with_cluster
from support.places import short_dir
from support.project import Project

from eval_pipeline.gateway.client import stop
from eval_pipeline.settings import load_settings
from eval_pipeline.store.postgres import embedded_server
from eval_pipeline.store.records import Records, open_records

if TYPE_CHECKING:
    import dagster as dg

# Dagster asks pydantic for names that pydantic has renamed, and gives its own sensors' copies a parameter that it calls beta.
DAGSTER_WARNINGS = (
    "ignore:The `__fields__` attribute is deprecated",
    "ignore:Parameter `owners` of initializer `SensorDefinition",
)

AGENT = """
grep -q slow "$EVALS_CASE" && sleep 30
echo s >> "$EVALS_OUTPUT/starts"
answer yes
"""
RESTORE = """#!/bin/sh
[ -f /world/documents/broken.txt ] && { echo "no such table: matters" >&2; exit 4; }
exit 0
"""


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(*DAGSTER_WARNINGS))


@pytest.fixture(scope="session")
def shared_state() -> Generator[Path]:
    with short_dir() as folder:
        state = with_cluster(folder / "state")
        yield state
        stop(state)


class Bench:
    """A project with its Dagster instance and its ledger."""

    def __init__(self, project: Project, instance: dg.DagsterInstance, records: Records) -> None:
        self.project = project
        self.instance = instance
        self.records = records

    def statuses(self, experiment: str) -> dict[str, str]:
        """Cell -> materialized, failed, missing or in_progress, as Dagster's own resolution has it."""
        import dagster as dg

        from eval_pipeline.defs.partitions import CELLS

        keys = [key for key in self.instance.get_dynamic_partitions("cells") if key.startswith(f"{experiment}/")]
        found = self.instance.get_status_by_partition(dg.AssetKey("cell_results"), keys, CELLS) or {}
        return {key: "missing" if (status := found.get(key)) is None else status.value.lower() for key in keys}

    def events(self, cell: str) -> list[dg.AssetMaterialization]:
        """Every materialization of the cell, newest first."""
        import dagster as dg

        filters = dg.AssetRecordsFilter(asset_key=dg.AssetKey("cell_results"), asset_partitions=[cell])
        records = self.instance.fetch_materializations(filters, limit=100).records
        return [record.asset_materialization for record in records if record.asset_materialization]

    def staleness(self, cell: str) -> tuple[str, list[Any]]:
        """As the UI works it out."""
        import dagster as dg
        from dagster._core.definitions.data_version import CachingStaleStatusResolver
        from dagster._core.loader import LoadingContextForTest

        from eval_pipeline.definitions import defs

        resolver = CachingStaleStatusResolver(self.instance, defs.resolve_asset_graph(), LoadingContextForTest(self.instance))
        key = dg.AssetKey("cell_results")
        return resolver.get_status(key, cell).value, list(resolver.get_stale_causes(key, cell))

    def attempts(self, experiment: str) -> dict[str, int]:
        return {cell["cell"]: len(cell["attempts"]) for cell in self.project.cells(experiment)}

    def materialize(self, *keys: str) -> dg.ExecuteInProcessResult:
        """What the UI's button does for one partition, or for a gapless range."""
        from eval_pipeline.definitions import defs

        job = defs.resolve_implicit_global_asset_job_def().get_subset(asset_selection={_cell_results()})
        span = {"dagster/asset_partition_range_start": keys[0], "dagster/asset_partition_range_end": keys[-1]}
        how: dict[str, Any] = {"partition_key": keys[0]} if len(keys) == 1 else {"tags": span}
        return job.execute_in_process(instance=self.instance, raise_on_error=False, **how)


def _cell_results() -> dg.AssetKey:
    import dagster as dg

    return dg.AssetKey("cell_results")


@pytest.fixture
def bench(shared_state: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Bench]:
    import dagster as dg

    from eval_pipeline.defs.home import prepare_home

    with short_dir() as root:
        project = Project(root, shared_state)
        project.world("bad", {"broken.txt": "x\n"})
        project.manifest(restore=["bin/restore"])
        project.commit({"bin/restore": RESTORE})
        project.agent(AGENT)
        settings = load_settings(project.env)
        with embedded_server(settings) as url:
            for name, value in prepare_home(settings, url).items():
                monkeypatch.setenv(name, value)
            monkeypatch.setenv("EVALS_STATE_DIR", str(shared_state))
            monkeypatch.setenv("EVALS_WORLDS_DIR", str(project.worlds))
            with dg.DagsterInstance.get() as instance, open_records(settings) as records:
                yield Bench(project, instance, records)
