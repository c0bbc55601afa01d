"""Two arms compared, against the textbooks' tests computed elsewhere: scipy, statsmodels, pandas."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats import power
from support.locks import criterion
from support.tabled import Did, one_a_world, tabled

from eval_pipeline.analysis.comparable import side
from eval_pipeline.analysis.compare import Comparison, compare
from eval_pipeline.analysis.stats import mde
from eval_pipeline.cli.compare import verdict_lines
from eval_pipeline.domain.case import Limits
from eval_pipeline.domain.experiment import JudgeSpec
from eval_pipeline.errors import SpecError

textbook: Any = stats
planner: Any = power
pandas: Any = pd

WORTH: Any = {(0, 0): 0.0, (1, 0): 0.25, (0, 1): 0.75, (1, 1): 1.0}


def drawn(seed: int, n_cases: int, trials: int, lift: float = 0.0) -> dict[str, Did]:
    """Arms x and y; y meets a criterion more often by `lift`, and costs half."""
    rng = np.random.default_rng(seed)
    did: dict[str, Did] = {}
    for case in range(n_cases):
        ease = rng.uniform(0.2, 0.8)
        for arm, more in (("x", 0.0), ("y", lift)):
            for trial in range(trials):
                a, b = (int(rng.random() < ease + more) for _ in range(2))
                cost = float(rng.lognormal(0.0, 0.5)) * (0.5 if arm == "y" else 1.0)
                did[f"c{case}/{arm}/{trial}"] = Did(a=a, b=b, cost_usd=round(cost, 6), latency_s=round(cost * 10, 3))
    return did


def frame(did: Mapping[str, Did]) -> Any:
    rows = [
        {
            "case": key.split("/")[0],
            "arm": key.split("/")[1],
            "score": WORTH[one.a, one.b],
            "cost": one.cost_usd,
            "s": one.latency_s,
        }
        for key, one in did.items()
    ]
    return pandas.DataFrame(rows).groupby(["case", "arm"], sort=False).mean().unstack("arm")


def compared(did: Mapping[str, Did], worlds: Mapping[str, str] | None = None, **more: Any) -> Comparison:
    experiment, table = tabled(did, worlds, **more)
    return compare(side(experiment, table, "x"), side(experiment, table, "y"))


def test_with_a_world_a_case_it_is_the_paired_t_test() -> None:
    did = drawn(1, n_cases=20, trials=3, lift=0.2)
    found = compared(did, one_a_world([f"c{n}" for n in range(20)]))
    means = frame(did)
    oracle = textbook.ttest_rel(means["score", "y"], means["score", "x"])
    low, high = oracle.confidence_interval(0.95)
    difference = found.difference
    assert difference.diff == pytest.approx(float((means["score", "y"] - means["score", "x"]).mean()))
    assert (difference.p, difference.ci_lower, difference.ci_upper) == pytest.approx((oracle.pvalue, low, high), abs=1e-9)
    assert (found.a.score, found.b.score) == pytest.approx((means["score", "x"].mean(), means["score", "y"].mean()))
    assert found.quality == ("better" if oracle.pvalue < 0.05 else "undecided")
    assert (found.status, found.n_cases, found.n_worlds) == ("final", 20, 20)


def test_with_worlds_of_equal_size_it_is_the_t_test_of_their_means() -> None:
    did = drawn(2, n_cases=24, trials=2)
    worlds = {f"c{n}": f"w{n % 8}" for n in range(24)}
    found = compared(did, worlds)
    means = frame(did)
    diffs = (means["score", "y"] - means["score", "x"]).groupby(means.index.map(worlds)).mean()
    oracle = textbook.ttest_1samp(diffs, 0.0)
    low, high = oracle.confidence_interval(0.95)
    assert (found.difference.p, found.difference.ci_lower, found.difference.ci_upper) == pytest.approx((oracle.pvalue, low, high))
    assert (found.difference.df, found.n_worlds) == (pytest.approx(7.0), 8)


def test_cost_and_latency_are_ratios_of_means_with_the_jackknifes_error() -> None:
    did = drawn(3, n_cases=15, trials=2)
    found = compared(did, one_a_world([f"c{n}" for n in range(15)]))
    means = frame(did)
    for ratio, column in ((found.cost, "cost"), (found.latency, "s")):
        x, y = means[column, "x"], means[column, "y"]
        logs = np.array([math.log(y.drop(case).sum() / x.drop(case).sum()) for case in means.index])
        error = math.sqrt((len(logs) - 1) / len(logs) * float(((logs - logs.mean()) ** 2).sum()))
        t = float(textbook.t.ppf(0.975, len(logs) - 1))
        assert ratio.ratio == pytest.approx(y.mean() / x.mean())
        assert (ratio.ci_lower, ratio.ci_upper) == pytest.approx(
            (y.mean() / x.mean() * math.exp(-t * error), y.mean() / x.mean() * math.exp(t * error))
        )
        assert ratio.p == pytest.approx(2 * textbook.t.sf(abs(math.log(y.mean() / x.mean())) / error, len(logs) - 1))
    assert found.cheaper is True


def test_what_would_tell_is_what_statsmodels_says() -> None:
    did = drawn(4, n_cases=30, trials=3, lift=0.05)
    found = compared(did, one_a_world([f"c{n}" for n in range(30)])).power
    assert found is not None
    rows = pandas.DataFrame(
        [{"case": k.split("/")[0], "arm": k.split("/")[1], "score": WORTH[one.a, one.b]} for k, one in did.items()]
    )
    within = rows.groupby(["arm", "case"])["score"].var(ddof=1).groupby("arm").mean()
    means = frame(did)
    noise = float(within.sum()) / 3
    between = max(0.0, float((means["score", "y"] - means["score", "x"]).var(ddof=1)) - noise)
    assert (found.spread.omega2, found.spread.sigma2_a, found.spread.sigma2_b) == pytest.approx(
        (between, within["x"], within["y"])
    )
    sd = math.sqrt(between + noise)
    assert found.detectable == pytest.approx(sd * planner.TTestPower().solve_power(nobs=30, alpha=0.05, power=0.8), rel=1e-4)
    for one in found.needed:
        cases = planner.NormalIndPower(ddof=0).solve_power(effect_size=one.delta / sd, alpha=0.05, power=0.8, ratio=0)
        assert one.cases == pytest.approx(cases, abs=1.01)
        enough = [r for r in range(1, 51) if planner.NormalIndPower(ddof=0).solve_power(one.delta / math.sqrt(between + float(within.sum()) / r), alpha=0.05, power=0.8, ratio=0) <= 30]  # fmt: skip
        assert one.trials == (enough[0] if enough else None)
    assert [one.delta for one in found.needed][1:] == [0.05]


def test_one_trial_a_case_does_not_tell_what_trials_add() -> None:
    found = compared(drawn(5, n_cases=12, trials=1), one_a_world([f"c{n}" for n in range(12)])).power
    assert found is not None
    assert not found.spread.apart
    assert all(one.trials is None and one.cases is not None for one in found.needed)


def test_the_data_may_not_tell_and_say_so() -> None:
    did = {f"c{n}/{arm}/0": Did(a=1, b=n % 2) for n in range(8) for arm in "xy"} | {"c0/y/0": Did(a=0, b=0)}
    found = compared(did, one_a_world([f"c{n}" for n in range(8)]))
    assert (found.quality, found.non_inferior) == ("undecided", False)
    assert "insufficient_discordance" in found.difference.flags
    assert found.difference.p == 1.0


def test_one_world_is_no_test_and_passes_nothing() -> None:
    found = compared({f"c{n}/{arm}/0": Did(a=1, b=1) for n in range(40) for arm in "xy"})
    assert (found.quality, found.non_inferior, found.cheaper, found.cheaper_at_quality) == ("unknown", None, None, None)


def test_what_would_tell_says_of_how_many_worlds_the_cases_are() -> None:
    did = drawn(3, n_cases=12, trials=2)
    names = [f"c{n}" for n in range(12)]
    of_two, apart, alone = (
        "\n".join(verdict_lines(compared(did, worlds)))
        for worlds in ({name: f"w{n % 2}" for n, name in enumerate(names)}, one_a_world(names), None)
    )
    assert "80% of the time, if each were of a world of its own: they are of 2" in of_two
    assert "80% of the time" in apart and "of a world of its own" not in apart
    assert "what would tell: cases of other worlds" in alone and "of the time" not in alone


def test_what_never_varied_does_not_tell_what_would_show() -> None:
    did = {f"c{n}/{arm}/0": Did(a=1, b=1) for n in range(8) for arm in "xy"}
    lines = verdict_lines(compared(did, one_a_world([f"c{n}" for n in range(8)])))
    assert lines[-1] == "what would tell: unknown; these differences do not vary, so they do not say how far new ones would"


def test_what_is_missing_decides_a_verdict_and_it_passes_nothing() -> None:
    did = {
        f"c{n}/{arm}/{trial}": Did(a=1, b=(n + trial) % 2 if n < 2 else 1)
        for n in range(60)
        for arm in "xy"
        for trial in range(2)
    }
    worlds = one_a_world([f"c{n}" for n in range(60)])
    assert compared(did, worlds).non_inferior is True
    whole = {key: one for key, one in did.items() if key.split("/")[0] not in {"c7", "c8", "c9"} or "/x/" in key}
    found = compared(whole, worlds)
    assert (found.non_inferior, found.provisional_verdict, found.non_inferiority.non_inferior) == (None, True, True)
    assert found.status == "provisional"
    parts = {key: one for key, one in did.items() if not (key.endswith("/y/1") and int(key[1:].split("/")[0]) >= 50)}
    found = compared(parts, worlds)  # no case is missing as a whole
    assert (found.non_inferiority.n_missing, found.non_inferior, found.provisional_verdict) == (0, None, True)


def test_moves_by_case_and_by_criterion_name_the_cells_to_look_at() -> None:
    did = {
        "c/x/0": Did(a=1, b=1), "c/x/1": Did(a=1, b=1), "c/y/0": Did(a=1, b=1), "c/y/1": Did(a=1, b=0),
        "d/x/0": Did(a=1, b=0), "d/x/1": Did(outcome="agent_error"), "d/y/0": Did(a=0, b=1), "d/y/1": Did(a=1, b=1),
        "e/x/0": Did(a=1, b=None), "e/x/1": Did(a=1, b=None), "e/y/0": Did(a=1, b=1), "e/y/1": Did(a=1, b=1),
    }  # fmt: skip
    found = compared(did)
    assert [(move.case, move.a, move.b, move.diff) for move in found.cases] == [
        ("w.d", 0.125, 0.875, 0.75),
        ("w.c", 1.0, 0.625, -0.375),
        ("w.e", None, 1.0, None),
    ]
    prefix = found.a.experiment
    assert (found.cases[0].cell_a, found.cases[0].cell_b) == (f"{prefix}/w.d/x/1", f"{prefix}/w.d/y/1")
    assert (found.cases[1].cell_a, found.cases[1].cell_b) == (f"{prefix}/w.c/x/1", f"{prefix}/w.c/y/1")
    moved = [(m.case, m.criterion, m.n, m.met_a, m.met_b, m.gained, m.lost) for m in found.criteria if m.met_a != m.met_b]
    assert moved == [
        ("w.d", "b", 1, 0.0, 1.0, 1, 0),  # an agent that failed left nothing to decide
        ("w.c", "b", 2, 1.0, 0.5, 0, 1),
        ("w.d", "a", 1, 1.0, 0.0, 0, 1),
    ]
    assert found.a.failures["agent"] == 1
    assert found.as_data()["cases"][0]["cell_b"] == f"{prefix}/w.d/y/1"


def test_a_count_of_occurrences_is_a_share_of_its_cap() -> None:
    criteria = (criterion("a", 1), criterion("b", -1, per_occurrence=True, cap=4))
    found = compared({"c/x/0": Did(a=1, b=1), "c/y/0": Did(a=1, b=9)}, criteria=criteria)
    assert [(move.criterion, move.met_a, move.met_b) for move in found.criteria] == [("b", 0.25, 1.0), ("a", 1.0, 1.0)]


def test_timeouts_bound_the_latency_ratio() -> None:
    did = {f"c{n}/{arm}/0": Did(a=1, b=1, latency_s=10.0 + n) for n in range(6) for arm in "xy"}
    late = {**did, "c0/y/0": Did(outcome="agent_timeout", latency_s=61.0)}
    found = compared(late, one_a_world([f"c{n}" for n in range(6)]))
    assert (found.latency.bound, found.b.n_timeouts) == ("lower", 1)
    assert found.latency.mean_b == pytest.approx((60 + 11 + 12 + 13 + 14 + 15) / 6)


def across(left: Any, right: Any) -> Comparison:
    return compare(side(left[0], left[1], "x"), side(right[0], right[1], "x"))


def said(n: int = 1, cases: str = "cde", arm: str = "x") -> dict[str, Did]:
    return {f"{case}/{arm}/{trial}": Did(a=1, b=1) for case in cases for trial in range(n)}


def test_experiments_are_compared_on_the_cases_they_share() -> None:
    found = across(tabled(said(), name="one"), tabled(said(2, "cd"), name="two"))
    assert (found.n_cases, found.b.n_cells, found.difference.diff) == (2, 4, 0.0)
    assert any("left out: 1 of one-" in note and "0 of two-" in note for note in found.notes)


@pytest.mark.parametrize(
    "other, expected",
    [
        ({"case": {"prompt": "Something else."}}, "ask different things in 3 cases (w.c, w.d, w.e)"),
        ({"case": {"deliverables": ("memo.docx",)}}, "ask different things"),
        ({"criteria": (criterion("a", 1), criterion("b", 2))}, "judge 3 cases (w.c, w.d, w.e) by different rubrics"),
        ({"policy": "raw"}, "different scoring policies: clip_cell and raw"),
        ({"pass_at": 0.5}, "by different rubrics"),
    ],
)
def test_what_is_not_the_same_is_not_compared(other: dict[str, Any], expected: str) -> None:
    with pytest.raises(SpecError) as raised:
        across(tabled(said(), name="one"), tabled(said(), name="two", **other))
    assert expected in str(raised.value)
    assert raised.value.hint


def test_other_snapshots_judges_and_rules_are_refused() -> None:
    left, (experiment, table) = tabled(said(), name="one"), tabled(said(), name="two")
    run, score = experiment.run, experiment.score
    from dataclasses import replace

    moved = replace(experiment, run=run.model_copy(update={"worlds": {"w": "f" * 64}}))
    with pytest.raises(SpecError, match=r"different snapshots of 1 world \(w\): w is aaaaaaaaaaaa and ffffffffffff"):
        across(left, (moved, table))
    rules = replace(experiment, score=score.model_copy(update={"scoring_version": 2}))
    with pytest.raises(SpecError, match="scoring version 1 and 2"):
        across(left, (rules, table))
    judge = JudgeSpec(model="openai:one", votes=3)
    judges = replace(experiment, score=score.model_copy(update={"judge": judge}))
    assert across(left, (judges, table)).n_cases == 3  # no criterion needs one
    by_judge: dict[str, Any] = {"criteria": (criterion("a", judge=True), criterion("b", 3))}
    (one, cells), (other, theirs) = tabled(said(), name="one", **by_judge), tabled(said(), name="two", **by_judge)
    with pytest.raises(SpecError, match=r"different judges: no judge and openai:one \(3 votes\)"):
        across((one, cells), (replace(other, score=other.score.model_copy(update={"judge": judge})), theirs))


def test_nothing_shared_and_itself_are_refused() -> None:
    with pytest.raises(SpecError, match="share no case"):
        across(tabled(said(cases="c"), name="one"), tabled(said(cases="d"), name="two"))
    one = tabled(said(), name="one")
    with pytest.raises(SpecError, match="can't be compared with itself"):
        across(one, one)


def test_unequal_limits_are_said_and_leave_no_latency_ratio() -> None:
    did = {f"{case}/x/0": Did(a=1, b=1, latency_s=3.0) for case in "cde"}
    found = across(tabled(did, name="one"), tabled(did, name="two", case={"limits": Limits(wall_s=90.0)}))
    assert (found.latency.ratio, found.latency.flags) == (None, ("unequal_limits",))
    assert any("the limits differ in 3 cases" in note for note in found.notes)


def test_providers_that_failed_one_side_more_make_it_provisional() -> None:
    did = {f"c{n}/{arm}/0": Did(a=1, b=1) for n in range(40) for arm in "xy"}
    worlds = one_a_world([f"c{n}" for n in range(40)])
    assert compared(did, worlds).status == "final"
    did["c3/x/0"] = Did(outcome="agent_error", error_class="provider")
    found = compared(did, worlds)
    assert (found.status, found.reasons) == (
        "provisional",
        ["provider errors differ between arms: 2.5% and 0.0%, 2 points are allowed"],
    )


@pytest.mark.parametrize("n_cases", [2, 3, 5])
def test_few_cases_detect_what_statsmodels_says(n_cases: int) -> None:
    """Where scipy's noncentral t has no number for a tail of nothing."""
    found = mde(0.04, 0.0, 0.0, 1, 1, n_cases).mde_t
    assert found == pytest.approx(0.2 * planner.TTestPower().solve_power(nobs=n_cases, alpha=0.05, power=0.8), rel=1e-4)
