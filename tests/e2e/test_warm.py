"""Sandboxes that stand ready: cells take them, and lose nothing when they can't. Which sandbox it was, the services' own marks tell."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from support.project import Project

from eval_pipeline.sandbox.local.places import prepare
from eval_pipeline.settings import Settings
from eval_pipeline.store.postgres import embedded_server

pytestmark = pytest.mark.slow

UP = """#!/bin/sh
head -c 12 /dev/urandom | od -An -tx1 | tr -d ' \\n' > /tmp/born
touch /tmp/up
while :; do sleep 1; done
"""
READY = "#!/bin/sh\n[ -e /tmp/up ] && [ ! -e /out/broken ]\n"
AGENT = 'sleep "$(sed -n \'s/.*Sleep \\([0-9]*\\).*/\\1/p\' "$EVALS_CASE")"\nanswer "yes $(cat /tmp/born) $(grep -c prompt "$EVALS_CASE")"'


@pytest.fixture
def app(project: Project) -> Generator[Project]:
    project.manifest(services={"up": ["bin/up"], "ready": ["bin/ready"]}, resources={"memory_mib": 256})
    project.commit({"bin/up": UP, "bin/ready": READY})
    project.agent(AGENT)
    project.case(prompt="Sleep 0")
    project.experiment("warm")
    yield project
    assert project.evals("image", "warm", "--count", "0")["ready"] == {}
    assert project.evals("sandbox", "list") == []


def standing(project: Project) -> list[str]:
    return [row["sandbox"] for row in project.evals("image", "status")["warm"]]


def born(project: Project, sandbox: str) -> str:
    """What the services of a living sandbox wrote when they came up, read from outside."""
    return (home(project, sandbox) / "disk" / "tmp" / "born").read_text()


def home(project: Project, sandbox: str) -> Path:
    return prepare(project.state_dir).scratch / sandbox


def attempts(project: Project, experiment: str) -> list[dict[str, Any]]:
    """Of each cell the last, with what its agent said."""
    cells = [project.evals("cell", "show", cell["cell"]) for cell in project.cells(experiment)]
    return [{**cell["attempts"][-1], "answer": cell["answer"], "n": len(cell["attempts"])} for cell in cells]


def ran(project: Project, **more: Any) -> list[dict[str, Any]]:
    project.experiment("warm", **more)
    return attempts(project, project.run("warm", "--fresh", "--no-reuse")["experiment"])


def sql(project: Project, statement: str) -> None:
    with embedded_server(Settings(state_dir=project.state_dir, worlds_dir=project.worlds)) as url:
        connection = psycopg2.connect(url.replace("postgresql+psycopg2", "postgresql", 1))
        with connection, connection.cursor() as cursor:
            cursor.execute(statement)
        connection.close()


@pytest.mark.long
def test_a_cell_takes_the_one_that_stands_ready_and_the_next_makes_its_own(app: Project) -> None:
    report = app.evals("image", "warm", "--count", "1")
    assert (report["ready"], report["started"], report["failed"]) == ({"w": 1}, {"w": 1}, {})
    (name,) = standing(app)
    assert app.evals("image", "warm", "--count", "1")["started"] == {}, "it is there"
    assert app.evals("sandbox", "reap")["reaped"] == [] and standing(app) == [name], "nobody reaps it"
    mark = born(app, name)
    tried = ran(app, trials=3)
    assert sorted(one["evidence"]["setup"]["warm"] for one in tried) == [False, False, True]
    (moved,) = [one for one in tried if one["evidence"]["setup"]["warm"]]
    assert (moved["sandbox"], moved["answer"]) == (name, f"yes {mark} 1"), "its case is in it"
    assert len({one["answer"] for one in tried}) == 3 and all(one["outcome"] == "ok" for one in tried)
    assert standing(app) == [] and app.evals("sandbox", "list") == []


@pytest.mark.long
def test_an_engine_killed_after_the_move_costs_no_agent_its_run(app: Project) -> None:
    app.case(prompt="Sleep 5")
    app.evals("image", "warm", "--count", "1")
    (name,) = standing(app)
    mark = born(app, name)
    experiment = app.evals("experiment", "run", "warm", "--fresh", "--no-reuse")["experiment"]
    app.wait_for(lambda: app.evals("experiment", "status", experiment)["states"].get("running") == 1)
    app.kill_engines(experiment)
    assert app.evals("sandbox", "reap")["reaped"] == []
    app.run("warm")
    (one,) = attempts(app, experiment)
    assert (one["n"], one["sandbox"], one["answer"], one["evidence"]["setup"]["warm"]) == (1, name, f"yes {mark} 1", True)


@pytest.mark.long
@pytest.mark.parametrize("how", ["killed", "silent"])
def test_one_that_died_meanwhile_costs_a_cold_start_and_nothing_else(app: Project, how: str) -> None:
    app.evals("image", "warm", "--count", "1")
    (name,) = standing(app)
    mark = born(app, name)
    if how == "killed":
        os.kill(json.loads((home(app, name) / "status").read_text().splitlines()[0])["child-pid"], signal.SIGKILL)
    else:
        (home(app, name) / "disk" / "out" / "broken").touch()
    (one,) = ran(app)
    assert (one["n"], one["outcome"], one["evidence"]["setup"]["warm"]) == (1, "ok", False)
    assert mark not in one["answer"] and one["answer"].endswith(" 1")


@pytest.mark.long
def test_what_no_cell_can_take_any_more_is_ended(app: Project) -> None:
    app.evals("image", "warm", "--count", "1")
    (old,) = standing(app)
    app.agent(AGENT + "\n# a newer image")
    (one,) = ran(app)
    assert one["evidence"]["setup"]["warm"] is False, "another commit"
    newer = app.evals("image", "warm", "--count", "1")
    assert newer["ended"] == [old] and newer["started"] == {"w": 1}
    (name,) = standing(app)
    sql(app, f"update evals.warm_sandboxes set expires_at = now() - interval '1 s' where name = '{name}'")
    assert app.evals("sandbox", "reap")["reaped"] == [name]
