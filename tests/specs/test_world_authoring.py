"""A world that a person begins and corrects: `evals world new` and `evals world check`."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from support.places import short_dir
from support.project import Project

from eval_pipeline.specs.library import Library
from eval_pipeline.specs.lock import lock_experiment
from eval_pipeline.specs.world_check import Checked, check_world

pytestmark = pytest.mark.slow


@pytest.fixture
def project() -> Generator[Project]:
    with short_dir() as root:
        yield Project(root, root / "state")


def checked(project: Project, name: str = "w") -> Checked:
    return check_world(Library(project.worlds), name)


def test_a_new_world_passes_and_can_be_locked(project: Project) -> None:
    made = project.evals("world", "new", "kiel", "--title", "Sale of Kiel: the terminal")
    assert made == {"world": "kiel", "folder": "worlds_src/worlds/kiel", "case": "kiel.notice-period"}
    (found,) = project.evals("world", "check", "kiel")
    assert (found["findings"], found["n_cases"], found["n_rows"]) == ([], 1, 2)
    assert set(found["part_bytes"]) == {"documents", "database", "permissions.yaml"}
    project.agent("answer six months\n")
    project.write("datasets/one.yaml", {"name": "one", "cases": ["kiel.*"]})
    locked = lock_experiment(Library(project.worlds), project.experiment("x", dataset="one"))
    assert locked.run.worlds == {"kiel": found["digest"]}
    assert Library(project.worlds).world("kiel").spec.title == "Sale of Kiel: the terminal"


@pytest.mark.parametrize("name, said", [("w", "is there already"), ("Kiel", "'Kiel' is not a name"), ("../x", "is not a name")])
def test_a_name_that_cannot_be_taken(project: Project, name: str, said: str) -> None:
    before = sorted(project.worlds.rglob("*"))
    envelope = project.evals("world", "new", name, check=False)
    assert (envelope["exit_code"], envelope["error"]["code"]) == (2, "spec")
    assert said in envelope["error"]["message"]
    assert sorted(project.worlds.rglob("*")) == before


def row(project: Project, *lines: Any) -> None:
    spec = {"id": "w", "title": "w", "documents": "documents/", "database": "database/", "permissions": "permissions.yaml"}
    project.write("worlds/w/world.yaml", spec)
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    project.write("worlds/w/database/users.jsonl", text)
    if not (project.worlds / "worlds/w/permissions.yaml").exists():
        project.write("worlds/w/permissions.yaml", "default: [a]\nrules: []\n")


def rules(project: Project, text: str) -> None:
    row(project, {"id": 1})
    project.write("worlds/w/permissions.yaml", text)


WRONG: dict[str, tuple[Callable[[Project], Any], str, str]] = {
    "unknown key": (lambda p: p.write("worlds/w/world.yaml", "id: w\ntitle: w\nblob: x\n"), "error", "w/world.yaml:3: unknown key 'blob'"),
    "missing part": (lambda p: p.write("worlds/w/world.yaml", "id: w\ntitle: w\nblobs: b/\n"), "error", "w/b: does not exist"),
    "link": (lambda p: (p.worlds / "worlds/w/documents/l").symlink_to("lease.txt"), "error", "documents/l: is a symbolic link"),
    "two names that are one": (lambda p: p.write("worlds/w/documents/LEASE.txt", "x"), "error", "differ only in case"),
    "case": (lambda p: p.case("d", tag=["x"]), "error", "cases/d.yaml:10: unknown key 'tag'"),
    "case twice": (lambda p: p.write("worlds/w/cases/e.yaml", (p.worlds / "worlds/w/cases/c.yaml").read_text()), "error", "is already taken"),
    "row is no JSON": (lambda p: row(p, {"id": 1}, "{"), "error", "database/users.jsonl:2: is not JSON"),
    "row is no object": (lambda p: row(p, {"id": 1}, "[1]"), "error", "users.jsonl:2: a row must be a JSON object, found list"),
    "row without id": (lambda p: row(p, {"id": 1}, {"n": 1}, {"n": 2}), "warning", "users.jsonl:2: the row has no `id` (and 1 more lines)"),
    "id twice": (lambda p: row(p, {"id": 1}, {"id": 2}, {"id": 1}), "warning", "users.jsonl:3: the id 1 stands already in line 1"),
    "row with a number that is none": (lambda p: row(p, '{"id": 1, "n": NaN}'), "error", "users.jsonl:1: is not JSON: NaN is no number there"),
    "name on two lines": (lambda p: p.write("worlds/w/documents/a\nb.txt", "x"), "warning", "'documents/a\\nb.txt': its name holds"),
    "case in a file of another name": (lambda p: (p.case("d"), (p.worlds / "worlds/w/cases/d.yaml").rename(p.worlds / "worlds/w/cases/e.yaml")), "warning", "the case 'd' stands in a file of another name"),
    "no table": (lambda p: (row(p, {"id": 1}), p.write("worlds/w/database/users.csv", "id")), "warning", "users.csv: is no table"),
    "rule": (
        lambda p: rules(p, "rules:\n- {match: 'documents/lease*', readers: []}\n- {match: 'lease*', readers: []}\n"),
        "warning",
        "permissions.yaml:3: `match: lease*` matches no file",
    ),
    "permissions": (lambda p: rules(p, "rules: [\n"), "error", "permissions.yaml:2: is not valid YAML"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_with_its_place(project: Project, name: str) -> None:
    project.case()
    assert checked(project).findings == []
    break_it, level, said = WRONG[name]
    break_it(project)
    (finding,) = checked(project).findings
    assert finding.level == level
    assert said in finding.message
    assert finding.hint is not None or level == "error"


def test_everything_is_said_at_once_and_the_exit_code_is_the_authors(project: Project) -> None:
    project.world("v", {"a.txt": "x"})
    project.case("c", tag=["x"])
    project.case("d", promp="x")
    row(project, "{")
    envelope = project.evals("world", "check", check=False)
    assert (envelope["exit_code"], envelope["ok"], envelope["error"]["code"]) == (2, False, "spec")
    assert envelope["error"]["message"].startswith("3 errors")
    by_world = {found["world"]: [f["level"] for f in found["findings"]] for found in envelope["data"]}
    assert by_world == {"v": ["warning"], "w": ["error", "error", "error"]}


def test_each_mistake_of_a_file_is_counted_and_what_is_no_world_has_no_row(project: Project) -> None:
    project.case("c", tag=["x"], promp="x", wall=3)
    envelope = project.evals("world", "check", check=False)
    assert envelope["error"]["message"].startswith("3 errors")
    assert len(envelope["data"][0]["findings"]) == 1
    process = project.start("world", "check", "typo")
    shown, _ = process.communicate(timeout=60)
    assert (process.returncode, "there is no world 'typo'" in shown, "rows" in shown) == (2, True, False)


def test_a_file_beside_the_cases_that_looks_like_one_is_pointed_out(project: Project) -> None:
    project.case()
    project.write("worlds/w/cases/second.yml", "id: second\n")
    project.write("worlds/w/cases/checks/c.py", "")
    (finding,) = checked(project).findings
    assert (finding.level, "cases/second.yml: is no case" in finding.message) == ("warning", True)


def test_a_world_with_warnings_alone_passes(project: Project) -> None:
    (found,) = project.evals("world", "check")
    assert [finding["level"] for finding in found["findings"]] == ["warning"]
    assert "has no case" in found["findings"][0]["message"]


def test_the_worlds_that_come_along_are_clean() -> None:
    library = Library(Path(__file__).parents[2] / "worlds_src")
    assert {name: check_world(library, name).findings for name in library.world_names()} == {
        name: [] for name in library.world_names()
    }
