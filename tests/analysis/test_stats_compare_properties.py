from __future__ import annotations

import itertools
import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval_pipeline.analysis import stats

pytestmark = pytest.mark.slow

steady = settings(deadline=None, max_examples=40)
scores = st.floats(0, 1).map(lambda x: round(x, 2))
costs = st.floats(0.01, 50).map(lambda x: round(x, 3))
WORLD = {f"k{i}": f"w{i % 4}" for i in range(12)}
Means = dict[str, float]


def close(x: float | None, y: float | None) -> bool:
    return x == y if x is None or y is None else math.isclose(x, y, rel_tol=1e-6, abs_tol=1e-8)


@st.composite
def two_arms(draw: st.DrawFn, values: st.SearchStrategy[float] = scores) -> tuple[Means, Means]:
    pairs = draw(st.lists(st.tuples(values, values), min_size=5, max_size=12))
    return {f"k{i}": a for i, (a, _) in enumerate(pairs)}, {f"k{i}": b for i, (_, b) in enumerate(pairs)}


def shuffled(means: Means, rng: random.Random) -> Means:
    return dict(rng.sample(list(means.items()), len(means)))


@steady
@given(two_arms(), st.randoms(use_true_random=False))
def test_a_comparison_knows_no_order_of_cases(arms: tuple[Means, Means], rng: random.Random) -> None:
    a, b = arms
    others = shuffled(a, rng), shuffled(b, rng)
    for fields, function in (
        (("diff", "se", "df", "p", "ci_lower", "ci_upper", "signflip_p", "d_z", "corr"), stats.paired_difference),
        (("diff_guarded", "se_guarded", "lower", "p"), lambda x, y, w: stats.non_inferiority(x, y, 0.1, w)),
        (("ratio", "se_log", "df", "ci_lower", "p"), stats.paired_log_ratio),
    ):
        left, right = function(a, b, WORLD), function(*others, WORLD)
        for name in fields:
            assert close(getattr(left, name), getattr(right, name)), name
        assert set(left.flags) == set(right.flags)


@steady
@given(two_arms())
def test_the_difference_turns_with_the_arms(arms: tuple[Means, Means]) -> None:
    a, b = arms
    there, back = stats.paired_difference(a, b, WORLD), stats.paired_difference(b, a, WORLD)
    assert there.diff is not None and back.diff == pytest.approx(-there.diff)
    assert (there.wins, there.losses, there.ties) == (back.losses, back.wins, back.ties)
    assert close(there.p, back.p) and close(there.signflip_p, back.signflip_p)
    if there.ci_lower is not None and back.ci_upper is not None:
        assert back.ci_upper == pytest.approx(-there.ci_lower, abs=1e-9)


@steady
@given(two_arms(), st.floats(-3, 3), st.floats(0.1, 20))
def test_a_difference_scales_with_the_scores(arms: tuple[Means, Means], shift: float, factor: float) -> None:
    a, b = arms
    moved_a, moved_b = ({c: shift + factor * v for c, v in means.items()} for means in arms)
    left, right = stats.paired_difference(a, b), stats.paired_difference(moved_a, moved_b, score_range=(shift, shift + factor))
    for name in ("diff", "ci_lower", "ci_upper"):
        assert getattr(right, name) == pytest.approx(factor * getattr(left, name), rel=1e-5, abs=1e-6)
    assert right.p == pytest.approx(left.p, rel=1e-4, abs=1e-6) and right.n_discordant == left.n_discordant
    further = stats.non_inferiority(moved_a, moved_b, 0.1 * factor, score_range=(0, factor))
    limit = [stats.non_inferiority(a, b, 0.1).lower, further.lower]
    assert limit[0] is not None and limit[1] == pytest.approx(factor * limit[0], rel=1e-5, abs=1e-6)


