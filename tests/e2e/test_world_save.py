"""What was changed in an open app becomes the world's source: what a person sees first, what is refused, what is written."""

from __future__ import annotations

import subprocess
import urllib.request
from collections.abc import Generator
from typing import Any

import pytest
import sqlalchemy as sa
from support.desk import PORT, desk
from support.project import Project

from eval_pipeline.settings import Settings
from eval_pipeline.specs.world_yaml import edited
from eval_pipeline.store.records import open_records
from eval_pipeline.store.schema import snapshots


@pytest.fixture
def opened(project: Project) -> Generator[tuple[Project, str]]:
    commit = desk(project)
    subprocess.run(["git", "init", "-q", "-b", "main", str(project.root)], check=True)
    (project.root / ".gitignore").write_text("app/\n")
    keep(project)
    address = project.evals("world", "open", "w", "--detach")["addresses"][str(PORT)]
    urllib.request.urlopen(f"http://{address}/", data=b"three", timeout=10).read()
    yield project, commit
    project.evals("world", "close", "w", check=False)


def keep(project: Project) -> None:
    """Commit the worlds."""
    git = ["git", "-C", str(project.root), "-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "x"], check=True)


def notes(project: Project, world: str = "w") -> str:
    return (project.worlds / f"worlds/{world}/database/notes.jsonl").read_text()


def made_with(project: Project, digest: str) -> Any:
    with open_records(Settings(state_dir=project.state_dir, worlds_dir=project.worlds)) as records:
        query = sa.select(snapshots.c.made_with).where(snapshots.c.digest == digest)
        return records.database.run(lambda c: c.execute(query).scalar_one())


@pytest.mark.long
def test_save_refuse_and_save_as(opened: tuple[Project, str]) -> None:
    project, commit = opened
    before = notes(project)

    as_new = project.evals("world", "save", "w", "--into", "v")
    assert (as_new["saved_as"], as_new["changed"]["n_rows"], notes(project)) == ("v", 1, before)
    assert notes(project, "v") == before + '{"id": 3, "text": "three"}\n'
    assert (project.worlds / "worlds/v/cases/c.yaml").is_file()
    assert project.evals("world", "save", "w", "--into", "v", check=False)["exit_code"] == 2

    document = project.worlds / "worlds/w/documents/lease.txt"
    stamp = document.stat().st_mtime_ns
    saved = project.evals("world", "save", "w")
    assert (saved["written"], saved["made_with"]) == (True, {"app": "tiny", "commit": commit, "schema_version": 1})
    assert notes(project) == before + '{"id": 3, "text": "three"}\n'
    assert document.stat().st_mtime_ns == stamp, "what did not change is not written"
    text = (project.worlds / "worlds/w/world.yaml").read_text()
    assert text.startswith("# kept as it is\nid: w\n")
    assert f"made_with: {{app: tiny, commit: {commit}, schema_version: 1}}" in text.replace("'", "")
    assert made_with(project, saved["digest"]) == saved["made_with"]
    (checked,) = project.evals("world", "check", "w")
    assert (checked["digest"], checked["findings"]) == (saved["digest"], [])
    assert not list((project.worlds / "worlds/w").glob(".*")), "nothing is left beside"

    project.write("worlds/w/database/notes.jsonl", '{"id": 9, "text": "mine"}\n')
    refused = project.evals("world", "save", "w", check=False)
    assert (refused["exit_code"], refused["error"]["code"]) == (2, "spec")
    assert "changed on disk since it was opened" in refused["error"]["message"]
    assert "uncommitted changes" in refused["error"]["message"]
    assert "~" in refused["stderr"] or "+" in refused["stderr"], "the difference was shown first"
    assert notes(project) == '{"id": 9, "text": "mine"}\n'
    assert project.evals("world", "save", "w", "--yes")["written"]
    assert notes(project).count("\n") == 3


@pytest.mark.slow
def test_a_dump_that_says_nothing_overwrites_nothing(project: Project) -> None:
    desk(project, files={"bin/dump": "#!/bin/sh\n"}, dump=["bin/dump", "/out"])
    project.evals("world", "open", "w", "--detach", "--port", str(PORT), check=False)
    before = notes(project)
    refused = project.evals("world", "save", "w", "--yes", check=False)
    assert refused["exit_code"] != 0
    assert notes(project) == before
    project.evals("world", "close", "w", check=False)


EDITS = [
    ("id: w\n# why\ntitle: t # so\n", {"made_with": {"app": "a"}}, "id: w\n# why\ntitle: t # so\nmade_with: {app: a}\n"),
    ("made_with:\n  app: b\n  commit: c\nid: w", {"made_with": {"app": "a"}}, "made_with: {app: a}\nid: w\n"),
    ("id: w\nschema_version: 2 # old\ntitle: t\n", {"schema_version": None}, "id: w\ntitle: t\n"),
    ("id: w\ntitle: t\n", {"id": "v", "schema_version": None}, "id: v\ntitle: t\n"),
    ("{id: w, title: t}\n", {"id": "v"}, "id: v\ntitle: t\n"),
]


@pytest.mark.parametrize("text, changes, after", EDITS)
def test_a_key_changes_and_the_other_lines_stay(text: str, changes: dict[str, Any], after: str) -> None:
    assert edited(text, changes) == after
