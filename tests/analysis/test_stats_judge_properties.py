from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval_pipeline.analysis import stats
from eval_pipeline.analysis.stats import CriterionVerdict

steady = settings(deadline=None, max_examples=40)
bits = st.sampled_from([0, 1])
pairs_of_labels = st.lists(st.tuples(st.one_of(st.none(), bits), st.one_of(st.none(), bits)), min_size=1, max_size=30)


def close(x: float | None, y: float | None) -> bool:
    return x == y if x is None or y is None else math.isclose(x, y, rel_tol=1e-7, abs_tol=1e-9)


@steady
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), min_size=2, max_size=8), st.randoms(use_true_random=False))
def test_pass_k_lies_around_the_pass_rate(cases: list[tuple[int, int]], rng: random.Random) -> None:
    n, c = [trials for trials, _ in cases], [min(passes, trials) for trials, passes in cases]
    one = stats.pass_k(n, c, 1)
    assert one.pass_at_k == pytest.approx(np.mean(np.array(c) / n)) and close(one.pass_at_k, one.pass_hat_k) and one.complete
    for k in (2, 3):
        found = stats.pass_k(n, c, k)
        kept = [passes / trials for trials, passes in zip(n, c, strict=True) if trials >= k]
        assert (found.n_cases, found.complete) == (len(kept), len(kept) == len(n))
        for at, hat, rate in zip(found.per_case_at, found.per_case_hat, kept, strict=True):
            assert hat <= rate + 1e-12 and rate <= at + 1e-12
    order = rng.sample(range(len(n)), len(n))
    again = stats.pass_k([n[i] for i in order], [c[i] for i in order], 2)
    assert close(again.pass_hat_k, stats.pass_k(n, c, 2).pass_hat_k) and close(again.se_at, stats.pass_k(n, c, 2).se_at)


@steady
@given(pairs_of_labels)
def test_kappa_knows_neither_rater_nor_name_of_a_label(pairs: list[tuple[int | None, int | None]]) -> None:
    judge, human = [j for j, _ in pairs], [h for _, h in pairs]
    found, swapped = stats.cohen_kappa(judge, human), stats.cohen_kappa(human, judge)
    flipped = stats.cohen_kappa(*([None if v is None else 1 - v for v in side] for side in (judge, human)))
    assert close(found.kappa, swapped.kappa) and close(found.kappa, flipped.kappa) and close(found.se, flipped.se)
    assert (found.tpr, found.tnr, found.n) == (flipped.tnr, flipped.tpr, sum(None not in pair for pair in pairs))


@steady
@given(
    st.lists(st.lists(st.one_of(st.none(), st.integers(0, 3)), min_size=4, max_size=4), min_size=2, max_size=4),
    st.randoms(use_true_random=False),
)
def test_alpha_knows_no_order_of_raters_and_units(ratings: list[list[int | None]], rng: random.Random) -> None:
    units = rng.sample(range(4), 4)
    found, again = stats.krippendorff_alpha(ratings), stats.krippendorff_alpha([[row[i] for i in units] for row in ratings[::-1]])
    renamed = stats.krippendorff_alpha([[None if v is None else 9 - 2 * v for v in row] for row in ratings])
    assert close(found.nominal, again.nominal) and close(found.interval, again.interval)
    assert close(found.nominal, renamed.nominal) and close(found.interval, renamed.interval)


