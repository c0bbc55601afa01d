"""The demo's own worlds and app through the whole pipeline: what a document says decides what a cell scores."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.project import Project

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
ARM = {
    "name": "base",
    "ref": "WORKTREE",
    "config": {"model": "stand-in", "retrieval": "bm25", "top_k": 4, "max_reads": 4, "style": "careful"},
}


def desk(project: Project) -> Project:
    """The project with the real worlds and the real app."""
    shutil.rmtree(project.worlds)
    shutil.copytree(REPOSITORY / "worlds_src", project.worlds)
    app = {"name": "matter-desk", "repo": str(REPOSITORY), "path": "examples/matter_desk"}
    project.write("app.yaml", app)
    return project


def experiment(project: Project, name: str, cases: list[str], seed: int = 0) -> None:
    """seed: one of its own, so that it takes no other's results."""
    project.write("datasets/some.yaml", {"name": "some", "cases": cases})
    spec = {"name": name, "dataset": "some", "app": "matter-desk", "arms": [ARM], "seed": seed}
    project.write(f"experiments/{name}.yaml", spec)


def replace_in_world(project: Project, world: str, old: str, new: str) -> int:
    changed = 0
    for path in (project.worlds / "worlds" / world).rglob("*"):
        if path.suffix in (".md", ".txt", ".eml") and old in (text := path.read_text()):
            path.write_text(text.replace(old, new))
            changed += 1
    return changed


@pytest.mark.long
def test_a_replaced_fact_moves_the_score(project: Project) -> None:
    desk(project)
    experiment(project, "fact", ["harbour-spa.rent-total"])
    (before,) = project.cells(project.run("fact")["experiment"])
    assert before["score"] is not None and before["score"] > 0.9
    assert replace_in_world(project, "harbour-spa", "44,500", "46,700") > 0
    (after,) = project.cells(project.run("fact")["experiment"])
    assert after["cell"] != before["cell"]  # another world is another experiment
    assert after["score"] < before["score"]


@pytest.mark.long
def test_the_model_is_reached_through_the_proxy_and_priced(project: Project) -> None:
    desk(project)
    experiment(project, "priced", ["harbour-spa.rent-total"], seed=1)
    name = project.run("priced")["experiment"]
    shown = project.evals("cell", "show", f"{name}/harbour-spa.rent-total/base/0")
    assert [usage["model"] for usage in shown["usage"]] == ["stand-in"]
    assert shown["cost_usd"] > 0
    (arm,) = project.evals("leaderboard", name)["arms"]
    assert arm["stand_in"] is True and arm["cost_usd_mean"] == pytest.approx(shown["cost_usd"])
    board, _ = project.start("leaderboard", name).communicate(timeout=60)
    picture = (REPOSITORY / "README.md").read_text().partition("What it prints")[2].split("```")[1]
    assert board.splitlines()[1].split() == picture.strip().splitlines()[1].split()
    folder = project.state_dir / "gateway"
    evidence = "\n".join(
        path.read_text() for path in folder.rglob("*") if path.is_file() and shown["attempts"][0]["sandbox"] in path.name
    )
    assert '"model-stand-in"' in evidence and "allowed" in evidence


def test_an_arm_with_a_real_model_and_no_key_is_refused_before_anything_runs(project: Project) -> None:
    desk(project)
    project.env.pop("MODEL_API_KEY", None)
    experiment(project, "nokey", ["harbour-spa.rent-total"])
    project.write(
        "experiments/nokey.yaml",
        {"name": "nokey", "dataset": "some", "app": "matter-desk", "arms": [{**ARM, "config": {"model": "gpt-real"}}]},
    )
    refused = project.evals("experiment", "run", "nokey", check=False)
    assert (refused["exit_code"], refused["error"]["code"]) == (2, "spec")
    assert "MODEL_API_KEY" in refused["error"]["message"]
