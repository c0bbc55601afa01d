"""What an experiment will be able to show, against statsmodels' planners and a search by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from statsmodels.stats import power

from eval_pipeline.analysis.power import Spread, assumed_spread, harmonic_mean, outlook
from eval_pipeline.runner.estimate import SandboxEstimate, estimate_time

planner: Any = power


@pytest.mark.parametrize(("n_cases", "trials"), [(10, 1), (40, 3), (200, 2)])
def test_the_smallest_difference_is_the_t_tests(n_cases: int, trials: int) -> None:
    shows = outlook(assumed_spread(0.1, 0.3), n_cases, trials, 0.05, 0.9, 0.0, None)
    sd = math.sqrt(0.1**2 + 2 * 0.3**2 / trials)
    assert shows.analysis.detectable == pytest.approx(
        sd * planner.TTestPower().solve_power(nobs=n_cases, alpha=0.05, power=0.9), rel=1e-4
    )
    (one,) = shows.analysis.needed
    assert one.cases == pytest.approx(
        planner.NormalIndPower(ddof=0).solve_power(0.05 / sd, alpha=0.05, power=0.9, ratio=0), abs=1.01
    )


def test_what_is_assumed_says_so() -> None:
    spread = assumed_spread(None, 0.3)
    assert (spread.omega2, spread.sigma2_a, spread.sigma2_b) == pytest.approx((0.04, 0.09, 0.09))
    assert "assumed" in spread.source and "0.2 between" in spread.source


def test_trials_pay_where_cases_are_dear_to_write() -> None:
    assert outlook(assumed_spread(0.1, 0.3), 20, 1, 0.05, 0.8, 0.0, None).best is not None
    cheap, dear = (outlook(assumed_spread(0.1, 0.3), 20, 1, 0.05, 0.8, usd, 0.5).best for usd in (0.0, 10.0))
    by_hand = min(range(1, 51), key=lambda r: (0.01 + 0.18 / r) * (10.0 + 0.5 * r))
    assert cheap is not None and dear is not None
    assert (cheap.r_best, dear.r_best) == (1, by_hand)
    assert outlook(assumed_spread(0.1, 0.3), 20, 1, 0.05, 0.8, 10.0, None).best is None  # what a trial costs is unknown


def test_a_pilot_of_one_trial_tells_no_trials_apart() -> None:
    pilot = Spread.of_pilot({"c": [0.0], "d": [1.0]}, {"c": [1.0], "d": [1.0]}, "x")
    assert pilot is not None and (pilot.apart, pilot.omega2) == (False, 0.5)
    shows = outlook(pilot, 20, 1, 0.05, 0.8, 0.0, None)
    assert (shows.best, shows.analysis.needed[0].trials) == (None, None)
    assert Spread.of_pilot({"c": [0.0]}, {"c": [1.0]}, "x") is None


def test_nothing_that_varies_needs_no_number() -> None:
    shows = outlook(assumed_spread(0.0, 0.0), 5, 1, 0.05, 0.8, 0.0, None)
    assert (shows.analysis.detectable, shows.analysis.needed[0].cases) == (0.0, None)


def test_the_harmonic_mean_is_what_a_variance_over_cases_sees() -> None:
    assert harmonic_mean([1, 2, 4]) == pytest.approx(3 / (1 + 0.5 + 0.25))


@pytest.mark.parametrize(("n", "places", "rounds"), [(10, 4, 3), (10, 100, 1), (8, 4, 2), (0, 4, 0)])
def test_time_is_in_rounds_of_what_runs_at_a_time(n: int, places: int, rounds: int) -> None:
    boxes = SandboxEstimate(seconds=7.0 * n, seconds_from="", at_most=False, cost_usd=None, rate=None, source=None)
    assert estimate_time(boxes, n, places).seconds == pytest.approx(7.0 * rounds)
