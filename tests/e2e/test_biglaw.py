"""A published benchmark from its CSV to results: import, run with the reference app, and judge over real HTTP."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from support.loopback_judge import LoopbackJudge, loopback_judge
from support.project import Project

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
SYNTHETIC = REPOSITORY / "tests" / "specs" / "importers" / "data"
PUBLISHED = REPOSITORY.parent / "shared" / "data" / "biglaw-bench"


@pytest.fixture
def judge() -> Generator[LoopbackJudge]:
    with loopback_judge() as opened:
        yield opened


def run_all(project: Project, judge: LoopbackJudge, csv: Path, documents: Path) -> tuple[list[str], str]:
    project.write("app.yaml", {"name": "matter-desk", "repo": str(REPOSITORY), "path": "examples/matter_desk"})
    imported = project.evals("import", "biglaw-bench", str(csv), str(documents), "--into", str(project.worlds))["cases"]
    arms = [
        {"name": name, "ref": "WORKTREE", "config": {"model": "stand-in", "retrieval": kind, "top_k": 4, "max_reads": 4}}
        for name, kind in (("words", "keyword"), ("ranked", "bm25"))
    ]
    spec = {"name": "blb", "dataset": "biglaw-bench", "app": "matter-desk", "arms": arms, "trials": 2, "policy": "raw"}
    project.write("experiments/blb.yaml", {**spec, "judge": {"model": "openai:loopback", "base_url": judge.url}})
    done = project.run("blb", timeout_s=300)
    assert (done["n_cells"], done["n_ok"]) == (len(imported) * 4, len(imported) * 4)
    return [case["case"] for case in imported], done["experiment"]


def check_judged(project: Project, judge: LoopbackJudge, experiment: str) -> None:
    """Every score follows from what the loopback judge said of that criterion about that answer, by the sums of the rubric."""
    cells = project.cells(experiment)
    assert {cell["outcome"] for cell in cells} == {"ok"}
    assert all(cell["score"] is not None and cell["n_not_judged"] == 0 for cell in cells)
    said = {(one.block("answer"), one.block("criterion")): judge.decide(one) for one in judge.asked}
    assert len({body["messages"][-1]["content"] for body in judge.requests}) == len(judge.requests)  # nothing was asked twice
    for cell in cells:
        shown = project.evals("cell", "show", cell["cell"])
        points = 0.0
        for row in shown["criteria"]:
            verdict = said[shown["answer"], row["text"]]
            count = min(5, len(verdict["occurrences"])) if "occurrences" in verdict else int(verdict["verdict"] == "met")
            points += row["points"] * count
            assert min(5, row["verdict"]) == count
        positive = sum(row["points"] for row in shown["criteria"] if row["points"] > 0)
        assert shown["score"] == pytest.approx(points / positive)
    board = project.evals("leaderboard", experiment)
    assert [(arm["n_valid"], arm["n_not_judged"]) for arm in board["arms"]] == [(len(cells) // 2, 0)] * 2


@pytest.mark.long
def test_the_synthetic_samples(project: Project, judge: LoopbackJudge) -> None:
    cases, experiment = run_all(project, judge, SYNTHETIC / "samples.csv", SYNTHETIC / "documents")
    assert len(cases) == 3
    check_judged(project, judge, experiment)


@pytest.mark.long
@pytest.mark.skipif(not PUBLISHED.is_dir(), reason=f"the published samples are not at {PUBLISHED}")
def test_the_published_samples(project: Project, judge: LoopbackJudge) -> None:
    cases, experiment = run_all(project, judge, PUBLISHED / "core-samples.csv", PUBLISHED / "documents")
    assert len(cases) == 3
    check_judged(project, judge, experiment)
    transcript = project.evals("cell", "logs", f"{experiment}/{cases[0]}/ranked/0", "--transcript")["logs"][
        "out/transcript.jsonl"
    ]
    assert "copay accumulator" in transcript.lower()  # the text of the court's order, out of its PDF
