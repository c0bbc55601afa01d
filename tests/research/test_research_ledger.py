"""A research in a real ledger: its locks and its split, a journal that only grows, one driver at a time, money, and what is no proposal."""

from __future__ import annotations

import subprocess
from collections.abc import Generator
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from support.climb import HOLDOUT, climb, goal
from support.places import short_dir
from support.project import Project

from eval_pipeline.errors import BudgetExceeded, EvalsError, FenceLost, NotFound, SpecError
from eval_pipeline.research.driver import Driver, driver
from eval_pipeline.research.opening import Opened, open_research
from eval_pipeline.research.reporting import status
from eval_pipeline.settings import Settings
from eval_pipeline.specs.library import Library
from eval_pipeline.store.database import Database
from eval_pipeline.store.leases import Leases
from eval_pipeline.store.ledger import Ledger
from eval_pipeline.store.records import Records
from eval_pipeline.store.researches import Bounds, Reservation
from eval_pipeline.store.verdicts import Verdicts
from eval_pipeline.store.views import Views

pytestmark = pytest.mark.slow

FREE = Bounds(cost_usd=None, cells=None, wall_s=None)


@pytest.fixture
def project() -> Generator[Project]:
    with short_dir() as root:
        yield climb(Project(root, root / "state"))


@pytest.fixture
def records(database_url: str) -> Generator[Records]:
    database = Database(database_url)
    database.migrate()
    yield Records(
        database=database, ledger=Ledger(database), leases=Leases(database), verdicts=Verdicts(database), views=Views(database)
    )
    database.close()


def opened(project: Project, records: Records, name: str, *, fresh: bool = False) -> Opened:
    return open_research(Library(project.worlds), name, records, "kim", fresh=fresh)


def driven(project: Project, records: Records, research: str) -> Any:
    def refuse(*_: object) -> None:
        raise AssertionError("nothing may run here")

    settings = Settings(state_dir=project.state_dir, worlds_dir=project.worlds)
    return driver(settings, records, research, refuse, lambda _row: None)


def measured(held: Driver, step: int, value: float) -> None:
    """As if its cells had been run on dev."""
    columns = {"score": {name: [value] for name in held.row.split["dev"]}}
    held.append("measured", step, {"half": "dev", "columns": columns, "n_cells": 5, "n_valid": 5})


# ---- what is locked


def test_it_is_locked_once_and_found_again_whatever_its_ref_does(project: Project, records: Records) -> None:
    goal(project, "locked")
    first = opened(project, records, "locked")
    assert (first.resumed, len(first.row.run.cases), first.row.created_by) == (False, 12, "kim")
    assert first.row.split == {"dev": [f"w.c{n}" for n in range(5)], "holdout": [f"{name}.c" for name in HOLDOUT]}
    project.agent("answer moved")
    goal(project, "locked", budget={"cells": 3}, stop={"patience": 1})
    again = opened(project, records, "locked")
    assert (again.row.id, again.resumed, again.row.run) == (first.row.id, True, first.row.run)
    assert again.goal.budget.cells == 3 and records.researches.find(first.row.id).goal["budget"]["cells"] == 3
    fresh = opened(project, records, "locked", fresh=True)
    assert fresh.row.id != first.row.id and fresh.row.run.arms[0].tree != first.row.run.arms[0].tree
    goal(project, "locked", metric={"column": "passed"})
    assert opened(project, records, "locked").row.id not in (first.row.id, fresh.row.id)
    with pytest.raises(NotFound, match="there is no research 'other'"):
        records.researches.find("other")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"split": {"holdout": ["nowhere"]}}, "no case of the world 'nowhere'"),
        ({"split": {"holdout": ["w", *HOLDOUT]}}, "no case is left for dev"),
        (
            {"baseline": {"ref": "main", "config": {"skill": "magic"}}},
            "the baseline is no part of the space: config: skill must be one of",
        ),
        ({"baseline": {"ref": "nowhere", "config": {"skill": "none"}}}, "there is no commit 'nowhere'"),
        ({"space": {"config": {"skill": ["none"]}, "repo": {"branch": "gone"}}}, "there is no commit 'gone'"),
        ({"dataset": "none"}, "there is no dataset 'none'"),
    ],
)
def test_what_could_never_work_is_refused_at_its_place(
    project: Project, records: Records, change: dict[str, Any], message: str
) -> None:
    goal(project, "wrong", **change)
    with pytest.raises(SpecError) as caught:
        opened(project, records, "wrong")
    assert message in str(caught.value) and str(caught.value).startswith("worlds_src/research/wrong.yaml:")
    assert records.researches.all() == []


