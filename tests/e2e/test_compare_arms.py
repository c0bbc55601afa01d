"""Arms that really ran are compared by the CLI: within an experiment, across two, and refused where that means nothing."""

from __future__ import annotations

import subprocess

import pytest
from support.project import EVALS, Project

pytestmark = pytest.mark.slow

BY_CONFIG = """grep -q '"good": true' "$EVALS_CASE" && { answer yes; exit 0; }
grep -q 'Answer c0' "$EVALS_CASE" && { answer yes; exit 0; }
answer no
"""
ARMS = [{"name": "bad", "ref": "main"}, {"name": "good", "ref": "main", "config": {"good": True}}]


def people(project: Project, *args: str) -> str:
    done = subprocess.run([*EVALS, *args], env=project.env, cwd=project.root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_two_arms_and_two_experiments(project: Project) -> None:
    project.agent(BY_CONFIG)
    for n in range(4):
        project.world(f"w{n}")
        project.case(f"c{n}", f"w{n}")
    project.experiment("both", arms=ARMS, seed=3)
    both = project.run("both")["experiment"]

    found = project.evals("compare", "both", "bad", "good")
    assert (found["a"]["score"], found["b"]["score"], found["difference"]["diff"]) == (0.25, 1.0, 0.75)
    assert (found["n_cases"], found["n_worlds"], found["status"], found["margin"]) == (4, 4, "final", 0.05)
    assert found["quality"] == "undecided"  # three cases that differ are too few
    assert found["latency"]["ratio"] > 0
    assert found["cost"]["ratio"] is None and found["cheaper_at_quality"] is None  # the agent asks no model
    worst = found["cases"][0]
    assert (worst["case"], worst["cell_a"], worst["cell_b"]) == ("w1.c1", f"{both}/w1.c1/bad/0", f"{both}/w1.c1/good/0")
    assert [(one["case"], one["lost"], one["gained"]) for one in found["criteria"][:1]] == [("w1.c1", 0, 1)]
    assert project.evals("cell", "show", worst["cell_b"])["score"] == 1

    text = people(project, "compare", "both", "bad", "good")
    assert [line for line in text.splitlines() if len(line) > 100] == []
    for expected in (
        "the data can't tell",
        "no worse by more than 0.05 (the default): not shown",
        "+0.750",
        f"evals cell show {both}/",
    ):
        assert expected in text

    planned = project.evals("experiment", "plan", "both", "--fresh", "--no-reuse", "--pilot", "both:bad:good", "--detect", "0.75")
    outlook = planned["outlook"]["analysis"]
    assert outlook["spread"]["source"] == f"{both}, its arms bad and good"
    assert outlook["spread"]["omega2"] == 0.25  # of the differences 0, 1, 1, 1
    assert outlook["needed"] == [{"delta": 0.75, "cases": 4, "trials": None}]  # (1.96 + 0.84)^2 0.25 / 0.75^2 = 3.5
    assert planned["time"] == {"seconds": 0.0, "concurrency": 64, "at_most": False}  # all is done
    assumed = people(project, "experiment", "plan", "both", "--sd-within", "0.3", "--concurrency", "2")
    assert "4 cases x 1 trial can show a difference" in assumed and "(assumed, not measured" in assumed
    project.experiment("both", arms=ARMS, seed=3, schedule="0 2 * * *")
    scheduled = project.evals("experiment", "plan", "both")
    assert scheduled["experiment"] == both and scheduled["schedule"]["next_due"].endswith("T02:00:00+00:00")
    both_ways = project.evals("experiment", "plan", "both", "--pilot", "both", "--sd-within", "0.3", check=False)
    assert both_ways["exit_code"] == 2 and "give one or the other" in both_ways["error"]["hint"]

    project.case("c4", "w0")
    project.experiment("later", arms=[ARMS[1]], seed=4)
    project.run("later")
    across = project.evals("compare", "both:bad", "later:good", "--margin", "0.2")
    assert (across["n_cases"], across["difference"]["diff"], across["margin"]) == (4, 0.75, 0.2)
    assert any("left out" in note for note in across["notes"])

    for args, message in [
        (("both", "bad"), "can't tell which two arms"),
        (("both", "bad", "none"), "has no arm 'none'"),
        (("both", "bad", "bad"), "can't be compared with itself"),
        (("both", "bad", "good", "--margin", "2"), "a margin must lie above 0"),
    ]:
        refused = project.evals("compare", *args, check=False)
        assert (refused["exit_code"], message in refused["error"]["message"]) == (2, True), refused

    project.world("w1", {"lease.txt": "The notice period is 90 days.\n"})
    project.experiment("moved", arms=[ARMS[1]], seed=5)
    project.run("moved")
    refused = project.evals("compare", "both:bad", "moved:good", check=False)
    assert refused["exit_code"] == 2 and "different snapshots of 1 world (w1)" in refused["error"]["message"]
