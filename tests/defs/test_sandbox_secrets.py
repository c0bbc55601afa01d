"""The hourly sync as Dagster runs it."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from eval_pipeline.vault.values import Values

if TYPE_CHECKING:
    import dagster as dg
    from conftest import Bench

pytestmark = pytest.mark.slow


@pytest.fixture
def keyed(bench: Bench) -> Generator[Bench]:
    """An app that declares a secret for each phase; both are in the file."""
    bench.project.manifest(secrets={"build": ["INDEX_KEY"], "agent": ["MODEL_KEY"]})
    bench.project.agent("answer yes")
    write(bench, "INDEX_KEY=canary-1\nMODEL_KEY=canary-2\n")
    yield bench
    values = Values(bench.project.state_dir)
    (bench.project.state_dir / "secrets.env").unlink()
    values.keep_only(set())
    values.folder.rmdir()
    bench.records.database.run(lambda c: c.execute(sa.text("delete from evals.secret_versions")))


def write(bench: Bench, text: str) -> None:
    path = bench.project.state_dir / "secrets.env"
    path.touch(mode=0o600)
    path.write_text(text)


def sync(bench: Bench) -> dg.ExecuteInProcessResult:
    from eval_pipeline.definitions import defs

    return defs.resolve_job_def("sync_secrets").execute_in_process(instance=bench.instance, raise_on_error=False)


def check(result: dg.ExecuteInProcessResult) -> tuple[bool, list[str]]:
    (found,) = [one for one in result.get_asset_check_evaluations() if one.check_name == "secret_age"]
    stale: Any = found.metadata["stale"].value
    return found.passed, stale


def test_names_versions_and_ages_are_shown_and_no_value(keyed: Bench) -> None:
    result = sync(keyed)
    assert result.success and check(result) == (True, [])
    (made,) = result.asset_materializations_for_node("sandbox_secrets")
    assert (made.metadata["dagster/row_count"].value, made.metadata["missing"].value) == (2, [])
    table: Any = made.metadata["secrets"]
    shown = {record.data["name"]: record.data for record in table.records}
    assert {name: (row["phase"], row["source"], row["held"]) for name, row in shown.items()} == {
        "INDEX_KEY": ("build", "file", True),
        "MODEL_KEY": ("agent", "file", True),
    }
    in_ledger = keyed.records.database.run(lambda c: c.execute(sa.text("select name, version from evals.secret_versions")).all())
    assert {row.name: row.version for row in in_ledger} == {name: row["version"] for name, row in shown.items()}
    logged = [str(event.dagster_event) + event.message for event in keyed.instance.all_logs(result.run_id)]
    assert len(logged) > 5 and not any("canary" in line for line in logged)


@pytest.mark.long
def test_a_missing_one_fails_the_asset_and_warns_once_its_version_is_old(keyed: Bench) -> None:
    assert sync(keyed).success
    write(keyed, "INDEX_KEY=canary-1\n")
    young = sync(keyed)
    assert not young.success and check(young) == (True, [])
    assert "no source holds MODEL_KEY; looked in: the file" in str(young.all_events)
    past = sa.text("update evals.secret_versions set last_seen = last_seen - interval '121 minutes'")
    keyed.records.database.run(lambda c: c.execute(past))
    old = sync(keyed)
    assert not old.success and check(old) == (False, ["MODEL_KEY (agent)"])
    keyed.project.case("c")
    keyed.project.experiment("kept", arms=[{"name": "a", "ref": "main", "config": {"model": "real"}}])
    name = keyed.project.run("kept")["experiment"]
    (cell,) = keyed.project.cells(name)
    assert cell["outcome"] == "ok"
    # cells are tied to the sync in lineage alone: it makes no result out of date
    write(keyed, "INDEX_KEY=canary-3\nMODEL_KEY=canary-4\n")
    assert sync(keyed).success
    assert keyed.staleness(cell["cell"]) == ("FRESH", [])
    assert keyed.materialize(cell["cell"]).success
    assert keyed.attempts(name) == {cell["cell"]: 1}


def test_a_file_that_is_refused_fails_the_asset_with_its_reason(keyed: Bench) -> None:
    (keyed.project.state_dir / "secrets.env").chmod(0o640)
    result = sync(keyed)
    assert not result.success and "its mode is 0640" in str(result.all_events) and "canary" not in str(result.all_events)
    assert check(result) == (False, ["INDEX_KEY (build)", "MODEL_KEY (agent)"])


def test_the_schedule_never_overlaps_itself(bench: Bench) -> None:
    import dagster as dg

    from eval_pipeline.definitions import defs

    schedule = defs.resolve_schedule_def("sync_secrets_hourly")
    job = defs.resolve_job_def("sync_secrets")

    def tick() -> Any:
        with dg.build_schedule_context(instance=bench.instance) as context:
            return schedule.evaluate_tick(context)

    (asked,) = tick().run_requests
    assert job.tags["dagster/priority"] == "10" and asked.run_key is None
    before = bench.instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)
    assert before.run_id in str(tick().skip_message) and not tick().run_requests
    bench.instance.report_run_canceled(before)
    assert len(tick().run_requests) == 1


def test_a_value_that_is_too_old_is_said_and_goes_on(keyed: Bench) -> None:
    app = {"name": "tiny", "repo": "app", "path": "."}
    keyed.project.write("app.yaml", {**app, "secrets": {"max_age_days": {"MODEL_KEY": 90, "*": 400}}})
    assert sync(keyed).success
    past = sa.text("update evals.secret_versions set synced_at = synced_at - interval '100 days'")
    keyed.records.database.run(lambda c: c.execute(past))
    result = sync(keyed)
    assert result.success
    (found,) = [one for one in result.get_asset_check_evaluations() if one.check_name == "secret_rotation"]
    due: Any = found.metadata["due"].value
    assert (found.passed, due) == (False, ["MODEL_KEY (agent)"])
    write(keyed, "INDEX_KEY=canary-1\nMODEL_KEY=canary-3\n")
    (found,) = [one for one in sync(keyed).get_asset_check_evaluations() if one.check_name == "secret_rotation"]
    assert found.passed
    keyed.project.write("app.yaml", app)
