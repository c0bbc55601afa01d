"""`--dry-run` says what then happens, and changes nothing that can be seen from outside: rows, files, processes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from click.testing import CliRunner
from support.climb import climb, goal
from support.desk import desk
from support.project import Project

from eval_pipeline.cli.main import cli
from eval_pipeline.errors import EvalsError, NotFound, SpecError
from eval_pipeline.settings import Settings
from eval_pipeline.store.postgres import embedded_server

pytestmark = pytest.mark.slow

MARGIN = ("--margin", "0.9", "--alpha", "0.4")
GONE_ON_WITH = {"engines"}
"""What an engine that works on something writes all the time."""


@pytest.fixture
def watched(project: Project, monkeypatch: pytest.MonkeyPatch) -> Generator[Outside]:
    for name in ("EVALS_STATE_DIR", "EVALS_WORLDS_DIR"):
        monkeypatch.setenv(name, project.env[name])
    monkeypatch.chdir(project.root)
    with embedded_server(Settings(state_dir=project.state_dir, worlds_dir=project.worlds)) as url:
        found = Outside(project, url)
        found.evals("budget")  # whoever is first makes the ledger's tables
        yield found


class Outside:
    """The project seen without its command line."""

    def __init__(self, project: Project, url: str) -> None:
        self.project = project
        self._url = url.replace("postgresql+psycopg2", "postgresql", 1)

    def evals(self, *args: str) -> Any:
        """The `data` of a `--json` call in this process, which is cheaper."""
        done = CliRunner().invoke(cli, [*args, "--json"], standalone_mode=False, catch_exceptions=False)
        return json.loads(done.stdout)["data"]

    def execute(self, statement: str, *values: str) -> None:
        with closing(psycopg2.connect(self._url)) as connection, connection, connection.cursor() as cursor:
            cursor.execute(statement, values)

    def rows(self) -> dict[str, str | None]:
        """Table of the ledger -> digest of its rows."""
        with closing(psycopg2.connect(self._url)) as connection, connection.cursor() as cursor:
            cursor.execute(
                "select table_name from information_schema.tables where table_schema = 'evals' and table_type = 'BASE TABLE'"
            )
            names = sorted({name for (name,) in cursor.fetchall()} - GONE_ON_WITH)
            found: dict[str, str | None] = {}
            for name in names:
                cursor.execute(f"select md5(string_agg(t::text, ' ' order by t::text)) from evals.{name} t")
                row = cursor.fetchone()
                found[name] = None if row is None else row[0]
            return found

    def files(self) -> dict[str, str]:
        """What people wrote, what is stored, and the logs of engines."""
        folders = [self.project.root, *(self.project.state_dir / name for name in ("artifacts", "logs", "layers", "sandboxes"))]
        paths = [path for folder in folders for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts]
        return {
            str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(paths) if "sandboxes" not in path.parts
        }

    def dry(self, *args: str) -> dict[str, Any]:
        rows, files = self.rows(), self.files()
        found = self.evals(*args, "--dry-run")
        assert found["dry_run"] is True
        assert (self.rows(), self.files()) == (rows, files), args
        return found


def running(*words: str) -> list[int]:
    """Processes of this machine, also inside of sandboxes, with just these arguments."""
    wanted = b"\0".join(word.encode() for word in words) + b"\0"
    return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if _read(path) == wanted]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended meanwhile
        return b""


@pytest.mark.long
def test_running_and_judging(watched: Outside) -> None:
    project = watched.project
    project.agent("answer yes")
    project.case("c", limits={"cost_usd": 0.5})
    project.case("d", limits={"cost_usd": 0.5})
    project.experiment("dry", trials=2)

    planned = watched.dry("experiment", "run", "dry")
    assert (planned["n_new"], planned["max_cost_usd"], planned["starts_engine"]) == (4, 2.0, True)
    name = project.run("dry")["experiment"]
    assert name == planned["experiment"]
    assert [cell["cell"] for cell in watched.evals("experiment", "cells", "dry")] == planned["open_cells"]
    done = watched.dry("experiment", "run", "dry", "--wait")
    assert (done["open_cells"], done["starts_engine"]) == ([], False)

    watched.evals("budget", "--confirm-above", "0.1")
    project.experiment("dear", seed=5)
    asks = watched.dry("experiment", "run", "dear")["must_confirm"]
    with pytest.raises(SpecError) as refused:
        watched.evals("experiment", "run", "dear")
    assert str(refused.value) == asks
    watched.evals("budget", "--confirm-above", "none")

    again = watched.dry("experiment", "rerun", "dry", "--cell", "w.c/a/0", "--discard", "a try")
    assert (again["open_cells"], again["discards"], again["max_cost_usd"]) == ([f"{name}/w.c/a/0"], [f"{name}/w.c/a/0"], 0.5)
    assert watched.dry("experiment", "rerun", "dry", "--cell", "w.c/a/0")["open_cells"] == []

    project.case(
        "c", criteria=[{"id": "says-no", "text": "Says no", "points": 1, "check": {"contains": "no"}}], limits={"cost_usd": 0.5}
    )
    anew = watched.dry("score", "dry", "--rubric", "latest")
    assert (anew["cells_to_check"], anew["n_calls"], anew["cost_usd"]) == ([f"{name}/w.c/a/0", f"{name}/w.c/a/1"], 0, 0.0)
    assert watched.dry("experiment", "run", "dry")["judges_again"] is True
    watched.evals("score", "dry", "--rubric", "latest")
    assert [cell["score"] for cell in watched.evals("experiment", "cells", "dry")] == [0.0, 0.0, 1.0, 1.0]
    keeping(watched, name)


def keeping(watched: Outside, name: str) -> None:
    assert watched.dry("experiment", "cancel", name)["ends"] == {}
    assert watched.dry("experiment", "archive", name)["archived"] is False
    watched.evals("experiment", "archive", name)
    assert watched.dry("experiment", "restore", name)["archived"] is True
    assert watched.dry("experiment", "rerun", name, "--cell", "w.c/a/0", "--discard", "a try")["restores"] is True
    watched.evals("experiment", "restore", name)
    assert watched.dry("benchmark", "add", "law", name)["entered"] == ["a"]
    watched.evals("benchmark", "add", "law", name)
    assert watched.dry("benchmark", "add", "law", name)["there_already"] == ["a"]
    assert watched.dry("benchmark", "remove", "law", name, "a")["removed"] == "a"
    with pytest.raises(NotFound):
        watched.dry("benchmark", "remove", "law", name, "b")
    assert watched.evals("benchmark", "list") == [{"benchmark": "law", "n_arms": 1}]
    watched.dry("image", "gc", "--older-than", "1h")
    watched.dry("artifact", "gc")


def test_deciding(watched: Outside) -> None:
    project = climb(watched.project)
    base, head = project.agent("answer yes"), project.agent("answer 'yes indeed'")
    asked = ("gate", "--base", base, "--head", head, "--dataset", "all", *MARGIN)
    goal(project, "up")
    found = watched.dry(*asked)
    assert (found["decision"], found["n_new"], found["starts_engine"]) == (None, 24, True)
    assert watched.dry("gate", "--base", base, "--head", base, "--dataset", "all", *MARGIN)["decision"] == "identical"

    for verb, drives in (("start", False), ("run", True)):
        begun = watched.dry("research", verb, "up")
        assert (begun["drives"], begun["resumed"], begun["n_cells_a_step"], begun["n_holdout"]) == (drives, False, 5, 7)
    watched.evals("budget", "--confirm-above", "100")
    rows = watched.rows()
    for verb in ("start", "run"):  # its budget names no sum
        with pytest.raises(SpecError, match="any sum"):
            watched.evals("research", verb, "up")
    assert watched.rows() == rows, "what was refused is not there for `next`"
    watched.evals("budget", "--confirm-above", "none")
    name = watched.evals("research", "start", "up")["research"]
    assert (name, watched.dry("research", "start", "up")["resumed"]) == (begun["research"], True)
    taken = watched.dry("research", "submit", "up", "--config", '{"skill": "good"}')
    assert (taken["first"], taken["config"], taken["n_cells_a_step"]) == ("measure", {"skill": "good"}, 5)
    with pytest.raises(SpecError, match="skill must be one of"):
        watched.dry("research", "submit", "up", "--config", '{"skill": "magic"}')
    assert watched.dry("research", "stop", "up")["cancels"] == []


@pytest.mark.long
def test_ending_what_is_alive(watched: Outside) -> None:
    project, sleeper = watched.project, ("sleep", f"{4000 + os.getpid()}.25")
    project.agent(f"{' '.join(sleeper)}; answer yes")
    project.case("c")
    project.experiment("busy")
    name = project.evals("experiment", "run", "busy")["experiment"]
    (pid,) = project.wait_for(lambda: running(*sleeper))
    ends = watched.dry("experiment", "cancel", name)["ends"]
    assert (list(ends.values()), running(*sleeper)) == ([f"{name}/w.c/a/0"], [pid])
    project.kill_engines(name)
    # As when an engine dies between the end of an attempt and the end of its sandbox
    watched.execute("update evals.attempts set ended_at = now() where cell_key = %s", f"{name}/w.c/a/0")
    lost = watched.dry("sandbox", "reap")["reaped"]
    assert (lost, running(*sleeper)) == (list(ends), [pid])
    assert watched.evals("sandbox", "reap", "--grace", "0")["reaped"] == lost
    assert running(*sleeper) == []


def test_an_open_world(watched: Outside) -> None:
    project = watched.project
    desk(project)
    opened = project.evals("world", "open", "w", "--detach")
    try:
        saved = watched.dry("world", "save", "w", "--into", "w2")
        assert (saved["written"], saved["digest"], (project.worlds / "worlds" / "w2").exists()) == (True, None, False)
        closed = watched.dry("world", "close", "w")
        assert closed["sandbox"] == opened["sandbox"]
        assert opened["sandbox"] in [row["sandbox"] for row in watched.evals("sandbox", "list") if row["alive"]]
    finally:
        watched.evals("world", "close", "w")
    with pytest.raises(EvalsError, match="not open"):
        watched.dry("world", "close", "w")
