"""Scored rows computed by hand: what each status counts as, what is unknown and by how much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from support.locks import criterion, locked_arm, locked_case, run_lock, score_lock
from support.tables import attempt, cell_view, experiment_row, verdicts_of

from eval_pipeline.analysis.cell_cost import source_in_words
from eval_pipeline.analysis.frame import flat_row
from eval_pipeline.analysis.tables import ScoredCell, scored_table
from eval_pipeline.domain.case import Limits
from eval_pipeline.domain.experiment import Policy
from eval_pipeline.domain.rubric import Criterion
from eval_pipeline.store.cell_views import AttemptView

# 2 + 3 positive points; a false claim costs 1, at most 5 times
RUBRIC = (criterion("lease", 2), criterion("reasons", 3), criterion("invented", -1, per_occurrence=True))
PRICE = {
    "provider": "p",
    "model": "m",
    "effective_from": "2026-01-01",
    **dict.fromkeys(["input_uncached", "cache_read", "cache_write_5m", "cache_write_1h"], "1"),
    "output": "10",
    "source": "s",
}
USAGE = {"model": "m", "input_uncached": 1000, "output": 200, "calls": 1}


def scored(
    *attempts: AttemptView,
    said: Mapping[str, float | None] | None = None,
    criteria: Sequence[Criterion] = RUBRIC,
    policy: Policy = "clip_cell",
    prices: Sequence[dict[str, Any]] = (),
    limits: Limits | None = None,
    state: str | None = None,
    **rubric: Any,
) -> ScoredCell:
    run = run_lock(cases=[locked_case(limits=limits or Limits())])
    score = score_lock(run, criteria, policy, prices, **rubric)
    (key,) = run.cell_keys()
    view = cell_view(key, *attempts, state=state)
    bundle = view.counted.bundle if view.counted else None
    verdicts = verdicts_of(score, run, key, bundle, said or {}) if bundle else {}
    (row,) = scored_table(experiment_row(run, score), [view], verdicts)
    return row


@pytest.mark.parametrize(
    "said, policy, score",
    [
        ({"lease": 1, "reasons": 1, "invented": 0}, "clip_cell", 1.0),
        ({"lease": 1, "reasons": 0, "invented": 0}, "clip_cell", 0.4),
        ({"lease": 1, "reasons": 1, "invented": 2}, "clip_cell", 0.6),
        ({"lease": 0, "reasons": 0, "invented": 3}, "clip_cell", 0.0),
        ({"lease": 0, "reasons": 0, "invented": 3}, "raw", -0.6),
        ({"lease": 0, "reasons": 0, "invented": 9}, "raw", -1.0),  # the cap is 5
        ({"lease": 0, "reasons": 0, "invented": 3}, "minmax", 0.2),  # (-3 + 5) / (5 + 5)
        ({"lease": 1, "reasons": 1, "invented": 0}, "all_pass", 1.0),
        ({"lease": 1, "reasons": 1, "invented": 1}, "all_pass", 0.0),
    ],
)
def test_a_score_by_hand(said: Mapping[str, float | None], policy: Policy, score: float) -> None:
    row = scored(attempt(), said=said, policy=policy)
    assert (row.score, row.lower, row.upper) == pytest.approx((score, score, score))
    assert (row.n_not_judged, row.n_judge_failed, row.n_criteria, row.valid) == (0, 0, 3, True)
    assert [c.verdict for c in row.criteria] == list(said.values())


def test_a_count_by_hand() -> None:
    found = (criterion("found", 2, per_occurrence=True, cap=3), criterion("x", 4))
    assert scored(attempt(), said={"found": 2, "x": 1}, criteria=found).score == pytest.approx(0.8)  # (4 + 4) / (6 + 4)
    assert scored(attempt(), said={"found": 7, "x": 0}, criteria=found).score == pytest.approx(0.6)


@pytest.mark.parametrize(
    "said, lower, upper, not_judged, failed",
    [
        ({"lease": 1, "invented": 0}, 0.4, 1.0, 1, 0),
        ({"lease": 1, "reasons": 0, "invented": None}, 0.0, 0.4, 0, 1),
        ({"lease": 1, "reasons": None}, 0.0, 1.0, 1, 1),
        ({}, 0.0, 1.0, 3, 0),
    ],
)
def test_what_was_not_judged_is_unknown_within_bounds(
    said: Mapping[str, float | None], lower: float, upper: float, not_judged: int, failed: int
) -> None:
    row = scored(attempt(), said=said)
    assert (row.score, row.passed) == (None, None)
    assert (row.lower, row.upper) == pytest.approx((lower, upper))
    assert (row.n_not_judged, row.n_judge_failed) == (not_judged, failed)


def test_a_judges_criterion_is_not_judged() -> None:
    row = scored(attempt(), said={"a": 1}, criteria=(criterion("a", 1), criterion("b", 3, judge=True)))
    assert (row.score, row.lower, row.upper, row.n_not_judged) == (None, 0.25, 1.0, 1)
    assert [c.status for c in row.criteria] == ["ok", "not_judged"]


@pytest.mark.parametrize("outcome", ["agent_error", "agent_timeout", "budget_exceeded"])
@pytest.mark.parametrize("said", [{}, {"lease": 1, "reasons": 1, "invented": 0}], ids=["unjudged", "perfect"])
def test_an_agents_failure_is_a_result_and_counts_nothing(outcome: str, said: Mapping[str, float | None]) -> None:
    row = scored(attempt(outcome=outcome), said=said)
    assert (row.status, row.score, row.lower, row.upper, row.passed, row.valid) == (outcome, 0.0, 0.0, 0.0, False, True)
    assert row.n_not_judged == 0  # nobody waits for a judge


def test_a_refusal_counts_what_its_answer_is_worth() -> None:
    assert scored(attempt(outcome="refusal"), said={"lease": 1, "reasons": 0, "invented": 0}).score == pytest.approx(0.4)
    row = scored(attempt(outcome="refusal"), said={})
    assert (row.score, row.n_not_judged) == (0.0, 3)


@pytest.mark.parametrize(
    "attempts, state, status",
    [
        ([], "open", "cancelled"),
        ([attempt(outcome="cancelled")], "open", "cancelled"),
        ([attempt(outcome="infra_failure", error="lost")], "failed", "infra_failure"),
        ([attempt(outcome=None, ended_at=None)], "running", "cancelled"),
        ([attempt(outcome="ok", discarded="wrong")], "open", "cancelled"),
    ],
)
def test_a_cell_without_a_result_is_missing_and_not_zero(attempts: list[AttemptView], state: str, status: str) -> None:
    run = run_lock()
    score = score_lock(run, RUBRIC)
    view = replace(cell_view(run.cell_keys()[0], *attempts, state=state), counted=None)
    (row,) = scored_table(experiment_row(run, score), [view], {})
    assert (row.status, row.valid) == (status, False)
    assert (row.score, row.lower, row.upper, row.passed) == (None, 0.0, 1.0, None)
    assert (row.cost_usd, row.latency_s, row.n_not_judged) == (None, None, 0)


@pytest.mark.parametrize(
    "said, pass_at, passed",
    [
        ({"a": 1, "b": 1, "c": 0}, 0.75, True),
        ({"a": 1, "b": 0, "c": 0}, 0.75, True),  # 3 of 4 points
        ({"a": 1, "b": 0, "c": 0}, 0.76, False),
        ({"a": 0, "b": 1, "c": 0}, 0.1, False),  # a is critical
        ({"a": 1, "b": 1, "c": 1}, 0.1, False),  # so is that c be absent
        ({"a": None, "b": 1, "c": 0}, 0.1, None),
    ],
)
def test_passing_needs_the_score_and_every_critical_criterion(
    said: Mapping[str, float | None], pass_at: float, passed: bool | None
) -> None:
    criteria = (criterion("a", 3, critical=True), criterion("b", 1), criterion("c", -1, critical=True))
    assert scored(attempt(), said=said, criteria=criteria, pass_at=pass_at).passed is passed


def test_costs_are_of_the_attempt_that_counts_and_spend_is_of_all() -> None:
    failed = attempt(1, "infra_failure", cost_usd=Decimal("0.5"))
    unknown = attempt(2, "infra_failure")
    row = scored(failed, unknown, attempt(3, usage=[USAGE], cost_usd=Decimal("9")), prices=[PRICE])
    # 1000 at 1 and 200 at 10 dollars a million, priced again; what the attempts spent stays as it was booked
    assert row.cost_usd == Decimal("0.003")
    assert row.spent_usd == Decimal("9.5")


@pytest.mark.parametrize(
    "prices", [[], [{**PRICE, "model": "other"}], [{**PRICE, "effective_from": "2026-06-02"}]], ids=["none", "other", "later"]
)
def test_an_unknown_price_is_unknown(prices: list[dict[str, Any]]) -> None:
    row = scored(attempt(usage=[USAGE]), prices=prices)
    assert row.cost_usd is None
    assert flat_row(row)["cost_usd"] is None


def test_a_model_without_a_price_beside_one_with_it() -> None:
    assert scored(attempt(usage=[USAGE, {**USAGE, "model": "other"}]), prices=[PRICE]).cost_usd is None


def test_no_usage_costs_what_was_booked() -> None:
    assert scored(attempt(cost_usd=Decimal(0)), prices=[PRICE]).cost_usd == 0
    assert scored(attempt(cost_usd=None), prices=[PRICE]).cost_usd is None


def test_a_timeouts_latency_is_its_limit_and_no_measurement() -> None:
    late = scored(attempt(outcome="agent_timeout", latency_s=31.5), limits=Limits(wall_s=30.0))
    assert (late.latency_s, late.censored) == (30.0, True)
    done = scored(attempt(latency_s=12.5), limits=Limits(wall_s=30.0))
    assert (done.latency_s, done.censored) == (12.5, False)
    assert scored(attempt(latency_s=None)).latency_s is None


def test_verdicts_of_another_bundle_or_rubric_do_not_count() -> None:
    run = run_lock()
    (key,) = run.cell_keys()
    score = score_lock(run, RUBRIC)
    said = {"lease": 1.0, "reasons": 1.0, "invented": 0.0}
    view = cell_view(key, attempt(bundle="b"))
    for other in (
        verdicts_of(score, run, key, "other", said),
        verdicts_of(score_lock(run, [c.model_copy(update={"text": "Reworded"}) for c in RUBRIC]), run, key, "b", said),
    ):
        (row,) = scored_table(experiment_row(run, score), [view], other)
        assert (row.score, row.n_not_judged) == (None, 3)
    (row,) = scored_table(experiment_row(run, score), [view], verdicts_of(score, run, key, "b", said))
    assert row.score == 1.0


def test_a_flat_row() -> None:
    usage = {
        "model": "m",
        "input_uncached": 1,
        "cache_read": 2,
        "cache_write_5m": 3,
        "cache_write_1h": 4,
        "output": 5,
        "calls": 6,
    }
    row = scored(
        attempt(1, "infra_failure"),
        attempt(2, usage=[usage, usage], latency_s=1.5),
        said={"lease": 1, "reasons": 1, "invented": 0},
    )
    flat = flat_row(row)
    assert (flat["input_tokens"], flat["output_tokens"], flat["model_calls"], flat["attempts"]) == (20, 10, 12, 2)
    assert (flat["cell"], flat["case"], flat["arm"], flat["trial"]) == (str(row.key), "w.c", "a", 0)
    assert (flat["score"], flat["passed"], flat["bundle"], flat["outcome"]) == (1.0, True, "b2", "ok")


def test_the_table_has_a_row_a_cell_in_its_order() -> None:
    run = run_lock(cases=[locked_case("c"), locked_case("d")], arms=[locked_arm("b"), locked_arm("a", config={"k": 1})], trials=2)
    rows = scored_table(experiment_row(run, score_lock(run)), [cell_view(key) for key in run.cell_keys()], {})
    assert [row.key for row in rows] == run.cell_keys()


def test_groups_have_scores_of_their_own() -> None:
    """2 of 2 points; 0 of 3 less one false claim, clipped; only deductions are no score."""
    rubric = (
        criterion("lease", 2, group="facts"),
        criterion("reasons", 3, group="law"),
        criterion("invented", -1, group="law"),
        criterion("rude", -1, group="style"),
        criterion("alone", 5),
    )
    said = {"lease": 1.0, "reasons": 0.0, "invented": 1.0, "rude": 0.0, "alone": 1.0}
    assert scored(attempt(), said=said, criteria=rubric).groups == {"facts": 1.0, "law": 0.0, "style": None}
    assert scored(attempt(), said=said, criteria=rubric, policy="raw").groups["law"] == pytest.approx(-1 / 3)
    assert scored(attempt(), said=said | {"lease": None}, criteria=rubric).groups["facts"] is None
    assert scored(attempt(outcome="agent_error"), criteria=rubric).groups == {"facts": 0.0, "law": 0.0, "style": None}


@pytest.mark.parametrize(
    "more, why",
    [
        ({"usage": []}, "its agent reported no usage"),
        ({"usage": [USAGE, {"model": "mystery-9", "output": 1}]}, "no price for mystery-9 on 2026-06-01"),
        ({"usage": [USAGE], "evidence": {"models": {"unmeasured": 2}}}, "calls that the model gateway could not measure: 2"),
        ({"usage": [{"model": "m", "output": 10**9}]}, "its agent reported more than the 1000 USD that are believed of it"),
    ],
)
def test_a_cost_that_is_not_known_says_why(more: dict[str, Any], why: str) -> None:
    row = scored(attempt(usage_source="self-reported", **more), prices=[PRICE])
    assert (row.cost_usd, row.cost_unknown, source_in_words(row)) == (None, why, why)


def test_a_cost_that_is_known_says_who_told() -> None:
    row = scored(attempt(usage_source="self-reported", usage=[USAGE]), prices=[PRICE])
    assert (row.cost_unknown, source_in_words(row)) == (None, "self-reported")
    much = [{"model": "m", "output": 10**9}]
    believed = attempt(usage_source="self-reported", usage=much, cost_usd=Decimal(9))
    for one in (believed, attempt(usage_source="measured", usage=much)):
        assert scored(one, prices=[PRICE]).cost_usd == 10_000
    nothing = scored(attempt(usage_source="self-reported", cost_usd=Decimal(0)))
    assert source_in_words(nothing) == "its agent reported no call, and could reach nobody"
    assert scored(attempt(1, "infra_failure"), state="failed").cost_unknown is None


def test_a_refusal_counts_its_score_only_with_every_verdict() -> None:
    whole = scored(attempt(outcome="refusal"), said={"lease": 1, "reasons": 0, "invented": 0})
    assert (whole.score, whole.lacks_verdicts_as_refusal) == (0.4, False)
    lacking = scored(attempt(outcome="refusal"), said={"lease": 1, "reasons": None, "invented": 0})
    assert (lacking.score, lacking.lower, lacking.upper, lacking.lacks_verdicts_as_refusal) == (0.0, 0.0, 0.0, True)
    answered = scored(attempt(), said={"lease": 1, "reasons": None, "invented": 0})
    assert (answered.score, answered.lacks_verdicts_as_refusal) == (None, False)
