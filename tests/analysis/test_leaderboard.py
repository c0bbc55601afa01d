"""Leaderboards computed by hand: means over cases, bounds, what is counted beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from support.locks import criterion, locked_arm, locked_case, run_lock, score_lock
from support.tables import attempt, cell_view, experiment_row, verdicts_of

from eval_pipeline.analysis.board_text import detail_grid, standing
from eval_pipeline.analysis.leaderboard import Leaderboard, leaderboard
from eval_pipeline.analysis.tables import scored_table
from eval_pipeline.domain.case import Limits
from eval_pipeline.domain.experiment import Policy
from eval_pipeline.store.cell_views import AttemptView

RUBRIC = (criterion("a", 1), criterion("b", 3))
Made = tuple[list[AttemptView], Mapping[str, float | None], str | None]


def ok(a: float | None, b: float | None, **more: Any) -> Made:
    return [attempt(**more)], {"a": a, "b": b}, None


def failed(outcome: str, **more: Any) -> Made:
    return [attempt(outcome=outcome, **more)], {}, "failed" if outcome == "infra_failure" else None


def board(
    cells: Mapping[str, Made], policy: Policy = "clip_cell", criteria: Any = RUBRIC, worlds: int = 1, **arm_config: Any
) -> Leaderboard:
    """cells: `case/arm/trial` -> what became of it; the others stay open. The cases are spread over so many worlds."""
    names = [name.split("/") for name in cells]
    named = list(dict.fromkeys(n[0] for n in names))
    cases = [locked_case(case, f"w{n % worlds}", limits=Limits(wall_s=60.0)) for n, case in enumerate(named)]
    arms = [locked_arm(arm, config={"arm": arm, **arm_config}) for arm in dict.fromkeys(n[1] for n in names)]
    run = run_lock(cases=cases, arms=arms, trials=1 + max(int(n[2]) for n in names))
    score = score_lock(run, criteria, policy, pass_at=0.7)
    views, verdicts = list[Any](), dict[str, Any]()
    for number, key in enumerate(run.cell_keys()):
        attempts, said, state = cells.get(f"{key.case}/{key.arm}/{key.trial}", ([], {}, None))
        own = [replace(one, bundle=f"bundle-{number}") for one in attempts]
        views.append(cell_view(key, *own, state=state))
        verdicts |= verdicts_of(score, run, key, f"bundle-{number}", said)
    experiment = experiment_row(run, score, baseline=arms[0].name)
    return leaderboard(experiment, scored_table(experiment, views, verdicts))


def test_a_mean_is_over_cases_and_not_over_cells() -> None:
    made = board({"c/x/0": ok(1, 1), "c/x/1": ok(1, 1), "c/x/2": ok(1, 1), "d/x/0": ok(1, 0), "d/x/1": failed("infra_failure"), "d/x/2": failed("infra_failure")})  # fmt: skip
    (arm,) = made.arms
    assert arm.score == pytest.approx((1 + 0.25) / 2)
    assert (arm.bound_low, arm.bound_high) == pytest.approx(((1 + 0.25 / 3) / 2, (1 + 2.25 / 3) / 2))
    assert arm.pass_rate == pytest.approx(0.5)
    assert (arm.n_cases, arm.n_cells, arm.n_valid, arm.n_infra) == (2, 6, 4, 2)
    assert made.status == "provisional"
    assert made.n_open == 2


def test_agents_failures_count_zero_and_the_board_is_final() -> None:
    made = board(
        {"c/x/0": ok(1, 1), "c/y/0": failed("agent_error"), "d/x/0": failed("agent_timeout"), "d/y/0": failed("budget_exceeded")}
    )
    x, y = made.arms
    assert (x.score, x.bound_low, x.bound_high, x.n_agent_failed, x.pass_rate) == (0.5, 0.5, 0.5, 1, 0.5)
    assert (y.score, y.n_agent_failed, y.n_valid, y.pass_rate) == (0.0, 2, 2, 0.0)
    assert (made.status, made.reasons, made.n_open) == ("final", [], 0)


def test_what_is_not_judged_is_missing_and_counted() -> None:
    made = board({"c/x/0": ok(1, None), "d/x/0": ok(1, 1)})
    (arm,) = made.arms
    assert (arm.score, arm.n_not_judged, arm.n_valid, arm.n_infra) == (1.0, 1, 2, 0)
    assert (arm.bound_low, arm.bound_high) == (0.5, 1.0)
    assert made.status == "provisional"
    assert any("x: 1 of 2 cases have no scored cell" in reason for reason in made.reasons)
    assert arm.pass_rate == 1.0


def test_nothing_at_all_is_nothing_and_not_zero() -> None:
    (arm,) = board({"c/x/0": failed("infra_failure"), "d/x/0": ([], {}, None)}).arms
    assert (arm.score, arm.ci_low, arm.ci_high, arm.pass_rate, arm.cost_usd_mean, arm.latency_p50_s) == (None,) * 6
    assert (arm.bound_low, arm.bound_high, arm.n_valid, arm.n_infra) == (0.0, 1.0, 0, 1)
    assert "no_data" in arm.flags


def test_raw_scores_have_the_rubrics_range() -> None:
    criteria = (criterion("a", 2), criterion("b", -1, per_occurrence=True, cap=3))
    made = board({"c/x/0": ok(0, 3), "d/x/0": failed("infra_failure")}, policy="raw", criteria=criteria)
    (arm,) = made.arms
    assert (arm.score, arm.bound_low, arm.bound_high) == (-1.5, -1.5, -0.25)


def test_infrastructure_that_failed_one_arm_more_makes_a_board_provisional() -> None:
    cells = {f"c{n}/{arm}/0": ok(1, 1) for n in range(100) for arm in "xy"}
    assert board(cells).status == "final"
    for n in range(3):
        cells[f"c{n}/y/0"] = failed("infra_failure")
    reasons = board(cells).reasons
    assert any("infrastructure failures differ between arms: 0.0% to 3.0%" in reason for reason in reasons)


def test_costs_are_means_over_cases_of_what_is_known() -> None:
    cells = {
        "c/x/0": ok(1, 1, cost_usd=Decimal("0.1")),
        "c/x/1": ok(1, 1, cost_usd=Decimal("0.3")),
        "d/x/0": ok(1, 1, cost_usd=Decimal("1")),
        "d/x/1": ok(1, 1),
    }
    made = board(cells)
    (arm,) = made.arms
    assert arm.cost_usd_mean == pytest.approx((0.2 + 1) / 2)
    assert arm.n_unpriced == 1
    assert made.spent_usd == pytest.approx(1.4)
    assert "cells of unknown cost, in no mean and no sum: x 1 (its agent reported no usage)" in standing(made)
    assert next(row for row in detail_grid(made).rows if row[0] == "cells of unknown cost") == ["cells of unknown cost", "1"]
    assert not any("unknown cost" in line for line in standing(board({"c/x/0": ok(1, 1, cost_usd=Decimal(1))})))


def test_spend_includes_what_failed_and_what_was_discarded() -> None:
    lost, discarded = attempt(1, "infra_failure", cost_usd=Decimal(1)), attempt(2, cost_usd=Decimal(2), discarded="wrong world")
    made = board({"c/x/0": ([lost, discarded, attempt(3, cost_usd=Decimal(4))], {"a": 1, "b": 1}, None)})
    (arm,) = made.arms
    assert (made.spent_usd, arm.cost_usd_mean, arm.n_discarded) == (7.0, 4.0, 1)
    assert arm.discard_reasons == ["wrong world"]


def test_latencies_with_timeouts_above_them() -> None:
    fast = {f"c{n}/x/0": ok(1, 1, latency_s=float(n + 1)) for n in range(3)}
    (arm,) = board({**fast, "c3/x/0": failed("agent_timeout", latency_s=61.0)}).arms
    assert (arm.latency_p50_s, arm.latency_p95_s, arm.latency_above) == (2.0, None, [])
    late = {f"c{n}/x/0": failed("agent_timeout", latency_s=61.0) for n in range(3)}
    (arm,) = board({**late, "c3/x/0": ok(1, 1, latency_s=5.0)}).arms
    assert (arm.latency_p50_s, arm.latency_above) == (60.0, ["p50"])


def test_a_p95_needs_a_hundred_cells() -> None:
    cells = {f"c{n}/x/0": ok(1, 1, latency_s=float(n + 1)) for n in range(100)}
    (arm,) = board(cells).arms
    assert (arm.latency_p50_s, arm.latency_p95_s) == (50.0, 95.0)
    del cells["c99/x/0"]
    assert board(cells).arms[0].latency_p95_s is None


def test_arms_come_in_the_experiments_order_and_say_what_they_are() -> None:
    made = board({"c/wide/0": ok(1, 0), "c/base/0": ok(1, 1)}, model="stand-in")
    assert [(arm.arm, arm.stand_in) for arm in made.arms] == [("wide", True), ("base", True)]
    assert (made.baseline, made.policy) == ("wide", "clip_cell")
    assert not board({"c/x/0": ok(1, 0)}, model="real").arms[0].stand_in
    assert made.as_data()["arms"][0]["arm"] == "wide"


def test_the_interval_is_over_worlds_holds_the_mean_and_stays_in_range() -> None:
    cells = {f"c{n}/x/0": ok(n % 2, (n // 2) % 2) for n in range(12)}
    (alone,) = board(cells).arms
    assert (alone.score, alone.ci_low, alone.ci_high) == (0.5, None, None)  # one world says nothing about other worlds
    assert "one_cluster" in alone.flags
    (arm,) = board(cells, worlds=6).arms
    assert arm.score is not None and arm.ci_low is not None and arm.ci_high is not None
    assert 0 <= arm.ci_low < arm.score < arm.ci_high <= 1


def test_each_kind_of_failure_is_counted_by_itself() -> None:
    provider = failed("agent_error", error_class="provider")
    made = board(
        {
            "c/x/0": failed("agent_error"),
            "c/x/1": failed("agent_timeout"),
            "c/x/2": failed("budget_exceeded"),
            "c/x/3": failed("refusal"),
            "c/x/4": failed("infra_failure"),
            "c/x/5": provider,
            "c/x/6": ok(1, None),
            "c/x/7": ok(1, 1),
            "c/x/8": failed("infra_failure", error_class="provider"),
        }
    )
    (arm,) = made.arms
    kinds = {"agent": 1, "timeout": 1, "budget": 1, "refusal": 1, "infra": 1, "provider": 2, "judge": 1}
    assert (arm.failures, arm.n_valid, arm.n_infra) == (kinds, 7, 2)


def test_providers_that_failed_one_arm_more_make_a_board_provisional() -> None:
    cells = {f"c{n}/{arm}/0": ok(1, 1) for n in range(100) for arm in "xy"}
    for n in range(2):
        cells[f"c{n}/y/0"] = failed("agent_error", error_class="provider")
    assert board(cells).status == "final"
    cells["c2/y/0"] = failed("agent_error", error_class="provider")
    made = board(cells)
    assert (made.status, made.reasons) == (
        "provisional",
        ["provider errors differ between arms: 0.0% to 3.0%, 2 points are allowed"],
    )
    cells["c0/x/0"] = failed("agent_error", error_class="provider")
    assert board(cells).status == "final"