def test_intervals_of_agreement_hold_the_estimate_and_are_repeatable() -> None:
    rng = np.random.default_rng(2)
    human = rng.integers(0, 2, 200).tolist()
    judge = [h if rng.random() < 0.85 else 1 - h for h in human]
    cases = [i // 2 for i in range(200)]
    found, at = stats.agreement_ci(judge, human, cases, resamples=2000), stats.cohen_kappa(judge, human)
    assert found == stats.agreement_ci(judge, human, cases, resamples=2000)
    for interval, value in ((found.kappa, at.kappa), (found.tpr, at.tpr), (found.tnr, at.tnr)):
        assert interval is not None and value is not None and interval[0] < value < interval[1]
    # Fleiss, Cohen and Everitt's error on half as many clusters
    assert found.kappa is not None and at.se is not None
    assert (found.kappa[1] - found.kappa[0]) / (2 * 1.96 * at.se) == pytest.approx(1.0, abs=0.35)
    assert stats.agreement_ci([1], [1], ["a"]).kappa is None
    alpha = stats.krippendorff_alpha([judge, human], resamples=2000)
    assert alpha.nominal is not None and alpha.nominal_ci is not None
    assert alpha.nominal_ci[0] < alpha.nominal < alpha.nominal_ci[1]


def labels(n: int, wrong: int) -> tuple[list[float | None], list[float | None]]:
    human = [i % 2 for i in range(n)]
    return [1 - h if i < wrong else h for i, h in enumerate(human)], [*human]


def test_a_judge_is_validated_by_every_bar() -> None:
    assert stats.judge_badge({"a": labels(100, 5), "b": labels(120, 8)}).badge == "validated"
    for arms, reason in (
        ({"a": labels(99, 0)}, "a: 99 labelled cells, 100 are needed"),
        ({"a": labels(100, 30)}, "kappa is 0.40, 0.6 is needed"),
        ({"a": labels(400, 0), "b": labels(100, 40)}, "b: TPR differs from the other arms'"),
        ({"a": ([1.0] * 100, [1.0] * 100)}, "kappa is undefined, 0.6 is needed"),
    ):
        found = stats.judge_badge(arms)
        assert found.badge == "judge unvalidated" and reason in found.reasons


@steady
@given(st.lists(st.sampled_from([0, 1, "abstain", "failed"]), max_size=9), st.randoms(use_true_random=False))
def test_votes_have_no_order_and_a_failed_call_is_no_vote(votes: list[Any], rng: random.Random) -> None:
    found = stats.aggregate_votes(votes)
    assert found == stats.aggregate_votes(rng.sample(votes, len(votes)))
    assert found.n_votes + found.n_abstain + found.n_failed == len(votes)
    assert stats.aggregate_votes([*votes, "failed"]).verdict == found.verdict
    assert (found.verdict is None) == (found.n_votes == 0)


@pytest.mark.parametrize("vote", ["met", 2, 0.5, None, True])
def test_what_is_no_vote_is_refused(vote: Any) -> None:
    with pytest.raises(ValueError, match="a vote is"):
        stats.aggregate_votes([1, vote])


def test_biases_by_hand() -> None:
    found = stats.order_check([("a", "a"), ("a", "b"), ("a", "b"), ("b", "tie")])
    # first won: a, then a and b, a and b, nothing: 5 of 7 judgements with a winner; 2 P(X <= 2 | 7) = 58/128
    assert (found.n_pairs, found.consistency, found.bias.rate) == (4, 0.25, pytest.approx(5 / 7))
    assert found.bias.p == pytest.approx(58 / 128)
    gaps = stats.family_gaps([("j", "x", 0.9, 0.5), ("j", "x", 0.7, 0.5), ("j", "y", 0.2, 0.4), ("j", "y", None, 0.1)])
    assert gaps == {("j", "x"): pytest.approx(0.3), ("j", "y"): pytest.approx(-0.2)}
    assert stats.verbosity_spearman([1, 2, 3], [0.5, 0.5, 0.5]) is None
    assert stats.verbosity_spearman([1, 2, 3, 4], [9.0, None, 5.0, 1.0]) == pytest.approx(-1.0)


@steady
@given(st.floats(0, 1), st.integers(20, 100), st.integers(20, 100))
def test_a_perfect_judges_rate_stays_and_errors_are_undone(rate: float, positives: int, negatives: int) -> None:
    found = stats.rogan_gladen(rate, 50, positives, positives, negatives, negatives)
    assert found.estimate == pytest.approx(rate) and found.youden == pytest.approx(1.0)
    seen = rate * 0.9 + (1 - rate) * 0.25
    assert stats.rogan_gladen(seen, 50, 90, 100, 75, 100).raw == pytest.approx(rate, abs=1e-9)


@pytest.mark.slow
def test_a_corrected_mean_is_unbiased_and_covers() -> None:
    rng, covered, estimates = np.random.default_rng(8), 0, list[float]()
    for _ in range(1000):
        human = (rng.random(240) < 0.6).astype(float)
        judge = np.where(rng.random(240) < 0.8, human, rng.random(240) < 0.9).astype(float)
        found = stats.ppi_mean(human[:40].tolist(), judge[:40].tolist(), judge[40:].tolist())
        assert found.ci_lower is not None and found.ci_upper is not None and found.estimate is not None
        covered += found.ci_lower <= 0.6 <= found.ci_upper
        estimates.append(found.estimate)
    assert 0.92 <= covered / 1000 <= 0.98 and np.mean(estimates) == pytest.approx(0.6, abs=0.01)


def test_clustered_labels_are_fewer_labels() -> None:
    human, said = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0], [1.0, 0.0, 1.0, 0.0, 0.0, 1.0]
    copies = [[v for v in side for _ in range(4)] for side in (human, said)]
    cases = [i for i in range(6) for _ in range(4)]
    rest = [float(i % 3 > 0) for i in range(30)]
    many = stats.ppi_mean(copies[0], copies[1], rest, cases_labelled=cases)
    alone = stats.ppi_mean(copies[0], copies[1], rest)
    assert many.estimate == alone.estimate and many.se is not None and alone.se is not None and many.se > alone.se


