"""What Dagster is told of this project, and what we take from Dagster beyond its public API."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import tomllib
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest
from support.boards import drawn, told

import eval_pipeline
from eval_pipeline.analysis.leaderboard import leaderboard

# Imports Dagster and all that it is told
pytestmark = pytest.mark.slow

PACKAGE = Path(eval_pipeline.__file__).parent


def private_names() -> list[tuple[str, str, str]]:
    """(file, module, name) of every import from dagster's inside."""
    found: list[tuple[str, str, str]] = []
    for path in sorted((PACKAGE / "defs").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dagster._"):
                found += [(path.name, node.module or "", alias.name) for alias in node.names]
    return found


@pytest.mark.parametrize(("file", "module", "name"), private_names())
def test_private_names_exist_in_the_pinned_version(file: str, module: str, name: str) -> None:
    assert hasattr(importlib.import_module(module), name), file


def test_dagster_is_pinned_to_what_is_installed() -> None:
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())
    pins = dict(line.split("==") for line in project["project"]["dependencies"] if line.startswith("dagster"))
    assert len(pins) == 3
    assert pins == {name: importlib.metadata.version(name) for name in pins}


def test_sensors_and_schedules_run_without_being_switched_on() -> None:
    from eval_pipeline.definitions import defs

    automations = [*(defs.sensors or []), *(defs.schedules or [])]
    assert automations
    assert {automation.default_status.value for automation in automations} == {"RUNNING"}


def test_every_asset_says_what_it_is_and_whose() -> None:
    from eval_pipeline.definitions import defs

    graph = defs.resolve_asset_graph()
    keys = graph.get_all_asset_keys()
    assert {key.to_user_string() for key in keys} == {
        "world_snapshots",
        "sandbox_secrets",
        "app_image",
        "warm_sandboxes",
        "cell_results",
        "scored_table",
        "leaderboard",
        "report",
    }
    for key in keys:
        node = graph.get(key)
        assert node.group_name != "default" and node.owners and node.description and node.kinds, key
        assert (node.partitions_def is None) == (key.to_user_string() in ("sandbox_secrets", "app_image", "warm_sandboxes")), key


def test_every_job_says_what_it_does() -> None:
    from eval_pipeline.definitions import defs

    for name in (
        "snapshot_worlds",
        "sync_secrets",
        "build_app_image",
        "run_cells",
        "rerun_failed_cells",
        "score_experiment",
        "report_experiment",
    ):
        assert defs.resolve_job_def(name).description, name


def test_checks_of_results_are_partitioned_by_experiment() -> None:
    from eval_pipeline.definitions import defs

    graph = defs.resolve_asset_graph()
    checks = {key.name: graph.get(key) for key in graph.asset_check_keys}
    of_no_experiment = ("secret_age", "secret_rotation", "image_is_current", "dependency_age")
    assert set(checks) == {"completeness", "infra_rate", "leaked_sandboxes", *of_no_experiment}
    for name in of_no_experiment:
        assert checks.pop(name).partitions_def is None
    for check in checks.values():
        assert isinstance(check.partitions_def, dg.DynamicPartitionsDefinition)
        assert check.partitions_def.name == "experiments"


def test_a_table_of_arms_says_null_where_one_of_them_lacks_a_number() -> None:
    from eval_pipeline.defs.assets import arm_records

    board = leaderboard(*told(drawn(2, 1, {"steady": 0.5, "unpriced": 0.5}, 2)), resamples=20)
    steady, unpriced = board.arms
    table = arm_records(replace(board, arms=[steady, replace(unpriced, cost_usd_mean=None)]))
    costs = {record.data["arm"]: record.data["cost_usd_mean"] for record in table.records}
    assert costs == {"steady": steady.cost_usd_mean, "unpriced": None} and steady.cost_usd_mean is not None
    column = next(one for one in table.schema.columns if one.name == "cost_usd_mean")
    assert column.constraints.nullable
