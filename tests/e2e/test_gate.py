"""A gate over two commits of an app, with real runs: what passes, what does not, what is refused, and what is not run twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support.project import Project

pytestmark = pytest.mark.slow

MARGIN = ("--margin", "0.5")


def gate(project: Project, base: str, head: str, *args: str, check: bool = True) -> Any:
    return project.evals("gate", "--base", base, "--head", head, "--dataset", "all", *args, check=check)


@pytest.mark.long
def test_two_commits(project: Project) -> None:
    for n in range(6):  # as many worlds as that margin takes
        project.world(f"w{n}")
        project.case(f"c{n}", f"w{n}")
    project.experiment("template", arms=[{"name": "one", "ref": "main", "config": {"k": 1}}], trials=1)
    base = project.agent("answer yes")
    good = project.agent("answer 'yes indeed'")
    bad = project.agent("answer no")
    where = [project.root / name for name in ("gate.md", "gate.xml")]
    files = ("--markdown", str(where[0]), "--junit", str(where[1]))

    passed = gate(project, base, good, *MARGIN, *files)
    assert (passed["passed"], passed["decision"], passed["comparison"]["n_cases"]) == (True, "non_inferior", 6)
    assert "PASSED" in where[0].read_text() and ElementTree.parse(where[1]).getroot().get("failures") == "0"

    failed = gate(project, base, bad, *MARGIN, *files, check=False)
    assert (failed["exit_code"], failed["error"]["code"], failed["data"]["decision"]) == (1, "not_shown", "not_shown")
    assert failed["data"]["comparison"]["difference"]["diff"] == -1.0
    assert "NOT PASSED" in where[0].read_text() and ElementTree.parse(where[1]).getroot().get("failures") == "7"
    cells = [project.evals("cell", "show", cell["cell"]) for cell in project.cells(failed["data"]["experiment"])]
    took = {cell["cell"].split("/")[2]: cell["adopted_from"] is not None for cell in cells}
    assert took == {"base": True, "head": False}  # base has its results from the gate before

    again = gate(project, base, good, *MARGIN)
    assert (again["passed"], again["experiment"]) == (True, passed["experiment"])
    assert all(len(cell["attempts"]) == 1 for cell in project.cells(passed["experiment"]))

    same = gate(project, bad, bad, *MARGIN)
    assert (same["passed"], same["decision"], same["experiment"]) == (True, "identical", None)

    configured = project.evals("gate", "--base", base, "--head", good, "--experiment", "template", *MARGIN)
    assert configured["comparison"]["a"]["config"] == {"k": 1}
    assert configured["experiment"].startswith("gate-all-") and configured["experiment"] != passed["experiment"]


def test_mistakes_cost_nothing(project: Project) -> None:
    base, head = project.agent("answer yes"), project.agent("answer no")
    project.write("datasets/all.yaml", {"name": "all", "cases": ["*"]})
    project.case("c")
    project.case("d")
    for args, message in (
        (("--margin", "2"), "--margin 2 does not lie above 0"),
        ((*MARGIN, "--config", "[1]"), "must be a JSON object"),
        ((*MARGIN, "--arm", "x"), "there is none"),
        ((*MARGIN, "--budget", "1"), "no limits.cost_usd"),
        ((*MARGIN, "--app", "other"), "there is no app 'other'"),
        (MARGIN, "all cases are of one world (w)"),
    ):
        refused = gate(project, base, head, *args, check=False)
        assert (refused["exit_code"], message in refused["error"]["message"]) == (2, True), refused
    assert [row for row in project.evals("experiment", "list") if row["name"] == "gate-all" and row["n_cells"] == 4] == []


@pytest.mark.long
def test_a_budget_that_is_used_up_is_no_verdict(project: Project) -> None:
    names = ("input_uncached", "cache_read", "cache_write_5m", "cache_write_1h", "output")
    row = {"provider": "p", "model": "m", "effective_from": "2020-01-01", "source": "invented", **dict.fromkeys(names, "1000")}
    project.write("prices.yaml", [row])
    usage = '{"type":"usage","model":"m","input_uncached":1000,"output":0}'
    said = f"echo '{usage}' > $EVALS_OUTPUT/transcript.jsonl; answer"
    base, head = project.agent(f"{said} yes"), project.agent(f"{said} 'yes too'")
    for n in range(2):
        project.world(f"b{n}")
        project.case(f"c{n}", f"b{n}", limits={"wall_s": 60.0, "cost_usd": 1.5})
    project.write("datasets/all.yaml", {"name": "all", "cases": ["*"]})
    out = project.root / "gate.xml"
    stopped = gate(project, base, head, *MARGIN, "--budget", "2", "--junit", str(out), check=False)
    assert (stopped["exit_code"], stopped["error"]["code"], stopped["data"]["passed"]) == (3, "budget_exceeded", False)
    assert Path(out).is_file()
