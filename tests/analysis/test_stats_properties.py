from __future__ import annotations

import itertools
import math
import random
from dataclasses import asdict, replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval_pipeline.analysis import stats
from eval_pipeline.analysis.stats import CriterionVerdict, LatencyCell
from eval_pipeline.domain.cell import Outcome
from eval_pipeline.domain.rubric import Criterion, Rubric

pytestmark = pytest.mark.slow

scipy_stats: Any = import_module("scipy.stats")
steady = settings(deadline=None)

scores = st.floats(0, 1).map(lambda x: round(x, 3))
Cells = list[tuple[str, int, float | None]]


@st.composite
def planned_cells(draw: st.DrawFn, *, missing: bool = True) -> Cells:
    values = st.one_of(st.none(), scores) if missing else scores
    rows = draw(st.lists(st.lists(values, min_size=1, max_size=4), min_size=2, max_size=8))
    return [(f"k{c}", t, value) for c, row in enumerate(rows) for t, value in enumerate(row)]


@st.composite
def verdicts(draw: st.DrawFn, *, missing: bool = False) -> list[CriterionVerdict]:
    weights = draw(st.lists(st.sampled_from([-4.0, -1.0, 0.5, 2.0, 3.0]), min_size=1, max_size=5))
    made = [CriterionVerdict(weight=3.0, verdict=draw(st.sampled_from([0, 1])))]
    for weight in weights:
        counted = draw(st.booleans())
        value = draw(st.integers(0, 7) if counted else st.sampled_from([0, 0.5, 1]))
        hidden = missing and draw(st.booleans())
        made.append(
            CriterionVerdict(weight=weight, verdict=None if hidden else value, per_occurrence=counted, cap=3 if counted else None)
        )
    return made


def same(left: Any, right: Any) -> bool:
    if left is None or right is None or isinstance(left, tuple):
        return left == right
    return math.isclose(left, right, rel_tol=1e-7, abs_tol=1e-9)


@steady
@given(planned_cells(), st.randoms(use_true_random=False))
def test_the_order_of_cells_says_nothing(cells: Cells, rng: random.Random) -> None:
    world = {f"k{c}": f"w{c % 3}" for c in range(8)}
    shuffled = rng.sample(cells, len(cells))
    left, right = asdict(stats.arm_mean(cells, world)), asdict(stats.arm_mean(shuffled, world))
    assert all(same(left[key], right[key]) for key in left), (left, right)


@steady
@given(planned_cells(missing=False), st.integers(0, 100))
def test_losing_a_cell_only_widens_the_bounds_which_hold_the_truth(cells: Cells, index: int) -> None:
    whole = stats.arm_mean(cells)
    lost = list(cells)
    case, trial, _ = lost[index % len(lost)]
    lost[index % len(lost)] = (case, trial, None)
    partial = stats.arm_mean(lost)
    assert whole.mean is not None and partial.bound_lower is not None and partial.bound_upper is not None
    assert whole.bound_lower == pytest.approx(whole.mean) == whole.bound_upper
    assert partial.bound_lower <= whole.mean + 1e-12 and whole.mean <= partial.bound_upper + 1e-12


@steady
@given(planned_cells(), st.floats(-5, 5), st.floats(0.1, 10))
def test_an_affine_change_of_the_scores_changes_the_interval_alike(cells: Cells, shift: float, factor: float) -> None:
    moved = [(case, trial, None if value is None else shift + factor * value) for case, trial, value in cells]
    left, right = stats.arm_mean(cells), stats.arm_mean(moved, score_range=(shift, shift + factor))
    for name in ("mean", "ci_lower", "ci_upper", "bound_lower", "bound_upper"):
        before, after = getattr(left, name), getattr(right, name)
        assert (before is None) == (after is None)
        if before is not None:
            assert after == pytest.approx(shift + factor * before, rel=1e-5, abs=1e-5)


@steady
@given(planned_cells())
def test_an_interval_holds_its_mean_and_stays_in_the_range(cells: Cells) -> None:
    arm = stats.arm_mean(cells)
    if arm.ci_lower is None or arm.ci_upper is None or arm.mean is None:
        assert set(arm.flags) & {"one_cluster", "no_data"}
        return
    assert 0 <= arm.ci_lower <= arm.mean + 1e-9 and arm.mean - 1e-9 <= arm.ci_upper <= 1
    assert all(not isinstance(value, float) or math.isfinite(value) for value in asdict(arm).values())


