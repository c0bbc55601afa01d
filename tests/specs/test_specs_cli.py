"""The author's mistakes as the command line tells them: exit code 2, one envelope, data on stdout only."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest
from support.places import short_dir
from support.project import Project

MISTAKES: list[tuple[list[str], Callable[[Project], object], str, str, str | None]] = [
    (
        ["case", "check"],
        lambda p: p.case("c", tag=["x"]),
        "spec",
        r"worlds_src/worlds/w/cases/c.yaml:10: unknown key 'tag'",
        None,
    ),
    (
        ["world", "list"],
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
    (["case", "frobnicate"], lambda p: None, "usage", "No such command 'frobnicate'", "`evals --help` lists the commands"),
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
