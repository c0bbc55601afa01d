"""`evals image gc`: what an unfinished experiment needs and the newest image stay; the rest goes."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from support.project import Project

from eval_pipeline.settings import Settings
from eval_pipeline.store.records import open_records

pytestmark = pytest.mark.slow


@pytest.mark.long
def test_what_is_needed_stays(lone_project: Project) -> None:
    project = lone_project
    project.manifest(build=["true"], reset=["true"], restore=["true"])
    project.agent("answer yes")
    project.case()
    project.experiment("done")
    project.run("done")
    failing = project.agent("kill -9 1; sleep 30")
    project.agent("sleep 60; answer yes")
    project.experiment("open")
    name = project.evals("experiment", "run", "open")["experiment"]
    project.wait_for(lambda: project.evals("experiment", "status", name)["states"].get("running") == 1)
    project.evals("experiment", "cancel", name)
    project.wait_for(lambda: project.evals("experiment", "status", name)["status"] == "cancelled")
    newest = project.evals("image", "build", "--ref", failing)
    before = {row["key"]: row for row in project.evals("image", "list")}
    assert project.evals("image", "gc")["removed"] == [], "used within 14 days"
    refused = project.evals("image", "gc", "--older-than", "10min", check=False)
    assert refused["exit_code"] == 2 and "being set up" in refused["error"]["message"]
    settings = Settings(state_dir=project.state_dir, worlds_dir=project.worlds)
    with open_records(settings) as records:
        records.database.run(lambda c: c.execute(sa.text("update evals.layers set used_at = now() - interval '15 days'")))
    planned = project.evals("image", "gc", "--dry-run")["removed"]
    gone = project.evals("image", "gc")["removed"]
    assert gone == planned
    left = {row["key"] for row in project.evals("image", "list")}
    assert left == before.keys() - {row["key"] for row in gone} and newest["key"] in left
    # of the finished experiment its prepared layer went; its image is below the open one's
    assert [row["kind"] for row in gone] == ["prepared"]
    project.run("done")
    project.evals("experiment", "archive", name)
    with open_records(settings) as records:
        records.database.run(lambda c: c.execute(sa.text("update evals.layers set used_at = now() - interval '15 days'")))
    project.evals("image", "gc")
    assert [row["key"] for row in project.evals("image", "list")] == [newest["key"]]