@steady
@given(two_arms(), st.floats(0.01, 1), st.sampled_from([0.025, 0.05, 0.2]))
def test_non_inferior_is_the_limit_above_the_margin(arms: tuple[Means, Means], margin: float, alpha: float) -> None:
    found = stats.non_inferiority(*arms, margin, WORLD, alpha)
    assert found.lower is not None and found.diff is not None and found.diff_guarded is not None
    if abs(found.lower + margin) > 1e-9:
        assert found.non_inferior is (found.lower > -margin)
    assert found.lower <= found.diff_guarded <= found.diff + 1e-12


@steady
@given(two_arms(), st.integers(1, 4))
def test_losing_cases_never_helps_a_candidate(arms: tuple[Means, Means], lost: int) -> None:
    a, b = arms
    partial: dict[str, float | None] = {c: None if i < lost else v for i, (c, v) in enumerate(b.items())}
    found = stats.non_inferiority(a, partial, 0.2)
    assert found.n_missing == lost
    assert found.provisional == (found.non_inferior is not None and found.non_inferior != found.non_inferior_filled)
    assert not (found.non_inferior_filled and found.non_inferior is False)


def test_a_margin_outside_the_range_is_refused_and_one_world_tells_nothing() -> None:
    for margin in (0.0, -0.1, 1.1):
        with pytest.raises(ValueError, match="a margin must lie above 0"):
            stats.non_inferiority({"k": 0.1}, {"k": 0.2}, margin)
    assert stats.non_inferiority({"k": 0.1}, {"k": 0.2}, 0.1).non_inferior is None


@steady
@given(two_arms(costs), st.floats(0.1, 30))
def test_a_ratio_turns_with_the_arms_and_scales_with_the_price(arms: tuple[Means, Means], factor: float) -> None:
    a, b = arms
    there, back = stats.paired_log_ratio(a, b, WORLD), stats.paired_log_ratio(b, a, WORLD)
    dearer = stats.paired_log_ratio(a, {c: factor * v for c, v in b.items()}, WORLD)
    assert there.ratio is not None and back.ratio == pytest.approx(1 / there.ratio)
    assert dearer.ratio == pytest.approx(factor * there.ratio)
    if there.ci_lower is not None and there.ci_upper is not None and back.ci_upper is not None:
        assert back.ci_upper == pytest.approx(1 / there.ci_lower) and close(there.p, back.p)
        assert dearer.ci_upper == pytest.approx(factor * there.ci_upper)


@pytest.mark.parametrize("count", [16, 17])
def test_drawn_sign_flips_come_near_to_all_of_them(count: int) -> None:
    sums = np.random.default_rng(count).normal(0.15, 1, count)
    signs = np.array(list(itertools.product((-1, 1), repeat=count)), dtype=np.int8)
    exact = float(np.mean(np.abs(signs @ sums) >= abs(sums.sum()) - 1e-12))
    assert stats.sign_flip_p(sums) == pytest.approx(exact, abs=1e-12 if count == 16 else 0.006)
    assert stats.sign_flip_p(np.concatenate([sums, np.zeros(50)])) == stats.sign_flip_p(sums)


@steady
@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=8), st.randoms(use_true_random=False))
def test_holm_follows_the_p_values_wherever_they_stand(p: list[float | None], rng: random.Random) -> None:
    order = rng.sample(range(len(p)), len(p))
    left, right = stats.holm(p), stats.holm([p[i] for i in order])
    assert [left.p_adj[i] for i in order] == list(right.p_adj)
    for raw, adjusted, reject in zip(p, left.p_adj, left.reject, strict=True):
        assert (raw is None) == (adjusted is None) == (reject is None)
        assert raw is None or (adjusted is not None and raw <= adjusted <= 1.0)