def test_a_judge_that_nobody_names_is_missed_before_anything_runs(project: Project, records: Records) -> None:
    project.case("c9", "w", [{"id": "j", "text": "Is polite", "points": 1, "judge": True}])
    goal(project, "unjudged")
    with pytest.raises(SpecError, match="1 cases have criteria that need a judge"):
        opened(project, records, "unjudged")


def test_cases_may_say_where_they_belong_by_whole_worlds(project: Project, records: Records) -> None:
    for world in ["w", *HOLDOUT]:
        project.case("said", world, split="dev" if world in ("w", "h0") else "holdout")
    goal(project, "said", split=None)
    split = opened(project, records, "said").row.split
    assert {name.partition(".")[0] for name in split["dev"]} == {"w", "h0"}
    project.case("other", "w", split="holdout")
    goal(project, "mixed", split=None)
    with pytest.raises(SpecError, match=r"^worlds_src/worlds/w/cases/said\.yaml.*a world is never divided"):
        opened(project, records, "mixed")
    goal(project, "drawn", split={"share": 0.4, "seed": 3})
    drawn = opened(project, records, "drawn").row.split
    assert {name.partition(".")[0] for name in drawn["dev"]}.isdisjoint(name.partition(".")[0] for name in drawn["holdout"])


# ---- the journal


def test_the_journal_only_grows_and_one_process_writes_a_row(project: Project, records: Records) -> None:
    goal(project, "journal")
    name = opened(project, records, "journal").row.id
    store = records.researches
    store.append(name, 1, "stopped", 0, {"why": "x"})
    store.append(name, 1, "stopped", 0, {"why": "x"})  # the answer to our own commit was lost
    with pytest.raises(FenceLost, match="another process has gone on with it"):
        store.append(name, 1, "stopped", 0, {"why": "y"})
    assert [row.kind for row in store.journal(name)] == ["started", "stopped"]
    for statement in ("update evals.research_journal set step = 9", "delete from evals.research_journal"):
        with pytest.raises(DBAPIError, match="append-only"):
            records.database.run(lambda c, text=statement: c.execute(sa.text(text)))


def test_one_drives_at_a_time(project: Project, records: Records) -> None:
    goal(project, "driven")
    name = opened(project, records, "driven").row.id
    with (
        driven(project, records, name),
        pytest.raises(FenceLost, match="another process is at work"),
        driven(project, records, name),
    ):
        raise AssertionError("two at once")
    with driven(project, records, name) as held:
        assert held.state.steps[0].arm["config"] == {"skill": "none"}


# ---- money


def test_what_is_left_bounds_the_next_experiment_and_closes_the_others(project: Project, records: Records) -> None:
    goal(project, "money")
    row = opened(project, records, "money").row
    for name in ("one", "two"):
        run = row.run.model_validate({**{key: getattr(row.run, key) for key in type(row.run).model_fields}, "name": name})
        records.ledger.create_experiment(run, row.score, repo=row.repo, baseline=None, budget_usd=Decimal(50))
    one, two = (records.ledger.experiment(name).id for name in ("one", "two"))
    bounds = Bounds(cost_usd=Decimal(10), cells=20, wall_s=100.0)
    store = records.researches

    def ask(experiment: str, step: int, usd: str, cells: int, other: str = "0") -> Bounds:
        asked = Reservation(experiment=experiment, step=step, half="dev", usd=Decimal(usd), cells=cells, other_usd=Decimal(other))
        return store.reserve(row.id, asked, bounds)

    assert ask(one, 0, "6", 5) == bounds
    spend = sa.text("update evals.experiments set committed_usd = 7, begun_cells = 16 where id = :id")
    records.database.run(lambda c: c.execute(spend, {"id": one}))
    left = ask(two, 1, "2", 4, "0.5")
    assert (left.cost_usd, left.cells) == (Decimal("2.5"), 4)
    closed = records.ledger.experiment(one)
    assert (closed.budget_usd, closed.budget_cells) == (Decimal(7), 16)
    assert store.spent(row.id).committed_usd == Decimal(7)
    for usd, cells, other, message in [
        ("2.6", 1, "0.5", "may need 2.6 of budget.cost_usd, and 2.5 of 10 are left"),
        ("1", 5, "0", "may need 5 of budget.cells, and 4 of 20"),
    ]:
        with pytest.raises(BudgetExceeded, match=message):
            ask(two, 1, usd, cells, other)
    assert (
        store.reserve(
            row.id, Reservation(experiment=two, step=1, half="dev", usd=Decimal(99), cells=99, other_usd=Decimal(0)), FREE
        )
        == FREE
    )
    assert store.runs(row.id) == {one: (0, "dev"), two: (1, "dev")}


