"""A published benchmark from its CSV to results: import, run with the reference app, leave what needs a judge unjudged."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.project import Project

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
SYNTHETIC = REPOSITORY / "tests" / "specs" / "importers" / "data"
PUBLISHED = REPOSITORY.parent / "shared" / "data" / "biglaw-bench"


def run_all(project: Project, csv: Path, documents: Path) -> tuple[list[str], str]:
    project.write("app.yaml", {"name": "matter-desk", "repo": str(REPOSITORY), "path": "examples/matter_desk"})
    imported = project.evals("import", "biglaw-bench", str(csv), str(documents), "--into", str(project.worlds))["cases"]
    arms = [
        {"name": name, "ref": "WORKTREE", "config": {"model": "stand-in", "retrieval": kind, "top_k": 4, "max_reads": 4}}
        for name, kind in (("words", "keyword"), ("ranked", "bm25"))
    ]
    spec = {"name": "blb", "dataset": "biglaw-bench", "app": "matter-desk", "arms": arms, "trials": 2}
    project.write("experiments/blb.yaml", spec)
    done = project.run("blb", timeout_s=300)
    assert (done["n_cells"], done["n_ok"]) == (len(imported) * 4, len(imported) * 4)
    return [case["case"] for case in imported], done["experiment"]


def check_unjudged(project: Project, experiment: str) -> None:
    cells = project.cells(experiment)
    assert {cell["outcome"] for cell in cells} == {"ok"}
    assert all(cell["score"] is None and cell["n_not_judged"] > 0 for cell in cells)
    board = project.evals("leaderboard", experiment)
    assert board["status"] == "provisional"
    assert [(arm["score"], arm["n_valid"], arm["n_not_judged"]) for arm in board["arms"]] == [
        (None, len(cells) // 2, len(cells) // 2)
    ] * 2


def test_the_synthetic_samples(project: Project) -> None:
    cases, experiment = run_all(project, SYNTHETIC / "samples.csv", SYNTHETIC / "documents")
    assert len(cases) == 3
    check_unjudged(project, experiment)


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason=f"the published samples are not at {PUBLISHED}")
def test_the_published_samples(project: Project) -> None:
    cases, experiment = run_all(project, PUBLISHED / "core-samples.csv", PUBLISHED / "documents")
    assert len(cases) == 3
    check_unjudged(project, experiment)
    transcript = project.evals("cell", "logs", f"{experiment}/{cases[0]}/ranked/0", "--transcript")["logs"][
        "out/transcript.jsonl"
    ]
    assert "copay accumulator" in transcript.lower()  # the text of the court's order, out of its PDF
