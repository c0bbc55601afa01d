"""Cases written by the command line: what is written reads back as what was meant, once, and never over another one."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest
import yaml
from support.places import short_dir
from support.project import EVALS, Project

from eval_pipeline.errors import SpecError
from eval_pipeline.specs.case_new import case_text, new_case
from eval_pipeline.specs.library import Library
from eval_pipeline.specs.yaml_file import YamlFile

CHECK = "{id: sixty, text: Says 60 days, points: 2, check: {contains: 60 days}}"
NASTY = [
    "12:30",
    "2024-01-31",
    "yes",
    "null",
    "= x",
    "a: b # c",
    " lead",
    "trail \nand more\n\n",
    "tab\there\n- no list",
    "”ü 短い\u2028x",
    "'\"\\",
    "1e3",
]


@pytest.fixture
def project() -> Generator[Project]:
    with short_dir() as root:
        yield Project(root, root / "state")


def draft(**data: object) -> YamlFile:
    rubric = {"criteria": [{"id": "a", "text": "b", "points": 1, "check": {"contains": "x"}}]}
    return YamlFile.from_bytes(json.dumps({"id": "new", "prompt": "Say x.", "rubric": rubric, **data}).encode(), "draft")


def test_from_options_then_again_then_another(project: Project) -> None:
    words = [
        "case",
        "new",
        "w.notice",
        "--prompt",
        "What is the notice period?",
        "--criterion",
        CHECK,
        "--limit",
        "wall_s=60",
        "--tag",
        "t",
    ]
    dry = project.evals(*words, "--dry-run")
    assert (dry["created"], dry["exists"]) == (False, False)
    assert not (project.worlds / "worlds/w/cases/notice.yaml").exists()
    made = project.evals(*words, "--criterion", "Names the document")
    assert (made["case"], made["created"], made["file"]) == ("w.notice", True, "worlds_src/worlds/w/cases/notice.yaml")
    shown = project.evals("case", "show", "w.notice")
    assert [(c["id"], c["points"], c["judge"]) for c in shown["rubric"]["criteria"]] == [
        ("sixty", 2, False),
        ("criterion-2", 1, True),
    ]
    assert (shown["limits"]["wall_s"], shown["tags"]) == (60, ["t"])
    before = (project.worlds / "worlds/w/cases/notice.yaml").stat().st_mtime_ns
    again = project.evals(*words, "--criterion", "Names the document")
    assert (again["created"], again["exists"]) == (False, True)
    refused = project.evals(*words, check=False)
    assert refused["exit_code"] == 2 and "is there already, with another rubric" in refused["error"]["message"]
    assert "evals case show w.notice" in refused["error"]["hint"]
    assert (project.worlds / "worlds/w/cases/notice.yaml").stat().st_mtime_ns == before


@pytest.mark.slow
def test_from_stdin_is_held_to_its_lines_and_options_win(project: Project) -> None:
    def pipe(text: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = [*EVALS, "case", "new", "w.piped", "--from", "-", *words, "--json"]
        return subprocess.run(command, env=project.env, cwd=project.root, input=text, capture_output=True, text=True, check=False)

    wrong = pipe("prompt: Say x.\nrubric:\n  criteria:\n  - {id: a, text: b, points: 1, check: {contain: x}}\n")
    assert wrong.returncode == 2
    assert "stdin:4: there is no check 'contain'" in json.loads(wrong.stdout)["error"]["message"]
    right = pipe(
        "prompt: Say x.\nrubric:\n  criteria:\n  - {id: a, text: b, points: 1, check: {contains: x}}\n", "--prompt", "Say y."
    )
    assert right.returncode == 0
    assert project.evals("case", "show", "w.piped")["prompt"] == "Say y."


@pytest.mark.parametrize("text", NASTY)
def test_every_text_reads_back_as_it_was(tmp_path: Path, text: str) -> None:
    data = {"id": "a", "prompt": text, "reference": f"\n{text}", "tags": ["x"]}
    read = YamlFile.from_bytes(case_text(data).encode(), "x").data
    assert read == data == yaml.safe_load(case_text(data))


def test_a_file_of_another_case_with_that_name_is_left(project: Project) -> None:
    project.case("other")
    (project.worlds / "worlds/w/cases/other.yaml").rename(project.worlds / "worlds/w/cases/new.yaml")
    library = Library(project.worlds)
    with pytest.raises(SpecError, match="is there already, with another id"):
        new_case(library, "w", draft())
    project.case("elsewhere")
    (project.worlds / "worlds/w/cases/elsewhere.yaml").write_text(case_text(draft(id="mine").data))
    assert new_case(library, "w", draft(id="mine")).path.name == "elsewhere.yaml"


def test_what_the_library_refuses_is_never_written(project: Project) -> None:
    library = Library(project.worlds)
    cites = {"criteria": [{"id": "a", "text": "b", "points": 1, "check": {"cites": "gone.txt"}}]}
    for wrong in ({"rubric": cites}, {"id": "No Slug"}, {"prompt": ""}, {"extra": 1}):
        with pytest.raises(SpecError):
            new_case(library, "w", draft(**wrong))
    assert list((project.worlds / "worlds/w").glob("cases/*")) == []