@steady
@given(st.lists(scores, min_size=2, max_size=12))
def test_one_case_a_cluster_is_the_textbook_error(values: list[float]) -> None:
    error = stats.cr2(values, range(len(values)))
    assert error.se == pytest.approx(float(scipy_stats.sem(values)), abs=1e-12)
    assert error.df == pytest.approx(len(values) - 1)


def test_a_case_counts_once_whatever_its_trials() -> None:
    many = [("a", t, 1.0) for t in range(9)] + [("b", 0, 0.0)]
    assert stats.arm_mean(many).mean == 0.5


def test_worlds_of_one_case_each_are_no_clusters() -> None:
    cells: Cells = [(f"k{c}", 0, c / 5) for c in range(6)]
    assert stats.arm_mean(cells, {f"k{c}": f"w{c}" for c in range(6)}) == stats.arm_mean(cells)


def test_a_cell_twice_or_a_score_of_another_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="trial 0 of case 'a' comes twice"):
        stats.arm_mean([("a", 0, 1.0), ("a", 0, 0.0)])
    for value in (-0.2, 1.2, math.nan):
        with pytest.raises(ValueError, match="lies outside the range"):
            stats.arm_mean([("a", 0, value), ("b", 0, 0.5)])


def test_the_strict_interval_appears_near_the_ends_only() -> None:
    near = stats.arm_mean([(f"k{c}", 0, 1.0 if c else 0.5) for c in range(20)])
    middle = stats.arm_mean([(f"k{c}", 0, c % 2) for c in range(20)])
    many = stats.arm_mean([(f"k{c}", 0, 1.0 if c else 0.5) for c in range(60)])
    assert near.strict_lower is not None and near.strict_lower < 0.975 < (near.strict_upper or 0)
    assert middle.strict_lower is None and many.strict_lower is None


@pytest.mark.slow
def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    """Binary cases in ten worlds around a known mean of 0.6."""
    rng, covered, repeats = np.random.default_rng(11), 0, 2000
    world = {f"k{c}": f"w{c // 3}" for c in range(30)}
    for _ in range(repeats):
        chances = np.repeat(rng.choice([0.3, 0.6, 0.9], size=10), 3)
        arm = stats.arm_mean([(f"k{c}", 0, float(rng.random() < p)) for c, p in enumerate(chances)], world)
        assert arm.ci_lower is not None and arm.ci_upper is not None
        covered += arm.ci_lower <= 0.6 <= arm.ci_upper
    assert 0.93 <= covered / repeats <= 0.98


@steady
@given(verdicts(), st.floats(0.1, 50))
def test_scaling_all_weights_changes_no_score(criteria: list[CriterionVerdict], factor: float) -> None:
    scaled = [replace(c, weight=c.weight * factor) for c in criteria]
    for policy in ("clip_cell", "raw", "minmax", "all_pass"):
        left, right = asdict(stats.score_cell(criteria, policy)), asdict(stats.score_cell(scaled, policy))
        assert all(same(left[key], right[key]) for key in left)


@steady
@given(verdicts(missing=True), st.data())
def test_bounds_hold_whatever_the_missing_verdicts_turn_out_to_be(criteria: list[CriterionVerdict], data: st.DataObject) -> None:
    for policy in ("clip_cell", "raw", "minmax", "all_pass"):
        partial = stats.score_cell(criteria, policy)
        filled = [
            replace(c, verdict=data.draw(st.integers(0, c.effective_cap))) if c.verdict is None else c for c in criteria
        ]  # fmt: skip
        score = stats.score_cell(filled, policy).score
        assert partial.lower is not None and partial.upper is not None and score is not None
        assert partial.lower - 1e-9 <= score <= partial.upper + 1e-9
        assert (partial.score is None) == any(c.verdict is None for c in criteria)


@pytest.mark.parametrize(
    ("weight", "verdict", "ok"),
    [(2, 1, True), (2, 0.5, False), (2, 0, False), (-2, 0, True), (-2, 0.5, False), (-2, 1, False), (2, None, None)],
)
def test_a_critical_criterion_is_satisfied_wholly_or_not(weight: float, verdict: float | None, ok: bool | None) -> None:
    criteria = [CriterionVerdict(weight=weight, verdict=verdict, critical=True), CriterionVerdict(weight=1, verdict=1)]
    assert stats.critical_ok(criteria) == [ok]
    assert stats.pass_cell(1.0, 0.5, stats.critical_ok(criteria)) is ok


