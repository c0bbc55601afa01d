"""Tasks in the form of Harvey's LAB, imported and judged over real HTTP: one criterion that fails, fails the task."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from support.judged import JudgedRuns, judged_runs
from support.loopback_judge import LoopbackJudge, Read, loopback_judge
from support.places import short_dir

from eval_pipeline.domain.experiment import JudgeSpec
from eval_pipeline.settings import JudgeSettings, Settings
from eval_pipeline.specs.importers.harvey_lab import import_harvey_lab
from eval_pipeline.specs.library import Library

pytestmark = pytest.mark.slow

TITLES = ("Names the Kiel lease", "Advises to ask for consent", "Output file is named memo.txt")
TASK = {
    "title": "Consents",
    "instructions": "Which contracts need consent? Write `memo.txt`.",
    "deliverables": {"memo.txt": "memo.txt"},
    "criteria": [
        {"id": f"C-{n:03}", "title": title, "match_criteria": "PASS if it does. FAIL if not.", "deliverables": ["memo.txt"]}
        for n, title in enumerate(TITLES, 1)
    ],
}


def by_title(request: Read) -> dict[str, Any]:
    title = request.block("criterion").splitlines()[0]
    met = title in request.work
    said = {"criterion_id": request.criterion_id, "reasoning": "looked for the title"}
    return {**said, "evidence": title if met else "", "verdict": "met" if met else "not_met"}


@pytest.fixture(scope="module")
def judge() -> Generator[LoopbackJudge]:
    with loopback_judge() as server:
        server.decide = by_title
        yield server


@pytest.fixture(scope="module")
def runs(shared_state: Path) -> Generator[JudgedRuns]:
    with short_dir() as worlds:
        settings = Settings(state_dir=shared_state, worlds_dir=worlds, judge=JudgeSettings(timeout_s=5.0))
        with judged_runs(settings) as opened:
            yield opened


def test_all_pass_or_nothing(runs: JudgedRuns, judge: LoopbackJudge, tmp_path: Path) -> None:
    (tmp_path / "tasks" / "tax" / "memo").mkdir(parents=True)
    (tmp_path / "tasks" / "tax" / "memo" / "task.json").write_text(json.dumps(TASK))
    import_harvey_lab(tmp_path / "tasks", tmp_path / "into")
    (case,) = Library(tmp_path / "into").dataset_cases("harvey-lab")
    written = [TITLES, TITLES[:2], ()]
    files = [{"memo.txt": "\n".join(lines).encode()} if lines else {} for lines in written]
    spec = JudgeSpec(model="openai:gpt-test", base_url=judge.url)
    experiment = runs.experiment(
        spec, case.spec.rubric.criteria, ["See the memo.", "See the memo.", None], files=files, policy="all_pass"
    )
    assert runs.judge(experiment).n_failed == 0
    cells = runs.table(experiment)
    assert [(cell.score, cell.passed) for cell in cells] == [(1.0, True), (0.0, False), (0.0, False)]
    assert [[row.verdict for row in cell.criteria] for cell in cells] == [[1, 1, 1], [1, 1, 0], [0, 0, 0]]
