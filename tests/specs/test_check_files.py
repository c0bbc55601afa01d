"""A check in a file beside its case: read with the case, locked with its rubric, found when it is none, refused where it can't run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from support.places import short_dir
from support.project import EVALS, Project

from eval_pipeline.errors import SpecError
from eval_pipeline.specs.library import Library
from eval_pipeline.specs.lock import Locked, lock_experiment

pytestmark = pytest.mark.slow

SOURCE = "def check(answer):\n    return 'yes' in (answer or ''), 'looked for yes'\n"
FILE = "worlds/w/cases/checks/mine.py"
REPOSITORY = Path(__file__).resolve().parents[2]
WITHOUT = [sys.executable, str(REPOSITORY / "tests" / "support" / "no_user_namespaces.py")]


@pytest.fixture
def project() -> Generator[Project]:
    with short_dir() as root:
        project = Project(root, root / "state")
        project.agent("answer yes\n")
        yield project


def with_check(project: Project, check: Any = "checks/mine.py", source: str | None = SOURCE, **more: Any) -> None:
    if source is not None:
        project.write(FILE, source)
    project.case(criteria=[{"id": "mine", "text": "Mine", "points": 1, "check": {"python": check}, **more}])


def locked(project: Project) -> Locked:
    return lock_experiment(Library(project.worlds), project.experiment("x"))


def test_its_content_is_a_part_of_the_score_lock_alone(project: Project) -> None:
    with_check(project)
    first = locked(project)
    assert "looked for yes" in json.dumps(first.score.model_dump(mode="json"))
    assert "looked for yes" not in json.dumps(first.run.model_dump(mode="json"))
    project.write(FILE, SOURCE + "# changed\n")
    second = locked(project)
    assert (second.run.digest, second.score.digest != first.score.digest) == (first.run.digest, True)


def test_a_changed_option_changes_the_score_lock(project: Project) -> None:
    asking = "def check(options): return options['k'] == 1"
    digests = set[str]()
    for k in (1, 2, 2):
        with_check(project, {"file": "checks/mine.py", "with": {"k": k}}, asking)
        digests.add(locked(project).score.digest)
    assert len(digests) == 2


def test_it_is_read_wherever_it_stands_in_a_check(project: Project) -> None:
    project.write(FILE, SOURCE)
    check = {"all": [{"not": {"contains": "no"}}, {"at_least": {"n": 1, "of": [{"python": "checks/mine.py"}]}}]}
    project.case(criteria=[{"id": "mine", "text": "Mine", "points": 1, "check": check}])
    (case,) = Library(project.worlds).all_cases()
    (criterion,) = case.spec.rubric.criteria
    assert criterion.check is not None
    assert criterion.check["all"][1]["at_least"]["of"][0]["python"] == {"file": "checks/mine.py", "source": SOURCE, "with": {}}


@pytest.mark.parametrize(
    ("check", "source", "said"),
    [
        ("checks/none.py", SOURCE, "'checks/none.py', which can't be read: No such file"),
        ("../../../app.yaml", None, "in the case's folder or below it"),
        ("/etc/passwd.py", None, "in the case's folder or below it"),
        ("checks/mine.txt", None, "in the case's folder or below it"),
        ("checks/mine.py", "def check(answer)\n", "checks/mine.py:1: expected ':'"),
        ("checks/mine.py", "\ndef check(anwser): ...\n", "checks/mine.py:2: `check` can't be given 'anwser'"),
        ("checks/mine.py", "#" * (300 << 10), "a check at most 262,144"),
        ({"file": "checks/mine.py", "source": "def check(): ..."}, SOURCE, "has no option 'source'"),
        ({"file": "checks/mine.py", "with": 3}, SOURCE, "needs a mapping as `with`"),
        (["checks/mine.py"], SOURCE, "write `python: checks/my_check.py`"),
    ],
)
def test_a_bad_one_is_found_before_anything_runs(project: Project, check: Any, source: str | None, said: str) -> None:
    with_check(project, check, source)
    with pytest.raises(SpecError) as caught:
        locked(project)
    assert said in str(caught.value)
    assert str(caught.value).startswith("worlds_src/worlds/w/cases/c.yaml:")


def test_a_link_leads_nowhere_else(project: Project) -> None:
    target = project.write("elsewhere.py", SOURCE)
    (project.worlds / "worlds/w/cases/checks").mkdir(parents=True)
    (project.worlds / FILE).symlink_to(target)
    with_check(project, source=None)
    with pytest.raises(SpecError, match="in the case's folder or below it"):
        locked(project)


def test_case_check_and_world_check_find_it(project: Project) -> None:
    with_check(project, source="def chek(answer): return True\n")
    for command in (("case", "check"), ("world", "check", "w")):
        told = project.evals(*command, check=False)
        assert (told["exit_code"], "has no function `check`" in json.dumps(told)) == (2, True)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a place without user namespaces")
def test_where_nothing_can_be_isolated_the_plan_refuses_it(project: Project) -> None:
    """Whatever is permitted to agents."""
    with_check(project)
    project.experiment("x")
    command = [*WITHOUT, *EVALS, "experiment", "plan", "x", "--json"]
    env = project.env | {"EVALS_UNSAFE_NO_ISOLATION": "1"}
    done = subprocess.run(command, env=env, cwd=project.root, capture_output=True, text=True, timeout=120, check=False)
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"]) == (2, "spec")
    assert "worlds/w/cases/c.yaml:" in error["message"] and "checks/mine.py" in error["message"]
    assert "user.max_user_namespaces" in error["message"]