def test_a_count_satisfies_at_its_cap_and_a_failed_call_is_missing() -> None:
    def counted(weight: float, verdict: float | None) -> CriterionVerdict:
        return CriterionVerdict(weight=weight, verdict=verdict, per_occurrence=True)

    assert [counted(1, k).satisfied for k in (4, 5, 9, -1, math.nan)] == [False, True, True, None, None]
    assert [counted(-1, k).satisfied for k in (0, 1)] == [True, False]


def test_the_range_of_raw_scores_is_the_worst_rubrics() -> None:
    def rubric(*points: float) -> Rubric:
        return Rubric(criteria=tuple(Criterion(id=f"c{i}", text="t", points=p, judge=True) for i, p in enumerate(points)))

    counted = Rubric(
        criteria=(
            Criterion(id="a", text="t", points=4, judge=True),
            Criterion(id="b", text="t", points=-1, judge=True, per_occurrence=True),
        )
    )
    assert stats.score_range("raw", [rubric(2, -1), counted]) == (-1.25, 1.0)
    assert stats.score_range("clip_cell", [counted]) == (0.0, 1.0)
    with pytest.raises(ValueError, match="needs the rubrics"):
        stats.score_range("raw", [])


def test_every_outcome_has_a_rule_and_a_foreign_status_is_refused() -> None:
    assert {outcome.value for outcome in Outcome} <= set(stats.STATUS_RULES)
    for outcome in Outcome:
        assert (stats.cell_value(outcome, 0.7) is None) == (not outcome.valid)
    with pytest.raises(ValueError, match="unknown status 'fine'"):
        stats.cell_value("fine", 1.0)


def test_ls_means_need_arms_that_share_cases() -> None:
    apart = stats.adjusted_means({"A": {"p": 0.1, "q": None}, "B": {"p": None, "q": 0.9}})
    assert apart.ls_means == {"A": None, "B": None} and apart.n_common == 0 and not apart.rankable
    assert apart.common == {"A": None, "B": None}
    empty = stats.adjusted_means({"A": {"p": 0.1, "q": 0.3}, "B": {"p": 0.2, "q": 0.2}, "C": {"p": None, "q": None}})
    assert empty.ls_means["C"] is None and empty.ls_means["A"] == pytest.approx(0.2)


@steady
@given(st.lists(st.tuples(scores, scores), min_size=2, max_size=8))
def test_ls_means_of_a_complete_table_are_its_means(pairs: list[tuple[float, float]]) -> None:
    table: dict[str, dict[str, float | None]] = {
        "A": {f"k{i}": pair[0] for i, pair in enumerate(pairs)},
        "B": {f"k{i}": pair[1] for i, pair in enumerate(pairs)},
    }
    found = stats.adjusted_means(table)
    for arm, mean in found.available.items():
        assert found.ls_means[arm] == pytest.approx(mean, abs=1e-9)
    assert found.rankable


def rows(arm: str, statuses: list[str]) -> list[tuple[str, str, int, str, float | None]]:
    return [(arm, f"k{i}", 0, status, 0.5) for i, status in enumerate(statuses)]


def test_a_table_is_final_only_when_it_is_covered() -> None:
    whole = stats.experiment_summary(rows("A", ["ok"] * 100) + rows("B", ["ok"] * 100))
    assert stats.provisional_reasons(whole) == []
    lacking = stats.experiment_summary(rows("A", ["ok"] * 100) + rows("B", ["infra_failure"] * 5 + ["ok"] * 95))
    reasons = stats.provisional_reasons(lacking)
    assert [reason.split(" ")[0] for reason in reasons] == ["97.5%", "B:", "infrastructure"]
    assert stats.provisional_reasons({}) == ["no cells are planned"]


@steady
@given(st.lists(st.floats(0, 1000), min_size=1, max_size=40), st.floats(0, 1))
def test_quantiles_are_numpys_inverted_cdf(values: list[float], q: float) -> None:
    found = stats.quantiles(values, [q]).inverted_cdf[0]
    near = [float(np.quantile(values, min(max(q + d, 0), 1), method="inverted_cdf")) for d in (-2e-9, 0, 2e-9)]
    assert found in near


