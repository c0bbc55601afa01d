"""The author's mistakes as the command line tells them: exit code 2, one envelope, data on stdout only."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import Any

import pytest
from support.places import short_dir
from support.project import Project

MISTAKES: list[tuple[list[str], Callable[[Project], object], str, str, str | None]] = [
    (
        ["case", "show", "w.c"],
        lambda p: p.case("c", tag=["x"]),
        "spec",
        r"worlds_src/worlds/w/cases/c.yaml:10: unknown key 'tag'",
        None,
    ),
    (
        ["case", "check", "w.c"],
        lambda p: p.write("worlds/w/world.yaml", "id: w\nid: w\n"),
        "spec",
        "world.yaml:2: the key 'id' appears",
        None,
    ),
    (
        ["dataset", "list"],
        lambda p: p.write("datasets/d.yaml", "name: d\ncases: ['v.*']"),
        "spec",
        "d.yaml:2: 'v.*' sel",
        "known worlds: w",
    ),
    (["case", "show", "w.z"], lambda p: None, "not_found", "the world 'w' has no case 'z'", "known cases: c"),
    (["case", "frobnicate"], lambda p: None, "usage", "No such command 'frobnicate'", "`evals case --help` lists the commands"),
]


@pytest.fixture
def project() -> Generator[Project]:
    with short_dir() as root:
        project = Project(root, root / "state")
        project.case("c")
        yield project


@pytest.mark.parametrize("args, break_it, code, said, hint", MISTAKES, ids=[row[2] + "-" + row[0][0] for row in MISTAKES])
def test_mistakes(
    project: Project, args: list[str], break_it: Callable[[Project], Any], code: str, said: str, hint: str | None
) -> None:
    break_it(project)
    envelope = project.evals(*args, check=False)
    assert (envelope["exit_code"], envelope["ok"], envelope["data"]) == (2, False, None)
    assert set(envelope["error"]) == {"code", "message", "hint"}
    assert (envelope["error"]["code"], envelope["error"]["hint"]) == (code, hint)
    assert said in envelope["error"]["message"]
    assert "Traceback" not in envelope["stderr"]


@pytest.fixture
def half_broken(project: Project) -> Project:
    """w.c is right; kiel has a right case, and one with a misspelt key."""
    project.world("kiel")
    project.case("good", world="kiel", tags=["t"])
    project.case("rent", world="kiel", promt="x")
    for name, cases in {"d": ["w.*"], "k": ["kiel.*"], "g": ["kiel.good"], "t": ["tag:t"]}.items():
        project.write(f"datasets/{name}.yaml", {"name": name, "cases": cases})
    return project


WRONG = r"worlds/kiel/cases/rent\.yaml:\d+: unknown key 'promt'"


def test_lists_show_what_is_right_and_name_what_is_not(half_broken: Project) -> None:
    for args, names in [(["case", "list"], ["kiel.good", "w.c"]), (["world", "list"], ["kiel", "w"])]:
        envelope = half_broken.evals(*args, check=False)
        assert [row[args[0]] for row in envelope["data"]] == names
        assert re.search(WRONG, envelope["stderr"])
    assert half_broken.evals("case", "show", "kiel.good")["case"] == "kiel.good"


def test_what_is_asked_about_and_wrong_is_code_2_and_the_rest_is_shown(half_broken: Project) -> None:
    for args, shown in [
        (["case", "check"], ["kiel.good", "w.c"]),
        (["case", "list", "--world", "kiel"], ["kiel.good"]),
        (["dataset", "show", "k"], ["kiel.good"]),
    ]:
        envelope = half_broken.evals(*args, check=False)
        rows = envelope["data"]["cases"] if args[0] == "dataset" else [row["case"] for row in envelope["data"]]
        assert (envelope["exit_code"], rows) == (2, shown)
        assert re.search(WRONG, envelope["error"]["message"])


def test_a_dataset_that_cannot_select_the_wrong_case_is_whole(half_broken: Project) -> None:
    for name, cases in [("d", ["w.c"]), ("g", ["kiel.good"])]:
        envelope = half_broken.evals("dataset", "show", name, check=False)
        assert (envelope["data"]["cases"], "rent" in envelope["stderr"]) == (cases, False)
    # The misspelt key may have been `tags`.
    assert half_broken.evals("dataset", "show", "t", check=False)["exit_code"] == 2