def test_groups_are_scored_apart() -> None:
    criteria = [CriterionVerdict(weight=w, verdict=v) for w, v in ((2, 1), (1, 0), (3, None), (-1, 1), (4, 1))]
    found = stats.score_groups(criteria, ["form", "form", "law", "bad", None])
    assert found["form"].score == pytest.approx(2 / 3)
    assert (found["law"].score, found["law"].lower, found["law"].upper) == (None, 0.0, 1.0)
    assert found["bad"].lower is None and set(found) == {"form", "law", "bad"}


@steady
@given(st.integers(2, 40), st.integers(1, 12), st.floats(0.2, 0.8), st.integers(0, 5), st.randoms(use_true_random=False))
def test_a_split_keeps_worlds_whole_and_knows_no_order(n: int, worlds: int, share: float, seed: int, rng: random.Random) -> None:
    cases = [f"k{i}" for i in range(n)]
    world = {case: f"w{i % worlds}" for i, case in enumerate(cases)}
    found = stats.split_holdout(cases, world, share=share, seed=seed)
    assert sorted([*found.dev, *found.holdout]) == sorted(cases)
    assert not {world[c] for c in found.dev} & {world[c] for c in found.holdout}
    assert ("one_sided" in found.flags) == (not found.dev or not found.holdout)
    again = stats.split_holdout(rng.sample(cases, n), world, share=share, seed=seed)
    assert set(again.holdout) == set(found.holdout)
    assert abs(len(found.holdout) - share * n) <= math.ceil(n / min(worlds, n)) + 1e-9


def test_a_split_is_stratified_and_lost_cells_never_help() -> None:
    cases = [f"k{i}" for i in range(400)]
    stratum = {case: "rare" if i < 20 else "common" for i, case in enumerate(cases)}
    found = stats.split_holdout(cases, stratum=stratum, share=0.3)
    assert sum(stratum[c] == "rare" for c in found.holdout) == 6 and len(found.holdout) == 120 and found.flags == ()
    assert [stats.loop_value(None, role) for role in ("candidate", "baseline")] == [0.0, 1.0]
    assert stats.loop_value(0.4, "baseline") == 0.4


def test_contradictory_counts_of_tokens_are_refused() -> None:
    for usage in ({"prompt_tokens": 5, "cached_tokens": 6}, {"completion_tokens": 5, "reasoning_tokens": 6}):
        with pytest.raises(ValueError, match="neither can exceed it"):
            stats.call_cost(usage, "openai", {})
    with pytest.raises(ValueError, match="must be a count of tokens"):
        stats.call_cost({"input_tokens": -1}, "anthropic", {})
    assert stats.call_cost({"input_tokens": 1}, "anthropic", {}).cost_usd is None