@steady
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4)), min_size=1, max_size=12), st.sampled_from([0.1, 0.5, 0.9, 0.95]))
def test_a_weight_is_that_many_copies(pairs: list[tuple[int, int]], q: float) -> None:
    copies = [value for value, count in pairs for _ in range(count)]
    weighted = stats.quantiles([value for value, _ in pairs], [q], [float(count) for _, count in pairs])
    whole = stats.quantiles(copies, [q])
    assert weighted.inverted_cdf == whole.inverted_cdf and weighted.mean == pytest.approx(whole.mean)


@steady
@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=30), st.floats(1, 100))
def test_one_limit_for_all_is_the_inverted_cdf_with_the_censored_last(values: list[float], limit: float) -> None:
    curve = stats.censored_latency([min(v, limit) for v in values], [v <= limit for v in values])
    assert curve is not None
    for q in (0.25, 0.5, 0.95):
        true = stats.quantiles(values, [q]).inverted_cdf[0]
        assert true is not None
        assert curve.quantile(q) == (true if true <= limit else math.inf)


def test_p95_hides_below_100_cells_and_a_quantile_above_the_limit_says_so() -> None:
    def cells(n: int, timeouts: int) -> list[LatencyCell]:
        return [
            LatencyCell(case=f"k{i}", latency_s=900.0 if i < timeouts else float(i), completed=i >= timeouts) for i in range(n)
        ]

    few, many = stats.latency_summary(cells(99, 0)), stats.latency_summary(cells(100, 10))
    assert few.p95 is None and few.p50 is not None and few.p50.value_s == 49.0
    assert many.p95 is not None and many.p95.above and many.p95.value_s == 900.0
    assert many.timeout_rate == pytest.approx(0.1)
    assert stats.latency_summary([]).p50 is None and stats.quantiles([], [0.5]).inverted_cdf == (None,)


def test_every_case_counts_alike_in_latency() -> None:
    slow = [LatencyCell(case="slow", latency_s=100.0, completed=True) for _ in range(10)]
    fast = [LatencyCell(case=f"fast{i}", latency_s=1.0, completed=True) for i in range(2)]
    summary = stats.latency_summary(slow + fast)
    assert summary.p50 is not None and summary.p50.value_s == 1.0


def test_bca_agrees_with_scipy_and_needs_variance() -> None:
    values = [round(float(v), 3) for v in np.random.default_rng(3).beta(5, 2, size=40)]
    ours = stats.bca_mean_ci(values)
    theirs = scipy_stats.bootstrap((values,), np.mean, method="BCa", n_resamples=20000, rng=1).confidence_interval
    assert ours == pytest.approx((theirs.low, theirs.high), abs=0.005)
    assert stats.bca_mean_ci([0.5] * 40) is None


def test_a_bootstrap_draws_whole_clusters_and_is_repeatable() -> None:
    sizes = np.array([[2.0, 1.0], [3.0, 0.0], [1.0, 5.0]])
    drawn = stats.bootstrap_sums(sizes, resamples=500, seed=7)
    possible = {tuple(np.sum([sizes[i] for i in rows], axis=0)) for rows in itertools.product(range(3), repeat=3)}
    assert {tuple(row) for row in drawn} == possible
    assert np.array_equal(drawn, stats.bootstrap_sums(sizes, resamples=500, seed=7))
    assert not np.array_equal(drawn, stats.bootstrap_sums(sizes, resamples=500, seed=8))
    assert stats.cluster_bootstrap([0.1, 0.9], ["a", "a"]).se is None


def test_a_bootstrap_mean_leaves_out_what_is_missing_and_keeps_what_is_infinite() -> None:
    values = np.array([[1.0, math.nan, math.inf], [3.0, math.nan, 2.0], [5.0, 4.0, 2.0]])
    means = stats.bootstrap_means(values, ["w", "w", "v"], resamples=200, seed=1)
    assert {round(m, 6) for m in means[:, 0]} == {2.0, 3.0, 5.0}
    assert {m for m in means[:, 1] if not math.isnan(m)} == {4.0} and np.isnan(means[:, 1]).any()
    assert set(means[:, 2].tolist()) == {math.inf, 2.0}