# ---- proposals


def test_a_proposal_is_locked_like_an_arm_or_refused_in_words(project: Project, records: Records) -> None:
    base = project.agent("answer no")
    goal(
        project,
        "lock",
        baseline={"ref": base, "config": {"skill": "none"}},
        space={"config": {"skill": ["none", "good"]}, "repo": {"branch": "main"}},
    )
    better = project.agent("answer yes")
    git = ["git", "-C", str(project.app), "-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    subprocess.run([*git, "checkout", "-q", "--orphan", "aside"], check=True)
    stranger = project.commit({"x": "y"})
    subprocess.run([*git, "checkout", "-q", "-b", "branch", base], check=True)
    elsewhere = project.commit({"x": "z"})
    subprocess.run([*git, "checkout", "-q", "main"], check=True)
    name = opened(project, records, "lock").row.id
    with driven(project, records, name) as held:
        with pytest.raises(SpecError, match="the step before is still under way"):
            held.submit({"config": {"skill": "good"}})
        measured(held, 0, 0.0)
        for answer, message in [
            ({}, "neither config nor commit"),
            ({"config": [1]}, "config must hold keys and values, found list"),
            ({"config": {"skill": "good", "model": "dear"}}, "'model' may not be changed"),
            ({"confg": {}}, "unknown key 'confg'"),
            ({"config": {"skill": "none"}}, "this is what step 0 was already"),
            ({"commit": 7}, "commit must be a git revision, found int"),
            ({"commit": "--help"}, "is not a git revision"),
            ({"commit": "nowhere"}, "there is no commit 'nowhere'"),
            ({"commit": stranger}, "does not descend from the baseline's"),
            ({"commit": elsewhere}, "is not on the branch 'main'"),
        ]:
            with pytest.raises(SpecError, match=message.replace("(", r"\(")):
                held.submit(answer)
        found = held.submit({"commit": better, "note": "says yes", "cost_usd": 0.25})
        assert found.arm is not None
        assert (found.arm["commit"], found.arm["config"], found.arm["name"]) == (better, {"skill": "none"}, "s1")
    assert [row.kind for row in records.researches.journal(name)] == ["started", "measured", "proposed"]
    told = status(records, records.researches.find(name))
    assert (told["state"], told["step"], told["n_candidates"]) == ("measure", 1, 1)


def test_a_proposal_is_considered_as_it_would_be_taken(project: Project, records: Records) -> None:
    goal(project, "considered", space={"config": {"skill": ["none", "good"]}})
    name = opened(project, records, "considered").row.id
    answer = {"config": {"skill": "good"}}
    with driven(project, records, name) as held:
        measured(held, 0, 0.0)
        held.append("stopped", 0, {"why": "stopped by request: enough"})
        with pytest.raises(SpecError, match="it has stopped: stopped by request"):
            held.submit(answer)
        due, found = held.considered(answer, resumes=True)
        assert (due.do, due.step, found.arm is not None) == ("propose", 1, True)
        assert [row.kind for row in records.researches.journal(name)] == ["started", "measured", "stopped"]
        held.append("opened", 0, {})
        with pytest.raises(SpecError, match="the numbers of its holdout were shown"):
            held.considered(answer, resumes=True)


def test_an_error_of_ours_is_no_answer_of_a_proposer(project: Project, records: Records) -> None:
    """What a command is kept from is looked for before it is started: the state directory, the socket, the holdout's worlds."""
    goal(project, "asked", proposer={"command": ["/bin/cat"], "timeout_s": 30})
    name = opened(project, records, "asked").row.id
    with driven(project, records, name) as held:
        measured(held, 0, 0.0)
        try:
            found = held.desk.propose(held.state, 1)
        except EvalsError as error:
            pytest.skip(f"no walls here: {error}")
        assert found.why is not None and found.why.startswith("unknown key")  # it said what it was told: that is no proposal
        view = held.desk.view(held.state, 1)
        assert view["dev_cases"] == held.row.split["dev"] and "h0" not in str(view)
