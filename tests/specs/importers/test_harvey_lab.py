"""Tasks in the form that Harvey publishes LAB in, invented here: no task of theirs is at hand. Expected values written by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.locks import run_lock
from support.project import Project
from support.tables import attempt, cell_view, experiment_row

from eval_pipeline.analysis.stats import CriterionVerdict, critical_ok, pass_cell, score_cell
from eval_pipeline.analysis.tables import scored_table
from eval_pipeline.domain.lock import ScoredCase, ScoreLock
from eval_pipeline.errors import SpecError
from eval_pipeline.specs.importers.harvey_lab import import_harvey_lab
from eval_pipeline.specs.importers.tree import ImportedCase, ImportedCriterion
from eval_pipeline.specs.library import Library
from eval_pipeline.specs.lock import lock_experiment

MEMO, TABLE = "consent-memo.docx", "schedule.xlsx"
TASK: dict[str, Any] = {
    "title": "Review change of control in\n the contracts",
    "work_type": "review",
    "tags": ["M&A", "due-diligence"],
    "instructions": "Review the contracts and write `consent-memo.docx` and `schedule.xlsx`.\n",
    "deliverables": {MEMO: "the memo", TABLE: "a schedule"},
    "criteria": [
        {"id": "C-001", "title": "Names the lease", "match_criteria": "PASS if the lease is named. FAIL if not.", "deliverables": [MEMO]},
        {"id": "C-002", "title": "Agrees", "match_criteria": "PASS if both agree. FAIL if not.", "deliverables": [TABLE, MEMO]},
        {"id": "C-003", "title": "Advises", "match_criteria": "PASS if it advises.", "sources": ["lease.txt"]},
    ],
}  # fmt: skip
WORLD = "lab-corporate-ma-review-contracts-scenario-01"


def place(tasks: Path, path: str, task: Any = TASK, **documents: str) -> Path:
    folder = tasks / path
    (folder / "documents" / "annexes").mkdir(parents=True)
    (folder / "task.json").write_text(task if isinstance(task, str) else json.dumps(task, indent=2))
    for name, text in documents.items():
        (folder / "documents" / f"{name}.txt").write_text(text)
    return folder


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    folder = place(tmp_path / "tasks", "corporate-ma/review-contracts/scenario-01", lease="The lease.")
    (folder / "documents" / "annexes" / "Annex — 1.PDF").write_bytes(b"%PDF")
    return tmp_path / "tasks"


def refused(tasks: Path, into: Path) -> str:
    with pytest.raises(SpecError) as caught:
        import_harvey_lab(tasks, into)
    assert not (into / "worlds").exists()
    return str(caught.value)


def test_a_task_is_a_world_and_a_case(tasks: Path, tmp_path: Path) -> None:
    into = tmp_path / "worlds_src"
    texts = [
        "Names the lease\nPASS if the lease is named. FAIL if not.\nLook only at: consent-memo.docx",
        "Agrees\nPASS if both agree. FAIL if not.",
        "Advises\nPASS if it advises.",
    ]
    criteria = tuple(ImportedCriterion(text, 1.0, False) for text in texts)
    source = "corporate-ma/review-contracts/scenario-01"
    assert import_harvey_lab(tasks, into) == [ImportedCase(f"{WORLD}.task", WORLD, source, criteria)]
    (case,) = Library(into).dataset_cases("harvey-lab")
    assert case.spec.prompt == TASK["instructions"]
    assert case.spec.deliverables == (MEMO, TABLE)
    assert case.spec.tags == ("harvey-lab", "corporate-ma", "review", "m-a", "due-diligence")
    assert [one.id for one in case.spec.rubric.criteria] == ["c-001", "c-002", "c-003"]
    assert (case.spec.rubric.policy, case.spec.rubric.pass_at) == ("all_pass", 1.0)
    world = into / "worlds" / WORLD
    assert yaml.safe_load((world / "world.yaml").read_text())["title"] == "Review change of control in the contracts"
    found = sorted(str(path.relative_to(world)) for path in (world / "documents").rglob("*") if path.is_file())
    assert found == ["documents/annexes/Annex — 1.PDF", "documents/lease.txt"]


def test_importing_twice_changes_nothing_and_a_changed_task_is_refused(tasks: Path, tmp_path: Path) -> None:
    into = tmp_path / "worlds_src"
    assert import_harvey_lab(tasks, into) == import_harvey_lab(tasks, into)
    place(tasks, "tax/memo", {**TASK, "deliverables": [MEMO], "work_type": None})
    assert import_harvey_lab(tasks, into)[1].case == "lab-tax-memo.task"
    (tasks / "tax/memo/task.json").write_text(json.dumps({**TASK, "instructions": "Other."}))
    with pytest.raises(SpecError, match=r"different content|not a part"):
        import_harvey_lab(tasks, into)


def test_long_paths_stay_apart(tmp_path: Path) -> None:
    long = "analyse-the-very-long-workflow-name-of-this-task-without-an-end"
    for number in ("01", "02"):
        place(tmp_path / "tasks", f"real-estate/{long}/scenario-{number}")
    one, two = (case.world for case in import_harvey_lab(tmp_path / "tasks", tmp_path / "into"))
    assert one != two
    assert {len(one) <= 64, len(two) <= 64, one.startswith("lab-real-estate-analyse")} == {True}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"criteria": []}, r"task\.json:13: criteria"),
        ({"instructions": "  "}, r"task\.json:8: instructions"),
        ({"deliverables": 3}, r"task\.json:9: deliverables"),
        ({"criteria": [{"id": "C-1", "title": "T"}]}, r"task\.json:14: the key 'criteria.0.match_criteria' is missing"),
        ({"criteria": [TASK["criteria"][0]] * 2}, r"appear twice: c-001"),
    ],
)
def test_a_mistake_has_its_line(tasks: Path, tmp_path: Path, change: dict[str, Any], said: str) -> None:
    place(tasks, "tax/memo", TASK | change)
    message = refused(tasks, tmp_path / "into")
    assert re.search(said, message), message


def test_what_can_not_be_read_is_refused(tasks: Path, tmp_path: Path) -> None:
    broken = place(tasks, "tax/memo", '{\n"title": "T",\n}')
    assert "task.json:3: is not JSON" in refused(tasks, tmp_path / "into")
    (broken / "task.json").write_text(json.dumps(TASK))
    (broken / "documents" / "link").symlink_to("/etc/hostname")
    assert "is a link" in refused(tasks, tmp_path / "into")
    (broken / "documents").rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "link").unlink()
    (broken / "documents").symlink_to(tmp_path / "elsewhere")
    assert "'documents' is a link" in refused(tasks, tmp_path / "into")
    (tmp_path / "empty").mkdir()
    assert "holds no task.json" in refused(tmp_path / "empty", tmp_path / "into")


def test_a_task_scores_one_when_every_criterion_passes(tasks: Path, tmp_path: Path) -> None:
    import_harvey_lab(tasks, tmp_path / "into")
    (case,) = Library(tmp_path / "into").all_cases()
    for verdicts, score in (([1, 1, 1], 1.0), ([1, 1, 0], 0.0), ([0, 0, 0], 0.0), ([1, 1, None], None)):
        pairs = zip(case.spec.rubric.criteria, verdicts, strict=True)
        decided = [CriterionVerdict.of(criterion, verdict) for criterion, verdict in pairs]
        got = score_cell(decided, "all_pass")
        assert got.score == score
        assert pass_cell(got.score, case.spec.rubric.pass_at, critical_ok(decided)) == (None if score is None else score == 1.0)


def test_an_experiment_of_another_policy_is_refused(tmp_path: Path) -> None:
    project = Project(tmp_path, tmp_path / "state")
    project.agent("answer yes\n")
    place(tmp_path / "tasks", "tax/memo", lease="The lease.")
    import_harvey_lab(tmp_path / "tasks", project.worlds)
    library = Library(project.worlds)
    project.experiment("x", dataset="harvey-lab")
    path = project.worlds / "experiments" / "x.yaml"
    with pytest.raises(SpecError, match=r"cases/task\.yaml:\d+: .*policy all_pass, .* scores by clip_cell") as caught:
        lock_experiment(library, path)
    line = int(str(caught.value).split(":")[1])
    written = (project.worlds / "worlds/lab-tax-memo/cases/task.yaml").read_text().splitlines()
    assert written[line - 1].strip() == "policy: all_pass"
    project.experiment("x", dataset="harvey-lab", policy="all_pass")
    locked = lock_experiment(library, path)
    assert locked.score.policy == "all_pass"
    assert "policy" not in locked.score.cases["lab-tax-memo.task"].model_dump(mode="json")["rubric"]


def test_an_unjudged_task_is_between_nothing_and_everything(tasks: Path, tmp_path: Path) -> None:
    import_harvey_lab(tasks, tmp_path / "into")
    (case,) = Library(tmp_path / "into").all_cases()
    run = run_lock()
    score = ScoreLock(policy="all_pass", judge=None, cases={"w.c": ScoredCase(rubric=case.spec.rubric)}, prices=[])
    (key,) = run.cell_keys()
    (row,) = scored_table(experiment_row(run, score), [cell_view(key, attempt())], {})
    assert (row.score, row.lower, row.upper, row.n_not_judged) == (None, 0.0, 1.0, 3)
