"""The same numbers from other libraries, and intervals against known truths."""

from __future__ import annotations

import random
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from eval_pipeline.analysis import stats

pytestmark = pytest.mark.slow


def library(name: str) -> Any:
    return import_module(name)


def test_scipy_agrees_on_pairs_ranks_and_votes() -> None:
    scipy_stats, rng = library("scipy.stats"), np.random.default_rng(4)
    x, y = rng.random(20), rng.random(20)
    a, b = ({f"k{i}": float(v) for i, v in enumerate(values)} for values in (x, y))
    found = stats.paired_difference(a, b)
    theirs = scipy_stats.ttest_rel(y, x)
    interval = theirs.confidence_interval()
    assert found.p == pytest.approx(theirs.pvalue) and found.ci_lower == pytest.approx(interval.low)
    assert found.corr == pytest.approx(scipy_stats.pearsonr(x, y).statistic)
    rough = np.round(x, 1).tolist()
    assert stats.verbosity_spearman(rough, y.tolist()) == pytest.approx(scipy_stats.spearmanr(rough, y).statistic)
    assert stats.position_bias(7, 19).p == pytest.approx(scipy_stats.binomtest(7, 19).pvalue)
    trials = [rng.integers(0, 3, (4, 5)).tolist() for _ in range(2)]
    wins = [scipy_stats.mannwhitneyu(b, a).statistic / 25 for a, b in zip(*trials, strict=True)]
    assert stats.prob_superiority_trials(*trials) == pytest.approx(np.mean(wins))


def test_statsmodels_agrees_on_families_and_tables() -> None:
    rng, several = random.Random(1), library("statsmodels.stats.multitest")
    for size in (1, 2, 5, 9):
        p = [rng.random() ** 3 for _ in range(size)]
        reject, adjusted, *_ = several.multipletests(p, 0.05, "holm")
        assert stats.holm(p).p_adj == pytest.approx(adjusted) and list(stats.holm(p).reject) == list(reject)
    tables = library("statsmodels.stats.contingency_tables")
    for a, b in ((3, 9), (0, 4), (12, 12)):
        assert stats.mcnemar_exact(a, b) == pytest.approx(tables.mcnemar([[5, a], [b, 7]], exact=True).pvalue)
    raters = library("statsmodels.stats.inter_rater")
    judge, human = [[rng.randint(0, 1) for _ in range(60)] for _ in range(2)]
    counts = [[sum((j, h) == (x, y) for j, h in zip(judge, human, strict=True)) for y in (0, 1)] for x in (0, 1)]
    theirs, ours = raters.cohens_kappa(counts), stats.cohen_kappa(judge, human)
    assert (ours.kappa, ours.se) == pytest.approx((theirs.kappa, theirs.std_kappa))
    chosen = [np.bincount(np.random.default_rng(i).integers(0, 4, 6), minlength=4).tolist() for i in range(8)]
    assert stats.fleiss_kappa(chosen) == pytest.approx(raters.fleiss_kappa(np.array(chosen)))


@pytest.mark.parametrize(("n", "power", "alpha"), [(12, 0.8, 0.05), (40, 0.9, 0.01), (300, 0.5, 0.1)])
def test_statsmodels_agrees_on_power(n: int, power: float, alpha: float) -> None:
    found = stats.mde(0.09, 0.1, 0.2, 2, 4, n, alpha, power)
    effect = library("statsmodels.stats.power").TTestPower().solve_power(nobs=n, alpha=alpha, power=power)
    assert found.mde_t == pytest.approx(effect * np.sqrt(0.19), rel=1e-4)
    needed = stats.required_cases(0.09, 0.1, 0.2, 2, 4, found.mde_normal, alpha, power)
    assert needed.n == n


