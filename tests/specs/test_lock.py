"""From files and a repository to locks: what changes them, and every name that leads nowhere."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.places import short_dir
from support.project import Project

from eval_pipeline.domain.case import Limits
from eval_pipeline.errors import NotFound, SpecError
from eval_pipeline.specs import git
from eval_pipeline.specs.library import Library
from eval_pipeline.specs.lock import Locked, canonical_config, lock_experiment

PRICE = {
    "provider": "p",
    "model": "m",
    "effective_from": "2026-01-01",
    **{name: "1" for name in ("input_uncached", "cache_read", "cache_write_5m", "cache_write_1h", "output")},
    "source": "s",
}
JUDGED = {"id": "j", "text": "J", "points": 2, "judge": True}


@pytest.fixture(scope="module")
def drawn() -> Generator[Project]:
    with short_dir() as root:
        project = Project(root, root / "state")
        project.case("c", tags=["t"])
        project.case("d")
        project.agent("answer yes\n")
        yield project


@pytest.fixture
def project(drawn: Project) -> Generator[Project]:
    with short_dir() as root:
        yield Project(root, root / "state", like=drawn)


def lock(project: Project, **more: Any) -> Locked:
    return lock_experiment(Library(project.worlds), project.experiment("x", **more))


def lock_again(project: Project) -> Locked:
    return lock_experiment(Library(project.worlds), project.worlds / "experiments" / "x.yaml")


def test_a_lock_holds_what_runs(project: Project) -> None:
    commit = project.agent("answer no\n")
    locked = lock(project, trials=2, seed=7, arms=[{"name": "a", "ref": "main", "config": {"k": 1.0}}])
    run = locked.run
    assert (run.name, run.app, run.backend, run.trials, run.seed) == ("x", "tiny", "local", 2, 7)
    assert [case.name for case in run.cases] == ["w.c", "w.d"]
    (arm,) = run.arms
    tree = subprocess.run(
        ["git", "-C", project.app, "rev-parse", f"{commit}^{{tree}}"], capture_output=True, text=True, check=True
    )
    assert (arm.ref, arm.commit, arm.tree, arm.config) == ("main", commit, tree.stdout.strip(), {"k": 1})
    assert arm.manifest.agent == ("bin/agent",)
    assert locked.repo == project.app.resolve()
    assert set(locked.score.cases) == {"w.c", "w.d"}


PRESENTATION: dict[str, Callable[[Project], Locked]] = {
    "baseline": lambda p: lock(p, baseline="a"),
    "description": lambda p: lock(p, description="Better"),
    "policy": lambda p: lock(p, policy="raw"),
    "judge": lambda p: lock(p, judge={"model": "openai:m"}),
    "rubric": lambda p: (p.case("d", criteria=[JUDGED]), lock(p))[1],
    "reference": lambda p: (p.case("d", reference="42"), lock(p))[1],
    "tags": lambda p: (p.case("d", tags=["u"], split="dev", source={"from": "x"}), lock(p))[1],
    "title": lambda p: (p.write("worlds/w/world.yaml", {"id": "w", "title": "New", "documents": "documents/"}), lock(p))[1],
    "prices": lambda p: (p.write("prices.yaml", [PRICE]), lock(p))[1],
    "empty commit": lambda p: (p.commit({}), lock(p))[1],
    "ref": lambda p: lock(p, arms=[{"name": "a", "ref": "HEAD"}]),
    "worktree": lambda p: lock(p, arms=[{"name": "a", "ref": "WORKTREE"}]),
    "number": lambda p: lock(p, arms=[{"name": "a", "ref": "main", "config": {}}], trials=1),
    "dataset": lambda p: (p.write("datasets/other.yaml", {"name": "other", "cases": ["w.d", "w.c"]}), lock(p, dataset="other"))[
        1
    ],
    "file beside the world": lambda p: (p.write("worlds/w/notes.txt", "x"), lock(p))[1],
    "case file": lambda p: ((p.worlds / "worlds/w/cases/d.yaml").rename(p.worlds / "worlds/w/cases/e.yaml"), lock(p))[1],
}


@pytest.mark.parametrize("change", PRESENTATION)
def test_presentation_and_scoring_are_no_identity(project: Project, change: str) -> None:
    before = lock(project)
    assert PRESENTATION[change](project).run.digest == before.run.digest


def test_a_budget_is_no_identity_and_needs_a_limit_of_each_cell(project: Project) -> None:
    with pytest.raises(SpecError, match=r"x.yaml:\d+: budget: 2 of 2 cases have no limits.cost_usd \(w.c, w.d\)") as caught:
        lock(project, budget={"cost_usd": 3})
    assert "limits: {cost_usd: 0.5}" in (caught.value.hint or "")
    text = (project.worlds / "experiments" / "x.yaml").read_text().splitlines()
    assert "budget:" in text[int(str(caught.value.where).rpartition(":")[2]) - 1]
    before = lock(project, limits={"cost_usd": 1})
    assert lock(project, limits={"cost_usd": 1}, budget={"cost_usd": 3}).run.digest == before.run.digest
    project.case("d", limits={"cost_usd": None})
    with pytest.raises(SpecError, match=r"1 of 2 cases have no limits.cost_usd \(w.d\)"):
        lock(project, limits={"cost_usd": 1}, budget={"cost_usd": 3})


def test_the_nearest_limit_holds(project: Project) -> None:
    app = yaml.safe_load((project.worlds / "app.yaml").read_text())
    project.write("app.yaml", app | {"limits": {"wall_s": 5, "cost_usd": 5, "tokens": 5}})
    project.case("c", limits={"wall_s": 7})
    run = lock(project, limits={"cost_usd": 6, "wall_s": 6}).run
    assert run.case("w.c").limits == Limits(wall_s=7, cost_usd=6, tokens=5)
    project.case("c", limits={"wall_s": 7, "cost_usd": 6, "tokens": 5})  # written nearer it is the same run
    assert lock(project).run.cases[0] == run.cases[0]


def test_a_limit_that_is_not_set_leaves_identities_as_they_were() -> None:
    assert Limits(wall_s=60).model_dump(mode="json") == {"wall_s": 60.0, "cost_usd": None, "turns": None}
    assert Limits(tokens=9).model_dump(mode="json")["tokens"] == 9


IDENTITY: dict[str, Callable[[Project], Locked]] = {
    "prompt": lambda p: (p.case("d", prompt="Other."), lock(p))[1],
    "limits": lambda p: (p.case("d", limits={"turns": 3}), lock(p))[1],
    "deliverables": lambda p: (p.case("d", deliverables=["memo.docx"]), lock(p))[1],
    "seed": lambda p: lock(p, seed=1),
    "trials": lambda p: lock(p, trials=2),
    "document": lambda p: (p.write("worlds/w/documents/lease.txt", "Sixty-one days."), lock(p))[1],
    "document's name": lambda p: (p.write("worlds/w/documents/empty.txt", ""), lock(p))[1],
    "program": lambda p: (p.agent("answer no\n"), lock(p))[1],
    "manifest": lambda p: (p.manifest(resources={"cpu": 2}), p.commit({}), lock(p))[2],
    "config": lambda p: lock(p, arms=[{"name": "a", "ref": "main", "config": {"k": 1}}]),
    "arm": lambda p: lock(p, arms=[{"name": "a", "ref": "main"}, {"name": "b", "ref": "main"}]),
    "fewer cases": lambda p: (p.write("datasets/one.yaml", {"name": "one", "cases": ["w.c"]}), lock(p, dataset="one"))[1],
    "uncommitted": lambda p: ((p.app / "new").write_text("x"), lock(p, arms=[{"name": "a", "ref": "WORKTREE"}]))[1],
}


@pytest.mark.parametrize("change", IDENTITY)
def test_whatever_runs_is_identity(project: Project, change: str) -> None:
    before = lock(project)
    assert IDENTITY[change](project).run.digest != before.run.digest


def test_how_arms_are_ordered_is_identity_and_their_cells_are_the_same(project: Project) -> None:
    arms = [{"name": "a", "ref": "main"}, {"name": "b", "ref": "main", "config": {"k": 1}}]
    one, other = lock(project, arms=arms).run, lock(project, arms=arms[::-1]).run
    assert one.digest != other.digest
    assert {one.cell_digest(key) for key in one.cell_keys()} == {other.cell_digest(key) for key in other.cell_keys()}


def test_scoring_changes_the_score_lock(project: Project) -> None:
    digests = {
        lock(project).score.digest,
        lock(project, policy="raw").score.digest,
        lock(project, judge={"model": "openai:m"}).score.digest,
    }
    project.case("d", criteria=[JUDGED])
    digests.add(lock(project).score.digest)
    project.write("prices.yaml", [PRICE])
    digests.add(lock(project).score.digest)
    assert len(digests) == 5


def test_a_moved_ref_is_a_new_run_of_the_same_source(project: Project) -> None:
    before = lock(project).run
    old = before.arms[0].commit
    assert old is not None
    new = project.agent("answer no\n")
    after = lock_again(project).run
    assert (after.digest == before.digest, after.source_digest == before.source_digest) == (False, True)
    assert git.commits_between(project.app, old, new) == 1
    assert git.commits_between(project.app, old, "0" * 40) is None
    assert lock(project, arms=[{"name": "a", "ref": old}]).run.digest == before.digest


# ---- names that lead nowhere


def _without_manifest(project: Project) -> None:
    (project.app / "evals.app.yaml").unlink()
    project.commit({})


WRONG: list[tuple[str, dict[str, Any], Callable[[Project], object], str, type[SpecError]]] = [
    ("dataset", {"dataset": "nope"}, lambda p: None, "x.yaml:2: there is no dataset 'nope'", NotFound),
    ("app", {"app": "nope"}, lambda p: None, "x.yaml:3: there is no app 'nope'; worlds_src/app.yaml describes 'tiny'", NotFound),
    ("commit", {"arms": [{"name": "a", "ref": "nope"}]}, lambda p: None, "x.yaml:5: arm 'a': there is no commit 'nope'", SpecError),
    ("option", {"arms": [{"name": "a", "ref": "--help"}]}, lambda p: None, "x.yaml:5: arm 'a': '--help' is not a git revision", SpecError),
    ("sha", {"arms": [{"name": "a", "ref": "0" * 40}]}, lambda p: None, "x.yaml:5: arm 'a': there is no commit", SpecError),
    ("manifest", {}, _without_manifest, "x.yaml:5: arm 'a': evals.app.yaml is not in the app's folder at this commit", SpecError),
    (
        "bad manifest",
        {},
        lambda p: (p.manifest(agents=["x"]), p.commit({})),
        r"evals.app.yaml@[0-9a-f]{12}:3: unknown key 'agents'; did you mean 'agent'\?",
        SpecError,
    ),
    ("path", {}, lambda p: p.write("app.yaml", {"name": "tiny", "repo": "app", "path": "sub"}), "has no folder 'sub'", SpecError),
    ("repo", {}, lambda p: p.write("app.yaml", {"name": "tiny", "repo": "nowhere"}), "app.yaml:2: repo: 'nowhere' is no git repository", SpecError),
    ("no app", {}, lambda p: (p.worlds / "app.yaml").unlink(), "worlds_src/app.yaml: can't be read: No such file", SpecError),
    ("nothing", {}, lambda p: p.write("datasets/all.yaml", {"name": "all", "cases": ["*", "v.*"]}), "all.yaml:4: 'v.\\*' selects no", SpecError),
    ("no tag", {}, lambda p: p.write("datasets/all.yaml", {"name": "all", "cases": ["tag:z"]}), "all.yaml:3: 'tag:z' selects no", SpecError),
    ("name", {}, lambda p: p.write("datasets/all.yaml", {"name": "other", "cases": ["*"]}), "all.yaml:1: name is 'other'", SpecError),
    ("twice", {}, lambda p: p.write("worlds/w/cases/z.yaml", (p.worlds / "worlds/w/cases/d.yaml").read_text()), "z.yaml:1: the case id 'd' is already taken at worlds_src/worlds/w/cases/d.yaml:1", SpecError),
    ("world id", {}, lambda p: p.write("worlds/w/world.yaml", {"id": "v", "title": "V"}), "world.yaml:1: id is 'v' but the folder is named 'w'", SpecError),
    ("no folder", {}, lambda p: p.write("worlds/w/world.yaml", {"id": "w", "title": "W", "documents": "docs/"}), "worlds/w/docs: does not exist", NotFound),
    ("price", {}, lambda p: p.write("prices.yaml", [PRICE, {**PRICE, "output": "-1"}]), r"prices.yaml:\d+: output: '-1' is not a price", SpecError),
    ("price number", {}, lambda p: p.write("prices.yaml", [{**PRICE, "output": 1.5}]), r"prices.yaml:8: output: must be a valid string, found 1.5", SpecError),
    ("price key", {}, lambda p: p.write("prices.yaml", [{**PRICE, "outputs": "1"}]), r"prices.yaml:10: unknown key 'outputs'; did you mean 'output'", SpecError),
    ("price day", {}, lambda p: p.write("prices.yaml", [{**PRICE, "effective_from": "soon"}]), "prices.yaml:3: effective_from: ", SpecError),
    ("currency", {}, lambda p: p.write("prices.yaml", [{**PRICE, "currency": "EUR"}]), "prices.yaml:10: currency: ", SpecError),
    ("prices", {}, lambda p: p.write("prices.yaml", PRICE), "prices.yaml:1: must be a list of price rows", SpecError),
]  # fmt: skip


@pytest.mark.parametrize("more, break_it, said, kind", [pytest.param(*row[1:], id=row[0]) for row in WRONG])
def test_names_that_lead_nowhere(
    project: Project, more: dict[str, Any], break_it: Callable[[Project], object], said: str, kind: type[SpecError]
) -> None:
    path = project.experiment("x", **more)
    break_it(project)
    with pytest.raises(kind, match=said) as caught:
        lock_experiment(Library(project.worlds), path)
    assert type(caught.value) is kind
    assert caught.value.exit_code == 2


def test_checks_are_read_when_the_case_is(project: Project) -> None:
    project.case("d", criteria=[{"id": "a", "text": "A", "points": 1, "check": {"contain": "x"}}])
    with pytest.raises(SpecError, match=r"worlds_src/worlds/w/cases/d.yaml:\d+: there is no check 'contain'.*contains"):
        Library(project.worlds).case("w.d")


def test_a_check_looks_at_what_an_agent_can_have_written(project: Project) -> None:
    outside = {
        "all": [{"contains": {"text": "x", "in": "file:a/b.md"}}, {"contains": {"text": "x", "in": "file:../../etc/passwd"}}]
    }
    project.case("d", criteria=[{"id": "a", "text": "A", "points": 1, "check": outside}])
    with pytest.raises(SpecError, match=r"w/cases/d.yaml:\d+: '../../etc/passwd' can't be written by an agent"):
        Library(project.worlds).case("w.d")


@pytest.mark.parametrize("name", ["Bad", "a b", "é", "ａ", "a/b", "../w", "a\n", ""])
@pytest.mark.parametrize("what", ["case", "arm", "experiment", "world"])
def test_bad_names_in_files(project: Project, what: str, name: str) -> None:
    text = json.dumps(name)
    if what == "case":
        project.write(
            "worlds/w/cases/d.yaml",
            f"id: {text}\nprompt: x\nrubric: {{criteria: [{{id: a, text: A, points: 1, judge: true}}]}}\n",
        )
    elif what == "world":
        project.write("worlds/w/world.yaml", f"id: {text}\ntitle: x\n")
    path = project.experiment("x", arms=[{"name": name if what == "arm" else "a", "ref": "main"}])
    if what == "experiment":
        path.write_text(path.read_text().replace("name: x", f"name: {text}"))
    with pytest.raises(SpecError, match=r"\.yaml:\d+: .*is not a name"):
        lock_experiment(Library(project.worlds), path)


def test_names_that_nothing_answers_to_say_what_there_is(project: Project) -> None:
    library = Library(project.worlds)
    for ask, hint in [
        (lambda: library.world("v"), "known worlds: w"),
        (lambda: library.case("w.z"), "known cases: c, d"),
        (lambda: library.case("../w.c"), "known worlds: w"),
        (lambda: library.dataset("z"), "known datasets: none; write datasets/NAME.yaml in the worlds' folder"),
        (lambda: library.experiment_path("z"), "known experiments: none; write experiments/NAME.yaml in the worlds' folder"),
    ]:
        with pytest.raises(NotFound) as caught:
            ask()
        assert caught.value.hint == hint
    with pytest.raises(SpecError, match=r"'c' is not a case name: write <world>\.<case>"):
        library.case("c")


def test_datasets_select_by_name_glob_and_tag(project: Project) -> None:
    project.world("w2")
    project.case("c", world="w2", tags=["t"])
    library = Library(project.worlds)
    for cases, selected in [
        (["*"], ["w.c", "w.d", "w2.c"]),
        (["w.*"], ["w.c", "w.d"]),
        (["w2.c", "w.d"], ["w.d", "w2.c"]),
        (["tag:t"], ["w.c", "w2.c"]),
        (["w?.[a-c]", "tag:t", "w2.c"], ["w.c", "w2.c"]),
    ]:
        project.write("datasets/d.yaml", {"name": "d", "cases": cases})
        assert [case.name for case in library.dataset_cases("d")] == selected


def test_a_folder_without_anything_has_nothing(tmp_path: Path) -> None:
    (tmp_path / "worlds_src").mkdir()
    library = Library(tmp_path / "worlds_src")
    assert (library.world_names(), library.dataset_names(), library.all_cases(), library.prices().rows) == ([], [], [], ())


def test_no_folder_at_all_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no folder") as caught:
        Library(tmp_path / "worlds_src").all_cases()
    assert "mkdir worlds_src" in (caught.value.hint or "")


def test_a_citation_of_a_document_that_is_not_there_is_refused(project: Project) -> None:
    quote = {"id": "q", "text": "Quotes", "points": 1, "check": {"any": [{"contains": "x"}, {"cites": "documents/gone.txt"}]}}
    project.case("bad", criteria=[quote])
    with pytest.raises(SpecError, match=r"bad.yaml:\d+: cites 'documents/gone.txt'"):
        Library(project.worlds).all_cases()
    project.case("bad", criteria=[{**quote, "check": {"cites": {"document": "documents/lease.txt", "quote": "60 days"}}}])
    assert "bad" in [case.spec.id for case in Library(project.worlds).all_cases()]


# ---- git


def test_a_hooks_repository_is_not_taken_for_the_apps(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other"
    subprocess.run(["git", "init", "-q", str(other)], check=True)
    before = lock(project).run.digest
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.setenv(name, str(other / (".git/index" if name == "GIT_INDEX_FILE" else ".git" if name == "GIT_DIR" else "")))
    locked = lock(project, arms=[{"name": "a", "ref": "WORKTREE"}])
    assert (lock(project).run.digest, locked.run.digest) == (before, before)
    assert os.environ["GIT_DIR"] == str(other / ".git")


def test_a_working_tree_is_read_with_what_is_new_and_without_what_is_ignored(project: Project) -> None:
    before = git.worktree_tree(project.app, ".")
    status = ["git", "-C", str(project.app), "status", "--porcelain"]
    (project.app / ".git/info/exclude").write_text("secret\n")
    (project.app / "secret").write_text("x")
    assert git.worktree_tree(project.app, ".") == before == git.tree_of(project.app, "main", ".")
    (project.app / "new.txt").write_text("new")
    tree = git.worktree_tree(project.app, ".")
    assert git.read_file(project.app, tree, "new.txt") == b"new"
    assert subprocess.run(status, capture_output=True, text=True, check=True).stdout == "?? new.txt\n"
    with pytest.raises(SpecError, match="is not in the app's folder"):
        git.read_file(project.app, tree, "secret")


def test_only_the_apps_own_folder_is_identity(project: Project) -> None:
    project.commit({"sub/evals.app.yaml": (project.app / "evals.app.yaml").read_text(), "sub/bin/agent": "x"})
    project.write("app.yaml", {"name": "tiny", "repo": "app", "path": "sub"})
    before = lock(project).run.digest
    project.commit({"elsewhere.txt": "x"})
    assert lock(project).run.digest == before
    project.commit({"sub/bin/agent": "y"})
    assert lock(project).run.digest != before


def test_a_tree_that_is_gone(project: Project) -> None:
    with pytest.raises(SpecError, match="is gone from") as caught:
        git.bundle(project.app, "0" * 40)
    assert "--fresh" in (caught.value.hint or "")


# ---- configs


NUMBER = st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
CONFIG = st.dictionaries(st.text(max_size=4), st.recursive(NUMBER | st.text(max_size=4) | st.booleans() | st.none(), lambda i: st.lists(i, max_size=3) | st.dictionaries(st.text(max_size=3), i, max_size=3), max_leaves=6), max_size=4)  # fmt: skip


@given(CONFIG)
def test_a_config_is_the_same_however_its_numbers_are_written(config: dict[str, Any]) -> None:
    canonical = canonical_config(config)
    assert canonical == config
    assert canonical_config(canonical) == canonical
    assert "1.0" not in json.dumps(canonical_config({"a": [1.0, {"b": 1.0}], **{k: 1.0 for k in config}}))


def test_one_is_one() -> None:
    assert json.dumps(canonical_config({"b": 1.0, "a": [1, 1.0, -0.0, 1e16, 1.5, True, "1.0"]})) == (
        '{"a": [1, 1, 0, 10000000000000000, 1.5, true, "1.0"], "b": 1}'
    )
