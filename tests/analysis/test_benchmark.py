"""Arms of several experiments in one table: what may stand together, and what commits changed."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from scipy import stats as scipy_stats
from support.boards import PRICE, Frame, drawn, told
from support.ledgers import Books
from support.locks import criterion, locked_arm, locked_case, run_lock, score_lock

from eval_pipeline.analysis.benchmark import (
    Member,
    arm_identity,
    benchmark_board,
    repriced,
    require_same,
    shared_prices,
)
from eval_pipeline.analysis.benchmark_text import entries_grid, sparkline, standing, trend_grid
from eval_pipeline.analysis.load_benchmark import add_arms, load_benchmark
from eval_pipeline.domain.case import Limits
from eval_pipeline.domain.experiment import JudgeSpec
from eval_pipeline.domain.lock import RunLock
from eval_pipeline.errors import NotFound, SpecError
from eval_pipeline.store.benchmarks import BenchmarkEntry, Benchmarks
from eval_pipeline.store.ledger import ExperimentRow
from eval_pipeline.store.records import Records
from eval_pipeline.store.schema_benchmarks import benchmark_entries

pytestmark = pytest.mark.slow

BEGAN = datetime(2026, 1, 5, tzinfo=UTC)


def of_commit(month: int, truth: Frame, commit: str) -> Member:
    """An experiment with one arm at the commit, that entered in that month."""
    experiment, cells = told(truth, name=f"m{month}")
    (arm,) = experiment.run.arms
    moved = arm.model_copy(update={"commit": commit * 40, "tree": commit * 40})
    run = RunLock(**{**{name: getattr(experiment.run, name) for name in RunLock.model_fields}, "arms": (moved,)})
    experiment = replace(experiment, id=f"m{month}-x", run=run)
    entry = BenchmarkEntry(
        benchmark="law",
        identity=arm_identity(experiment, run.arms[0]),
        experiment=experiment.id,
        arm=arm.name,
        entered_at=BEGAN + timedelta(days=30 * month),
    )
    return Member(entry=entry, experiment=experiment, cells=cells)


@pytest.fixture(scope="module")
def truths() -> list[Frame]:
    return [drawn(30, 2, {"base": chance}, n_worlds=30, seed=7 + n) for n, chance in enumerate((0.4, 0.6, 0.55))]


@pytest.fixture(scope="module")
def members(truths: list[Frame]) -> list[Member]:
    return [of_commit(n, truth, "abc"[n]) for n, truth in enumerate(truths)]


def case_scores(truth: Frame) -> Frame:
    return truth.assign(score=(truth["a"] + 3 * truth["b"]) / 4).groupby("case", sort=False)["score"].mean()


@pytest.mark.long
def test_commits_of_one_config_are_a_line_and_compared_case_by_case(members: list[Member], truths: list[Frame]) -> None:
    board = benchmark_board("law", members, None, resamples=50)
    scores = [case_scores(truth) for truth in truths]
    assert [arm.score for arm in board.arms] == pytest.approx([one.mean() for one in scores])
    (line,) = board.lines
    assert [point.label for point in line.points] == ["base@aaaaaaa", "base@bbbbbbb", "base@ccccccc"]
    assert [point.entered_at for point in line.points] == [BEGAN + timedelta(days=30 * n) for n in range(3)]
    for n in (1, 2):
        test = scipy_stats.ttest_rel(scores[n], scores[n - 1])
        assert line.points[n].since_last == pytest.approx(scores[n].mean() - scores[n - 1].mean())
        assert line.points[n].p == pytest.approx(test.pvalue)
        against_first = scipy_stats.ttest_rel(scores[n], scores[0])
        assert board.comparisons[n - 1].p == pytest.approx(against_first.pvalue)
    assert line.points[0].since_last is None
    assert (board.baseline, board.status, board.n_common_cases) == ("base@aaaaaaa", "final", 30)
    assert benchmark_board("law", members, "base@ccccccc", resamples=50).comparisons[0].a == "base@ccccccc"
    with pytest.raises(SpecError, match="'other' is no arm of benchmark law"):
        benchmark_board("law", members, "other", resamples=10)
    json.dumps(board.as_data(), default=str, allow_nan=False)


def test_words_and_sparklines(members: list[Member]) -> None:
    board = benchmark_board("law", members, None, resamples=50)
    assert len(entries_grid(board).rows) == 3 and "2026-03-06" in entries_grid(board).rows[2]
    scores = [point.score for point in board.lines[0].points]
    assert f"base@ccccccc: score {sparkline(scores)}  cost " in trend_grid(board.lines[0]).title
    assert any(line.startswith("versions: benchmark ") for line in standing(board))
    assert sparkline([0.0, None, 1.0, 0.5]) == "▁·█▅" and sparkline([2.0, 2.0]) == "▅▅" and sparkline([None]) == "·"


@pytest.mark.parametrize(
    "change, said",
    [
        ({"trials": 3}, "trials: 2 and 3"),
        ({"worlds": {"w0": "f" * 64}}, "snapshot of world w0"),
        ({"limits": Limits(wall_s=5)}, "prompt, deliverables or limits of case w0.c0, w0.c1"),
        ({"policy": "raw"}, "policy: clip_cell and raw"),
        ({"criteria": (criterion("z", 1),)}, "rubric or reference of case w0.c0, w0.c1"),
        ({"cases": 1}, "w0.c1 (1 of them are in one only)"),
        ({"judge": JudgeSpec(model="openai:x")}, "judge: none and openai:x, 1 votes (judge-"),
    ],
)
def test_mixed_versions_are_refused_and_what_differs_is_said(change: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        require_same(plain(), plain(**change), "law")
    assert said in str(caught.value) and "mixes no versions" in str(caught.value)
    assert caught.value.hint is not None and "evals score x" in caught.value.hint
    require_same(plain(), plain(seed=9), "law")


def plain(
    trials: int = 2,
    worlds: Any = None,
    limits: Limits | None = None,
    policy: Any = "clip_cell",
    criteria: Any = None,
    cases: int = 2,
    judge: JudgeSpec | None = None,
    **more: Any,
) -> ExperimentRow:
    from support.tables import experiment_row

    of = [locked_case(f"c{n}", "w0", limits=limits or Limits()) for n in range(cases)]
    run = run_lock("x", of, trials=trials, **({"worlds": worlds} if worlds else {}), **more)
    rubric = criteria or ((criterion("j", 1, judge=True),) if judge else (criterion("j", 1),))
    score = score_lock(run, rubric, policy).model_copy(update={"judge": judge})
    return experiment_row(run, score)


def test_all_costs_are_at_the_newest_prices() -> None:
    old, new = plain(), plain(seed=1)
    dear, other = {**PRICE, "output": "99"}, {**PRICE, "model": "gone"}
    old = repriced(old, [PRICE, other])
    new = repriced(new, [dear])
    assert old.score.digest != plain().score.digest
    assert shared_prices([old, new]) == [dear, other] and shared_prices([new, old]) == [PRICE, other]


def test_an_arm_is_what_it_runs_not_its_name() -> None:
    experiment = plain()
    arms = {name: locked_arm(name, **more) for name, more in
            {"a": {}, "b": {"commit": "e" * 40}, "c": {"config": {"k": 1}}, "d": {"tree": "f" * 40}}.items()}  # fmt: skip
    identities = {name: arm_identity(experiment, arm) for name, arm in arms.items()}
    assert identities["a"] == identities["b"] and len(set(identities.values())) == 3


@pytest.fixture
def books(database_url: str) -> Books:
    return Books(database_url)


def records_of(books: Books) -> Records:
    return Records(database=books.database, ledger=books.ledger, leases=books.leases, verdicts=books.verdicts, views=books.views)


def finished(books: Books, name: str, trees: dict[str, str]) -> RunLock:
    arms = [locked_arm(arm, tree=tree * 40, commit=tree * 40) for arm, tree in trees.items()]
    run = books.experiment(2, name=name, arms=arms)
    engine = books.engine()
    for _ in run.cell_keys():
        claim = books.claim(run, engine)
        books.finish(claim, books.begin(claim), bundle="b" * 64, cost_usd=Decimal("0.5"), latency_s=1.0)
    return run


def test_entries_accumulate_and_the_first_result_of_an_arm_stays(books: Books) -> None:
    records = records_of(books)
    first, second = finished(books, "x", {"base": "a"}), finished(books, "y", {"base": "a", "new": "b"})
    rows = [records.ledger.experiment(run.experiment_id) for run in (first, second)]
    assert add_arms(records, "law", rows[0], []) == {"base": True}
    assert add_arms(records, "law", rows[1], []) == {"base": False, "new": True}
    assert add_arms(records, "law", rows[1], ["new"]) == {"new": False}
    past = sa.update(benchmark_entries).where(benchmark_entries.c.arm == "base").values(entered_at=BEGAN)
    books.database.run(lambda c: c.execute(past))
    board = load_benchmark(records, "law")
    assert [(entry.label, entry.experiment) for entry in board.entries] == [("base", rows[0].id), ("new", rows[1].id)]
    assert board.entries[0].entered_at == BEGAN and [arm.cost_usd_mean for arm in board.arms] == [0.5, 0.5]
    with pytest.raises(SpecError, match="has no arm other"):
        add_arms(records, "law", rows[1], ["other"])
    assert Benchmarks(books.database).names() == {"law": 2}
    assert records.benchmarks.remove("law", "new", rows[1].id) and not records.benchmarks.remove("law", "new", rows[1].id)
    with pytest.raises(NotFound, match="no benchmark 'low'; there are: law"):
        load_benchmark(records, "low")


def test_what_was_judged_anew_since_is_refused_until_all_are(books: Books) -> None:
    records = records_of(books)
    runs = [finished(books, "x", {"base": "a"}), finished(books, "y", {"new": "b"})]
    for run in runs:
        add_arms(records, "law", records.ledger.experiment(run.experiment_id), [])
    for n, run in enumerate(runs):
        changed = score_lock(run, (criterion("other", 2),))
        records.scorings.set(run.experiment_id, changed)
        if n == 0:
            with pytest.raises(SpecError, match=r"differ in rubric or reference of case w\.c0, w\.c1"):
                load_benchmark(records, "law")
    assert len(load_benchmark(records, "law").entries) == 2


def test_other_versions_do_not_enter(books: Books) -> None:
    records = records_of(books)
    add_arms(records, "law", records.ledger.experiment(finished(books, "x", {"base": "a"}).experiment_id), [])
    other = books.experiment(2, name="z", trials=2, arms=[locked_arm("new", tree="c" * 40)])
    with pytest.raises(SpecError, match="trials: 1 and 2"):
        add_arms(records, "law", records.ledger.experiment(other.experiment_id), [])
    assert records.benchmarks.names() == {"law": 1}


def test_the_commands(books: Books, database_url: str, state_dir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from eval_pipeline.cli.main import cli

    monkeypatch.setenv("EVALS_POSTGRES_URL", database_url)
    monkeypatch.setenv("EVALS_STATE_DIR", str(state_dir))
    run = finished(books, "x", {"base": "a", "new": "b"})

    def data(*words: str) -> Any:
        done = CliRunner().invoke(cli, ["benchmark", *words, "--json"], catch_exceptions=False)
        return json.loads(done.stdout)["data"]

    assert data("add", "law", "x", "--arm", "base")["entered"] == ["base"]
    assert data("add", "law", "x") == {
        "benchmark": "law",
        "experiment": run.experiment_id,
        "entered": ["new"],
        "there_already": ["base"],
        "dry_run": False,
    }
    assert data("list") == [{"benchmark": "law", "n_arms": 2}]
    assert [entry["arm"] for entry in data("show", "law")["entries"]] == ["base", "new"]
    monkeypatch.setenv("COLUMNS", "120")
    shown = CliRunner().invoke(cli, ["benchmark", "show", "law"], catch_exceptions=False).stdout
    assert "benchmark law (provisional)" in shown and "base (baseline)" in shown  # nothing was judged
    assert data("remove", "law", "x", "new")["removed"] == "new"