def test_a_pilots_variances_are_those_it_was_drawn_from() -> None:
    rng, found = np.random.default_rng(6), list[stats.Variances]()
    for _ in range(200):
        true = rng.normal(0, 0.3, 80)
        a, b = rng.normal(0.5, 0.2, (80, 3)), 0.6 + true[:, None] + rng.normal(0, 0.4, (80, 5))
        found.append(stats.pilot_variances(*({f"k{i}": row for i, row in enumerate(arm.tolist())} for arm in (a, b))))
    for name, truth in (("omega2", 0.09), ("sigma2_a", 0.04), ("sigma2_b", 0.16), ("k_a", 3), ("k_b", 5)):
        assert np.mean([getattr(one, name) for one in found]) == pytest.approx(truth, rel=0.05), name
    single = stats.pilot_variances({"k": [1.0, None], "l": [0.0]}, {"k": [0.5], "l": [None], "m": [1.0]})
    assert (single.n_cases, single.omega2, single.sigma2_a, single.var_diff) == (1, None, None, None)


def means(values: Any) -> dict[str, float]:
    return {f"k{i}": float(v) for i, v in enumerate(values)}


def test_a_gate_lets_through_what_lies_on_the_margin_as_rarely_as_it_says() -> None:
    """Scores in ten worlds; the candidate is worse by the margin exactly."""
    rng, passed, repeats = np.random.default_rng(3), 0, 2000
    world = {f"k{i}": f"w{i // 3}" for i in range(30)}
    for _ in range(repeats):
        gap = np.repeat(rng.normal(-0.1, 0.1, 10), 3) + rng.normal(0, 0.1, 30)
        passed += stats.non_inferiority(means(np.zeros(30)), means(gap), 0.1, world).non_inferior is True
    assert 0.02 <= passed / repeats <= 0.065


def test_intervals_of_a_difference_and_of_a_cost_ratio_cover() -> None:
    rng, covered, repeats = np.random.default_rng(12), np.zeros(3), 800
    for _ in range(repeats):
        ease = rng.beta(3, 2, 40)
        a, b = (means(rng.binomial(4, np.clip(ease - shift, 0, 1)) / 4) for shift in (0.0, 0.0))
        difference = stats.paired_difference(a, b)
        size = rng.lognormal(0, 0.7, 40)
        dear, cheap = (means(size * scale * rng.lognormal(0, 0.3, 40)) for scale in (1.0, 0.6))
        ratio = stats.paired_log_ratio(dear, cheap)
        costs, solved = rng.lognormal(0, 0.5, 40), rng.random(40) < 0.5
        spent = stats.cost_per_solved([(f"k{i}", 0, float(costs[i]), float(solved[i])) for i in range(40)])
        truth = np.exp(0.125) / 0.5
        for index, (low, high, value) in enumerate(
            (
                (difference.ci_lower, difference.ci_upper, 0.0),
                (ratio.ci_lower, ratio.ci_upper, 0.6),
                (spent.ci_lower, spent.ci_upper, truth),
            )
        ):
            assert low is not None and high is not None
            covered[index] += low <= value <= high
    assert ((covered / repeats >= 0.93) & (covered / repeats <= 0.97)).all(), covered / repeats


def test_looking_after_every_case_errs_rarely() -> None:
    rng, wrong, repeats = np.random.default_rng(9), 0, 300
    for _ in range(repeats):
        differences = rng.normal(0.2, 0.5, 150).tolist()
        looks = [stats.asymptotic_cs(differences[:k], n_opt=60) for k in range(10, 151, 2)]
        wrong += any(not (look.lower or -9) <= 0.2 <= (look.upper or 9) for look in looks)
    assert wrong / repeats <= 0.06


def test_planned_looks_err_as_often_as_they_say() -> None:
    z = np.cumsum(np.random.default_rng(10).normal(size=(100_000, 4)), axis=1) / np.sqrt(np.arange(1, 5))
    found = stats.group_sequential_boundaries(4, 0.1)
    for bounds in (found.pocock_z, found.obf_z):
        assert np.mean((np.abs(z) > bounds).any(axis=1)) == pytest.approx(0.1, abs=0.004)


def test_the_interval_of_a_quantile_covers() -> None:
    rng, covered, repeats = np.random.default_rng(13), 0, 800
    for _ in range(repeats):
        rows = (rng.normal(0, 1, (40, 1)) + rng.normal(0, 1, (40, 3))).tolist()
        found = stats.quantile_ci(rows, 0.5)
        assert found.ci_lower is not None and found.ci_upper is not None
        covered += found.ci_lower <= 0 <= found.ci_upper
    assert 0.93 <= covered / repeats <= 0.99
