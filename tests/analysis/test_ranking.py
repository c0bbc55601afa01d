"""A drawn experiment whose truth is a table of pandas: every number of the board from another formula, or another library."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats
from statsmodels.stats.multitest import multipletests
from support.boards import LIMIT_S, Frame, drawn, told

from eval_pipeline.analysis.board import ArmRow, Leaderboard
from eval_pipeline.analysis.board_text import comparison_grid, detail_grid, main_grid, solved
from eval_pipeline.analysis.leaderboard import leaderboard
from eval_pipeline.cli.leaderboard import show

pytestmark = pytest.mark.slow

ARMS = {"base": 0.4, "near": 0.45, "far": 0.75}
N, TRIALS = 60, 3


def valued(truth: Frame) -> Frame:
    """With score, pass and cost, as the rubric and the prices say."""
    zero = truth["outcome"] == "agent_timeout"
    score = ((truth["a"] + 3 * truth["b"]) / 4).where(~zero, 0.0)
    cost = (2 * truth["sent"] + 0.5 * truth["cached"] + 10 * truth["output"]) / 1e6
    cold = (2 * (truth["sent"] + truth["cached"]) + 10 * truth["output"]) / 1e6
    return truth.assign(score=score, passed=(score >= 0.7).astype(float), cost=cost, cold=cold)


@pytest.fixture(scope="module")
def truth() -> Frame:
    made = drawn(N, TRIALS, ARMS, n_worlds=N)
    made.loc[made.index % 50 == 7, "outcome"] = "agent_timeout"
    return valued(made)


@pytest.fixture(scope="module")
def board(truth: Frame) -> Leaderboard:
    return leaderboard(*told(truth, baseline="base"), resamples=4000)


def by_case(truth: Frame, column: str) -> Frame:
    return truth.pivot_table(index="case", columns="arm", values=column, aggfunc="mean", sort=False)


def holms(p: list[float]) -> Any:
    return multipletests(p, method="holm")[1]


def row(board: Leaderboard, arm: str) -> ArmRow:
    return next(one for one in board.arms if one.arm == arm)


@pytest.mark.parametrize("arm", list(ARMS))
def test_an_arms_numbers(board: Leaderboard, truth: Frame, arm: str) -> None:
    mine, found = truth[truth["arm"] == arm], row(board, arm)
    means = by_case(truth, "score")[arm]
    assert found.score == pytest.approx(means.mean()) and found.score_common == found.score
    assert found.se == pytest.approx(means.std() / np.sqrt(N))
    within = mine.groupby("case")["score"].var()
    assert found.se_same_cases == pytest.approx(np.sqrt((within / TRIALS).sum()) / N)
    assert found.pass_rate == pytest.approx(by_case(truth, "passed")[arm].mean())
    perfect = (mine["a"] + mine["b"] == 2) & (mine["outcome"] == "ok")
    assert found.all_passed.value == pytest.approx(perfect.mean())
    assert found.coverage == 1.0 and found.n_clusters == N
    assert found.rates["timeout"] == pytest.approx((mine["outcome"] == "agent_timeout").mean())


@pytest.mark.parametrize("arm", list(ARMS))
def test_the_interval_is_wilsons_on_the_effective_sample(board: Leaderboard, truth: Frame, arm: str) -> None:
    """The roots of (m - x)^2 = t^2 x (1 - x) / n_eff."""
    means, found = by_case(truth, "score")[arm], row(board, arm)
    n_eff = means.mean() * (1 - means.mean()) / (means.var() / N)
    k = scipy_stats.t.ppf(0.975, N - 1) ** 2 / n_eff
    roots = sorted(np.roots([1 + k, -(2 * means.mean() + k), means.mean() ** 2]))
    assert (found.ci_low, found.ci_high) == pytest.approx(tuple(roots))


@pytest.mark.parametrize("arm", list(ARMS))
def test_all_trials_and_any_trial(board: Leaderboard, truth: Frame, arm: str) -> None:
    passed = truth[truth["arm"] == arm].groupby("case")["passed"]
    found = row(board, arm).trials
    assert found.k == TRIALS
    assert found.all_k.value == pytest.approx(passed.min().mean())
    assert found.any_k.value == pytest.approx(passed.max().mean())


@pytest.mark.parametrize("arm", list(ARMS))
def test_money_and_time(board: Leaderboard, truth: Frame, arm: str) -> None:
    mine, found = truth[truth["arm"] == arm], row(board, arm)
    cost, passed = by_case(truth, "cost")[arm], by_case(truth, "passed")[arm]
    assert found.cost_usd_mean == pytest.approx(cost.mean())
    assert found.money.cold == pytest.approx(by_case(truth, "cold")[arm].mean())
    assert found.money.cache_share == pytest.approx(mine["cached"].sum() / (mine["cached"] + mine["sent"]).sum())
    reach = scipy_stats.t.ppf(0.975, N - 1) * cost.std() / np.sqrt(N) / cost.mean()
    assert (found.money.a_case.low, found.money.a_case.high) == pytest.approx(
        (cost.mean() * np.exp(-reach), cost.mean() * np.exp(reach))
    )
    ratio = cost.mean() / passed.mean()
    assert found.money.a_solved.value == pytest.approx(ratio)
    reach = scipy_stats.t.ppf(0.975, N - 1) * (cost - ratio * passed).std() / np.sqrt(N) / cost.mean()
    assert found.money.a_solved.high == pytest.approx(ratio * np.exp(reach))
    times = np.where(mine["outcome"] == "agent_timeout", LIMIT_S, mine["latency_s"])
    ordered = np.where(mine["outcome"] == "agent_timeout", np.inf, mine["latency_s"])
    for level, q in (("latency_p50_s", 0.5), ("latency_p95_s", 0.95)):
        assert getattr(found, level) == pytest.approx(float(np.quantile(ordered, q, method="inverted_cdf")))
    assert found.latency.rmst_s == pytest.approx(float(times.mean()))
    median = found.latency.p50
    assert (median.low or np.inf) < (median.value or 0) < (median.high or 0)


def test_comparisons_are_paired_and_adjusted(board: Leaderboard, truth: Frame) -> None:
    means = by_case(truth, "score")
    tests = [scipy_stats.ttest_rel(means[arm], means["base"]) for arm in ("near", "far")]
    adjusted = holms([test.pvalue for test in tests])
    for one, test, p_holm, arm in zip(board.comparisons, tests, adjusted, ("near", "far"), strict=True):
        ends = test.confidence_interval(0.95)
        assert (one.a, one.b, one.n_shared) == ("base", arm, N)
        assert one.diff == pytest.approx(means[arm].mean() - means["base"].mean())
        assert (one.ci_low, one.ci_high) == pytest.approx((ends.low, ends.high))
        assert (one.p, one.p_holm) == pytest.approx((test.pvalue, p_holm), rel=1e-9, abs=1e-15)
        assert one.significant == (p_holm <= 0.05)
        assert (one.wins, one.losses) == ((means[arm] > means["base"]).sum(), (means[arm] < means["base"]).sum())
    assert [(one.rank_best, one.rank_worst) for one in board.arms] == [(2, 3), (1, 3), (1, 2)]
    assert (board.unranked, board.status) == ([], "final")


def test_without_a_baseline_every_pair_is_compared(truth: Frame) -> None:
    means = by_case(truth, "score")
    board = leaderboard(*told(truth), resamples=10)
    pairs = list(combinations(ARMS, 2))
    assert [(one.a, one.b) for one in board.comparisons] == pairs
    plain = [scipy_stats.ttest_rel(means[b], means[a]).pvalue for a, b in pairs]
    assert [one.p_holm for one in board.comparisons] == pytest.approx(list(holms(plain)), abs=1e-15)
    assert (row(board, "far").rank_best, row(board, "far").rank_worst) == (1, 1)


def test_the_front_by_another_bootstrap(board: Leaderboard, truth: Frame) -> None:
    timed = truth.assign(time=truth["latency_s"].where(truth["outcome"] == "ok", LIMIT_S))
    score, cost, time = (by_case(timed, column)[list(ARMS)].to_numpy() for column in ("score", "cost", "time"))
    rng, on = np.random.default_rng(99), np.zeros((2, 3))
    for _ in range(2000):
        drawn_cases = rng.choice(N, N)
        s, c, t = (table[drawn_cases].mean(axis=0) for table in (score, cost, time))
        for a in range(3):
            beaten = [[s[b] >= s[a] and c[b] <= c[a] for b in range(3) if b != a]]
            beaten.append([s[b] >= s[a] and c[b] <= c[a] and t[b] <= t[a] for b in range(3) if b != a])
            on[:, a] += [not any(one) for one in beaten]
    found = np.array([[one.front.cost for one in board.arms], [one.front.latency for one in board.arms]])
    assert np.abs(found - on / 2000).max() < 0.05


def test_worlds_are_the_clusters() -> None:
    """Worlds of equal size: the error is that of the worlds' means, on so many less one degrees of freedom."""
    truth = valued(drawn(40, 1, {"x": 0.4, "y": 0.6}, n_worlds=8, seed=3))
    board = leaderboard(*told(truth, baseline="x"), resamples=500)
    worlds = truth.pivot_table(index="world", columns="arm", values="score", aggfunc="mean")
    assert row(board, "x").se == pytest.approx(worlds["x"].std() / np.sqrt(8)) and row(board, "x").n_clusters == 8
    test = scipy_stats.ttest_rel(worlds["y"], worlds["x"])
    assert board.comparisons[0].p == pytest.approx(test.pvalue)