def test_contrasts_and_ranks_by_hand() -> None:
    good = {f"k{i}": 0.8 + 0.01 * (i % 3) for i in range(12)}
    arms = {"low": {c: v - 0.5 for c, v in good.items()}, "good": good, "same": {c: v + 0.001 for c, v in good.items()}}
    arms["low"]["k0"] = 0.4
    every = stats.contrasts(arms)
    assert [(c.a, c.b) for c in every] == [("low", "good"), ("low", "same"), ("good", "same")]
    ranks = stats.rank_intervals(list(arms), every)
    assert ranks["low"] == (3, 3) and ranks["same"] == (1, 1)  # a constant shift is found by its signs
    against = stats.contrasts(arms, baseline="good")
    assert [(c.a, c.b) for c in against] == [("good", "low"), ("good", "same")]
    assert stats.rank_intervals(list(arms), against)["low"] == (2, 3)
    with pytest.raises(ValueError, match="the baseline 'x' is none of the arms"):
        stats.contrasts(arms, baseline="x")


@steady
@given(st.lists(st.lists(scores, min_size=4, max_size=8), min_size=2, max_size=4), st.randoms(use_true_random=False))
def test_ranks_go_with_the_arms_and_not_with_their_order(table: list[list[float]], rng: random.Random) -> None:
    arms: dict[str, Any] = {f"a{i}": {f"k{j}": v for j, v in enumerate(row)} for i, row in enumerate(table)}
    names = rng.sample(list(arms), len(arms))
    left = stats.rank_intervals(list(arms), stats.contrasts(arms))
    right = stats.rank_intervals(names, stats.contrasts({name: arms[name] for name in names}))
    assert left == right
    assert all(1 <= best <= worst <= len(arms) for best, worst in left.values())


points = st.tuples(st.integers(0, 5).map(float), st.integers(1, 5).map(float), st.integers(1, 5).map(float))


@steady
@given(st.lists(points, min_size=1, max_size=6), st.floats(0.1, 9), st.integers(0, 5), st.randoms(use_true_random=False))
def test_a_front_is_of_the_arms_alone(arms: list[tuple[float, ...]], factor: float, which: int, rng: random.Random) -> None:
    front = stats.pareto_front(arms, ["max", "min", "min"])
    assert front and front == [
        i
        for i, x in enumerate(arms)
        if not any(y[0] >= x[0] and y[1] <= x[1] and y[2] <= x[2] and y != x for y in arms)
    ]  # fmt: skip
    assert stats.pareto_front([(q, c * factor, s) for q, c, s in arms], ["max", "min", "min"]) == front
    order = rng.sample(range(len(arms)), len(arms))
    assert {order[i] for i in stats.pareto_front([arms[i] for i in order], ["max", "min", "min"])} == set(front)
    q, c, s = arms[which % len(arms)]
    assert stats.pareto_front([*arms, (q, c + 1, s)], ["max", "min", "min"]) == front


def test_a_dominated_arm_changes_no_other_arms_chance() -> None:
    rng = np.random.default_rng(5)
    arms = {n: [{f"k{i}": float(v) for i, v in enumerate(rng.normal(m, 1, 12))} for m in (0, 5)] for n in "abc"}
    before = stats.prob_on_front(arms, ["max", "min"], WORLD, resamples=2000, seed=4)
    worse = [{c: v - 1 for c, v in arms["a"][0].items()}, {c: v + 1 for c, v in arms["a"][1].items()}]
    blank: list[dict[str, float | None]] = [{"k0": None}, {"k0": 1.0}]
    after = stats.prob_on_front({"d": worse, **arms, "e": blank}, ["max", "min"], WORLD, resamples=2000, seed=4)
    assert after == {**before, "d": 0.0, "e": None}
    dear = {n: [q, {c: 7 * v for c, v in cost.items()}] for n, (q, cost) in arms.items()}
    assert stats.prob_on_front(dear, ["max", "min"], WORLD, resamples=2000, seed=4) == before
    assert [stats.front_label(p) for p in (None, 0.1, 0.5, 0.9)] == [None, "off", "undetermined", "on"]


def test_two_equal_arms_are_both_on_the_front() -> None:
    values = [{f"k{i}": 0.1 * i for i in range(7)}, {f"k{i}": 0.3 for i in range(7)}]
    assert stats.prob_on_front({"a": values, "b": values}, ["max", "min"], resamples=500) == {"a": 1.0, "b": 1.0}
