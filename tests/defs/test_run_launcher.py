"""Ending a run from the Dagster UI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize(("configured", "said"), [(True, True), (False, False)], ids=["ours", "Dagster's own"])
def test_a_run_of_the_command_line_is_said_to_be_canceled(configured: bool, said: bool) -> None:
    overrides: dict[str, Any] = {"telemetry": {"enabled": False}}
    if configured:
        overrides["run_launcher"] = yaml.safe_load((REPOSITORY / "dagster.yaml").read_text())["run_launcher"]
    with dg.instance_for_test(overrides=overrides) as instance:
        run = instance.create_run_for_job(_nothing, status=dg.DagsterRunStatus.STARTED)
        assert instance.run_launcher.terminate(run.run_id) is said
        found = instance.get_run_by_id(run.run_id)
        assert found is not None and found.status is dg.DagsterRunStatus.CANCELING
        instance.report_run_canceled(found)
        assert not instance.run_launcher.terminate(run.run_id)


@dg.job
def _nothing() -> None:
    """A run needs a job."""