@pytest.mark.parametrize(
    "lost, ranked, final",
    [(0, True, True), (2, True, False), (6, False, False)],
)
def test_without_coverage_there_are_no_ranks(truth: Frame, lost: int, ranked: bool, final: bool) -> None:
    """2 open cells of 120 leave 98.3% and 59 of 60 cases; 6 leave 95%."""
    one_trial = truth[(truth["trial"] == 0) & (truth["arm"] != "near")].copy()
    gone = one_trial.index[one_trial["arm"] == "far"][:lost]
    one_trial["outcome"] = one_trial["outcome"].astype(object)
    one_trial.loc[gone, "outcome"] = None
    board = leaderboard(*told(one_trial, baseline="base"), resamples=10)
    assert board.coverage == pytest.approx(1 - lost / 120)
    assert board.n_common_cases == 60 - lost and board.n_cases == 60
    assert (board.status == "final") is final
    assert all((one.rank_best is not None) is ranked for one in board.arms)
    assert (board.unranked == []) is ranked
    if lost:
        assert row(board, "base").score_common != row(board, "base").score
        assert board.comparisons[0].n_shared == 60 - lost


def test_a_case_lost_in_another_arm_each_time_leaves_too_few_in_common(truth: Frame) -> None:
    """Each arm lacks its own 5% of the cases: 100% - 3 x 5% are left, which is below 90%, whatever the number of cells."""
    some = truth.copy()
    some["outcome"] = some["outcome"].astype(object)
    for n, arm in enumerate(ARMS):
        for case in range(3 * n, 3 * n + 3):
            some.loc[(some["arm"] == arm) & (some["case"] == f"c{case}"), "outcome"] = None
    board = leaderboard(*told(some), resamples=10)
    assert board.n_common_cases == 51
    assert any("51 of 60 cases have a scored cell in every arm, 90% are needed" in reason for reason in board.unranked)


