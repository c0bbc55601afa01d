"""Experiments put away and taken back, and what the command line says of cells, arms and widths."""

from __future__ import annotations

import subprocess

import pytest
from support.project import EVALS, Project

pytestmark = pytest.mark.slow


def listed(project: Project, *options: str) -> list[str]:
    return [row["experiment"] for row in project.evals("experiment", "list", *options)]


def refused(project: Project, *args: str) -> str:
    envelope = project.evals(*args, check=False)
    assert (envelope["ok"], envelope["exit_code"]) == (False, 2)
    return envelope["error"]["message"] + " " + envelope["error"]["hint"]


def people(project: Project, *args: str, columns: str | None = None) -> str:
    env = {name: value for name, value in project.env.items() if name != "COLUMNS"} | ({"COLUMNS": columns} if columns else {})
    done = subprocess.run([*EVALS, *args], env=env, cwd=project.root, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


@pytest.mark.long
def test_archived_experiments_are_out_of_sight_and_come_back(project: Project) -> None:
    project.agent("answer yes")
    project.case()
    project.experiment("one")
    project.experiment("two")
    one, two = project.run("one")["experiment"], project.run("two")["experiment"]
    project.evals("experiment", "archive", one)
    assert (one in listed(project), two in listed(project)) == (False, True)
    assert {one, two} <= set(listed(project, "--all"))
    assert project.evals("experiment", "status", one)["status"] == "done"
    project.evals("experiment", "restore", one)
    assert {one, two} <= set(listed(project))
    project.evals("experiment", "archive", one)
    project.evals("experiment", "rerun", one, "--cell", "w.c/a/0", "--discard", "a test", "--wait")
    assert one in listed(project)


@pytest.mark.long
def test_an_experiment_at_work_or_open_is_not_archived(project: Project) -> None:
    project.agent("sleep 60; answer yes")
    project.case()
    project.experiment("busy")
    name = project.evals("experiment", "run", "busy")["experiment"]
    project.wait_for(lambda: project.evals("experiment", "status", name)["states"].get("running") == 1)
    assert f"{name} is running" in refused(project, "experiment", "archive", name)
    project.kill_engines(name)
    project.wait_for(lambda: project.evals("experiment", "status", name, "--watch")["engines"] == [])
    assert f"{name} is open" in refused(project, "experiment", "archive", name)
    project.evals("experiment", "cancel", name)
    project.evals("experiment", "archive", name)
    assert name not in listed(project)


@pytest.mark.long
def test_a_cell_of_another_experiment_is_said_to_be_one(project: Project) -> None:
    project.agent("answer yes")
    project.case()
    project.experiment("mine")
    project.experiment("other")
    mine, other = project.run("mine")["experiment"], project.run("other")["experiment"]
    said = refused(project, "experiment", "rerun", mine, "--cell", f"{other}/w.c/a/0")
    assert f"is a cell of '{other}', not of {mine}" in said
    assert f"evals experiment rerun {other} --cell {other}/w.c/a/0" in said
    assert f"{mine} has no cell 'w.d/a/0'" in refused(project, "experiment", "rerun", mine, "--cell", "w.d/a/0")


@pytest.mark.long
def test_a_plan_and_a_table_are_for_people(project: Project) -> None:
    project.agent("answer yes")
    project.case("c" * 40)
    config = {"model": "stand-in", "top_k": 3, "deep": {"on": True}}
    project.experiment("wide", arms=[{"name": "a", "ref": "main", "config": config}])
    text = people(project, "experiment", "plan", "wide")
    assert all(f", {setting}" in text for setting in ("model=stand-in", "top_k=3", 'deep={"on": true}'))
    assert "None" not in text and "{'" not in text
    key = f"{project.run('wide')['experiment']}/w.{'c' * 40}/a/0"
    for columns in ("60", "nonsense", None):
        lines = people(project, "experiment", "cells", "wide", columns=columns).splitlines()
        assert any(line.startswith(f"{key} ") for line in lines), "a key is pasted and searched for: it never wraps"
        assert columns == "60" or max(map(len, lines)) <= 160
