"""A judge against people, on labels made by hand; the numbers against statsmodels and formulas written out."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from statsmodels.stats.inter_rater import cohens_kappa  # type: ignore[import-untyped]
from statsmodels.stats.multitest import multipletests  # type: ignore[import-untyped]
from support.locks import criterion, locked_arm, locked_case, run_lock, score_lock
from support.tables import attempt, cell_view, experiment_row

from eval_pipeline.analysis.calibration import Drawn, badge_of, calibrate
from eval_pipeline.analysis.corrected import CorrectedArm, corrected_arms
from eval_pipeline.analysis.human import human_row, settle
from eval_pipeline.analysis.questions import JudgedQuestion
from eval_pipeline.analysis.tables import asked_of, scored_table
from eval_pipeline.domain.ids import CellKey
from eval_pipeline.domain.rubric import Criterion
from eval_pipeline.domain.verdict import VerdictRow
from eval_pipeline.store.reviews import Label

JUDGED = criterion("told", judge=True)


def vote(verdict: float | None, number: int = 0, status: str | None = None) -> VerdictRow:
    return VerdictRow(
        request_digest="r",
        judge_version="judge-1",
        vote=number,
        bundle="b",
        criterion="told",
        verdict=verdict,
        status=status or ("abstained" if verdict is None else "ok"),
        reason="because",
    )


def drawn(
    number: int,
    judge: float | None,
    *people: float | None,
    arm: str = "a",
    case: str | None = None,
    family: str = "maker",
    asked: Criterion = JUDGED,
    votes: Sequence[float | None] = (),
    length: int | None = None,
) -> Drawn:
    labels = tuple(Label(question_digest=f"q{number}", rater=f"p{i}", verdict=said) for i, said in enumerate(people))
    question = JudgedQuestion(
        digest=f"q{number}",
        asked=f"r{number}",
        cell=CellKey("x", "w", case or f"c{number}", arm, 0),
        criterion=asked,
        bundle=f"b{number}",
        state_before=None,
        votes=tuple(vote(one, i) for i, one in enumerate(votes or [judge])),
        judged=vote(judge),
        labels=labels,
    )
    return Drawn(question=question, arm=arm, family=family, length=length)


def confusion(tp: int, fn: int, fp: int, tn: int, arm: str = "a", start: int = 0, **more: Any) -> list[Drawn]:
    pairs = [(1, 1)] * tp + [(0, 1)] * fn + [(1, 0)] * fp + [(0, 0)] * tn
    return [drawn(start + i, said, true, arm=arm, **more) for i, (said, true) in enumerate(pairs)]


def calibrated(found: Sequence[Drawn]) -> Any:
    return calibrate(found, [one.question for one in found], "maker")


@pytest.mark.long
def test_agreement_is_that_of_statsmodels_and_of_the_counts() -> None:
    found = calibrated(confusion(40, 7, 9, 44)).whole
    expected: Any = cohens_kappa(np.array([[44, 9], [7, 40]]))
    assert found.kappa == pytest.approx(expected.kappa)
    assert (found.n, found.tpr, found.tnr, found.raw_agreement) == (100, 40 / 47, 44 / 53, 0.84)
    # each case one question, so the bootstrap's spread is about the large-sample error
    assert found.kappa_ci is not None and found.raw_agreement_ci is not None
    assert (found.kappa_ci[1] - found.kappa_ci[0]) / (2 * 1.96 * expected.std_kappa) == pytest.approx(1.0, abs=0.15)
    wald = 2 * 1.96 * math.sqrt(0.84 * 0.16 / 100)
    assert (found.raw_agreement_ci[1] - found.raw_agreement_ci[0]) / wald == pytest.approx(1.0, abs=0.15)


def test_intervals_draw_cases_whole() -> None:
    pairs = confusion(40, 7, 9, 44)
    mixed = random.Random(1).sample(pairs, len(pairs))

    def width(found: Sequence[Drawn]) -> float:
        interval = calibrated([drawn(i, one.judge, one.human, case=f"c{i // 20}") for i, one in enumerate(found)]).whole.tpr_ci
        return interval[1] - interval[0]

    assert width(pairs) > 1.5 * width(mixed)  # all misses in one of five cases, and spread over them
    assert calibrated([drawn(i, one.judge, one.human, case="only") for i, one in enumerate(pairs)]).whole.kappa_ci is None


def fisher(table: Sequence[Sequence[int]]) -> float:
    """Two-sided: the tables with these margins that are no likelier than this one."""
    (a, b), (c, d) = table
    n, row, column = a + b + c + d, a + b, a + c

    def likely(x: int) -> float:
        return math.comb(row, x) * math.comb(n - row, column - x) / math.comb(n, column)

    all_of = [likely(x) for x in range(max(0, row + column - n), min(row, column) + 1)]
    return sum(p for p in all_of if p <= likely(a) * (1 + 1e-9))


def test_arms_are_held_against_each_other_by_fishers_test_and_holm() -> None:
    counts = {"left": (50, 2, 4, 60), "right": (40, 12, 6, 50), "third": (30, 3, 5, 20)}
    found = calibrated([one for i, (arm, four) in enumerate(counts.items()) for one in confusion(*four, arm=arm, start=1000 * i)])
    total = np.array([*counts.values()]).sum(axis=0)
    raw: list[float] = []
    for tp, fn, fp, tn in counts.values():
        raw.append(fisher([[tp, fn], [int(total[0]) - tp, int(total[1]) - fn]]))
        raw.append(fisher([[tn, fp], [int(total[3]) - tn, int(total[2]) - fp]]))
    expected: Any = multipletests(raw, method="holm")[1]
    assert [p for arm in found.arms for p in (arm.p_tpr, arm.p_tnr)] == pytest.approx(list(expected))
    assert [(arm.tpr, arm.tnr) for arm in found.arms] == [(tp / (tp + fn), tn / (tn + fp)) for tp, fn, fp, tn in counts.values()]


def test_the_badge_counts_cells_of_a_family_and_not_questions() -> None:
    good = [*confusion(48, 2, 3, 47, "a", 0), *confusion(47, 3, 2, 48, "b", 500)]
    assert badge_of(good).badge == "validated"  # two arms of one maker: 200 cells together
    two = [drawn(i, one.judge, one.human, arm=one.arm, family=one.arm) for i, one in enumerate(good[:99])]
    assert "a: 99 labelled cells, 100 are needed" in badge_of(two).reasons
    halves = [drawn(i, one.judge, one.human, case=f"c{i // 4}") for i, one in enumerate(good)]
    assert badge_of(halves).reasons == ("maker: 50 labelled cells, 100 are needed",)
    assert badge_of([]).badge == badge_of([drawn(1, 1.0)]).badge == "judge unvalidated"
    assert "nobody has labelled" in badge_of([drawn(1, 1.0)]).reasons[0]


def test_people_who_disagree_or_cannot_tell_decide_nothing() -> None:
    found = calibrated(
        [drawn(1, 1, 1, 0), drawn(2, 1, 1, 1, 0), drawn(3, 1, None), drawn(4, None, 1), drawn(5, 0, 0), drawn(6, 0.5, 1)]
    )
    assert (found.n_drawn, found.n_labelled, found.n_double, found.n_disputed, found.n_no_verdict) == (6, 4, 2, 1, 2)
    assert found.whole.n == 2
    counts = [Label(question_digest="q", rater=f"p{i}", verdict=n) for i, n in enumerate((0, 3, 2))]
    assert settle(counts, per_occurrence=True).verdict == 2
    row = human_row(counts, vote(5.0), "told", per_occurrence=True)
    assert row is not None and row.verdict == 2 and "the judge said 5" in (row.reason or "")
    assert human_row(counts[:1], None, "told", per_occurrence=True) is not None
    assert human_row([Label(question_digest="q", rater="p", verdict=None)], vote(1.0), "told", per_occurrence=False) is None


def test_alpha_of_the_people_is_krippendorffs_formula() -> None:
    pairs = [(1, 1)] * 30 + [(0, 0)] * 25 + [(1, 0)] * 4 + [(0, 1)] * 3
    found = calibrated([*(drawn(i, 1, *pair) for i, pair in enumerate(pairs)), drawn(900, 1, 1), drawn(901, 0, 0)])
    ones = sum(map(sum, pairs))
    n = 2 * len(pairs)  # a unit with one rating is none
    assert found.raters.nominal == pytest.approx(1 - (n - 1) * (2 * 7) / (2 * ones * (n - ones)))
    low, high = found.raters.nominal_ci
    assert low < found.raters.nominal < high


def test_votes_length_families_and_abstentions() -> None:
    votes = calibrated([drawn(1, 1, 1, votes=[1, 1, 1]), drawn(2, 1, 1, votes=[1, 0, 1]), drawn(3, 0, 0)])
    assert votes.repeat_agreement == pytest.approx((1 + 1 / 3) / 2)
    longer = [drawn(i, float(i > 5), 1, length=100 + i) for i in range(11)]
    found = calibrated([*longer, drawn(90, 1, 0, arm="b", family="other")]).biases
    x, y = np.arange(11.0), np.array([2.5] * 6 + [8.0] * 5)  # ranks; ties share theirs
    assert found.verbosity == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert found.verbosity_gap == pytest.approx(found.verbosity)
    assert found.families == {"maker": pytest.approx(-6 / 11), "other": 1.0}
    unsure = [drawn(i, None if i < 2 else 1, case="c") for i in range(20)]
    assert calibrated(unsure).abstaining == {"w.c: told": 0.1}
    assert calibrated(unsure[1:]).abstaining == {"w.c: told": pytest.approx(1 / 19)}


# ---- corrected means


def arms_of(judge: Mapping[str, float], people: Mapping[str, float], failed: int = 0) -> list[CorrectedArm]:
    """An arm of one cell a case; `failed` more whose agent failed. people: of the cases that were drawn."""
    names = [*judge, *(f"f{n}" for n in range(failed))]
    run = run_lock("x", [locked_case(name) for name in names], [locked_arm("a")])
    score = score_lock(run, [JUDGED])
    experiment = experiment_row(run, score)
    views = [
        cell_view(key, attempt(outcome="agent_error" if key.case.startswith("f") else "ok", bundle=f"b-{key.case}"))
        for key in run.cell_keys()
    ]
    asked = {
        key.case: asked_of(experiment, key, view.counted)["told"]
        for key, view in zip(run.cell_keys(), views, strict=True)
        if view.counted
    }
    said = {asked[case]: vote(verdict) for case, verdict in judge.items()}
    by_hand = {
        asked[case]: human_row([Label(question_digest="q", rater="p", verdict=v)], None, "told", per_occurrence=False)
        for case, v in people.items()
    }
    decided = scored_table(experiment, views, said | {key: row for key, row in by_hand.items() if row is not None})
    chosen = [str(key) for key in run.cell_keys() if key.case in people]
    return corrected_arms(["a"], scored_table(experiment, views, said), decided, chosen)


def test_the_corrected_mean_is_the_formula_of_prediction_powered_inference() -> None:
    rng = random.Random(4)
    truth = {f"c{n}": float(rng.random() < 0.5) for n in range(120)}
    judge = {case: true if rng.random() < 0.7 else 1.0 for case, true in truth.items()}  # a lenient one
    people = {case: truth[case] for case in list(truth)[:60]}
    (found,) = arms_of(judge, people)
    y, f = np.array([*people.values()]), np.array([judge[case] for case in people])
    rest = np.array([judge[case] for case in truth if case not in people])
    n, n_rest = len(y), len(rest)
    lam = np.mean((y - y.mean()) * (f - f.mean())) / ((1 + n / n_rest) * np.var([*judge.values()], ddof=1))
    mean = lam * rest.mean() + np.mean(y - lam * f)
    error = math.sqrt(lam**2 * rest.var() / n_rest + np.var(y - lam * f) / n)
    assert (found.lam, found.corrected) == (pytest.approx(lam), pytest.approx(mean))
    assert found.raw == pytest.approx(np.mean([*judge.values()]))
    assert found.ci_low == pytest.approx(mean - 2.000995 * error, abs=1e-6)  # t with 59 degrees of freedom
    assert found.raw is not None and found.corrected is not None
    assert abs(found.corrected - np.mean([*truth.values()])) < abs(found.raw - np.mean([*truth.values()]))

    sensitivity, specificity = f[y == 1].mean(), 1 - f[y == 0].mean()
    rate = np.mean([*judge.values()])
    assert found.pass_corrected == pytest.approx((rate + specificity - 1) / (sensitivity + specificity - 1))

    (more,) = arms_of(judge, people, failed=40)  # 40 of 160 cells are 0, whatever a judge says
    assert (more.n_cells, more.n_judged, more.n_labelled) == (160, 120, 60)
    assert (more.raw, more.corrected) == (pytest.approx(0.75 * (found.raw or 0)), pytest.approx(0.75 * mean))
    assert more.pass_corrected == pytest.approx(0.75 * (found.pass_corrected or 0))
    assert more.ci_high is not None and more.corrected is not None
    assert more.ci_high - more.corrected == pytest.approx(0.75 * 2.000995 * error, abs=1e-6)


def test_without_labels_nothing_is_corrected() -> None:
    (found,) = arms_of({"c0": 1.0, "c1": 0.0}, {})
    assert (found.raw, found.corrected, found.ci_low, found.pass_raw, found.pass_corrected) == (0.5, None, None, 0.5, None)
    (all_known,) = arms_of({"c0": 1.0, "c1": 1.0, "c2": 0.0}, {"c0": 1.0, "c1": 0.0, "c2": 0.0})
    assert (all_known.raw, all_known.corrected) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