def test_nothing_solved_is_said_and_is_no_number_in_json() -> None:
    truth = drawn(12, 1, {"x": 0.5, "y": 0.5}, n_worlds=12)
    truth[["a", "b"]] = 0.0
    board = leaderboard(*told(truth), resamples=10)
    assert board.arms[0].money.a_solved.value is None and "none_solved" in board.arms[0].money.flags
    assert solved(board.arms[0]) == "none solved"
    json.dumps(board.as_data(), allow_nan=False)


def test_one_arm_alone_has_no_rank_and_no_front(truth: Frame) -> None:
    board = leaderboard(*told(truth[truth["arm"] == "far"]), resamples=10)
    (arm,) = board.arms
    assert (arm.rank_best, arm.front.cost, board.comparisons, board.unranked) == (None, None, [], [])


def test_an_arm_of_unknown_latency_is_on_the_front_of_cost_alone(truth: Frame) -> None:
    experiment, cells = told(truth)
    cells = [replace(cell, latency_s=None) if cell.key.arm == "near" else cell for cell in cells]
    board = leaderboard(experiment, cells, resamples=200)
    assert [one.front.latency is None for one in board.arms] == [False, True, False]
    assert all(one.front.cost is not None for one in board.arms)
    assert row(board, "near").latency_p50_s is None


def test_people_read_it_in_100_columns(board: Leaderboard, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    show(board)
    lines = capsys.readouterr().out.splitlines()
    heads = [line.split() for line in lines[1:5]]
    assert heads[0][:3] == ["arm", "rank", "score"] and [head[0] for head in heads[1:]] == ["far", "near", "base"]
    assert all(len(line) <= 100 for line in lines if not line.startswith(("versions:", "more")))
    show(board, wide=True)
    wide = capsys.readouterr().out
    assert "USD/case, cold cache" in wide and "front: cost" in wide
    assert len(main_grid(board).rows) == 3 and len(comparison_grid(board.comparisons, "base").rows) == 2
    assert all(len(line) == 4 for line in detail_grid(board).rows)
    assert main_grid(board).as_markdown().splitlines()[1].count("---") == len(main_grid(board).columns)
