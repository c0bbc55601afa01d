"""What would tell: how many cases or trials show a difference of a given size, and which one the present design can show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from eval_pipeline.analysis.stat_power import Trials
from eval_pipeline.analysis.stats import OptimalTrials, Variances, mde, optimal_trials, pilot_variances, required_cases

MAX_TRIALS = 50
ASSUMED_SD = 0.2


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How much scores vary. omega2: variance of true case differences between the arms; sigma2_a, sigma2_b: of a case's trials.

    apart: False when a case had one trial: then omega2 is the variance of the differences as they are, the trials' noise within it.
    source: where it is from, in words.
    """

    omega2: float
    sigma2_a: float
    sigma2_b: float
    apart: bool
    source: str

    @classmethod
    def of_pilot(cls, a: Trials, b: Trials, source: str) -> Spread | None:
        """None with fewer than two shared cases."""
        return cls.of_variances(pilot_variances(a, b), source)

    @classmethod
    def of_variances(cls, found: Variances, source: str) -> Spread | None:
        if found.omega2 is not None and found.sigma2_a is not None and found.sigma2_b is not None:
            return cls(omega2=found.omega2, sigma2_a=found.sigma2_a, sigma2_b=found.sigma2_b, apart=True, source=source)
        if found.var_diff is None:
            return None
        return cls(omega2=found.var_diff, sigma2_a=0.0, sigma2_b=0.0, apart=False, source=source)

    def variance(self, k_a: float, k_b: float) -> float:
        """Of one case's difference, with so many trials in each arm."""
        return self.omega2 + self.sigma2_a / k_a + self.sigma2_b / k_b


@dataclass(frozen=True, kw_only=True)
class Needed:
    """What shows a difference of `delta`, each alone. cases: with the trials of now; trials: of the cases of now.

    None: nothing varies; for trials also: not even 50 would, or what trials add can't be told apart.
    """

    delta: float
    cases: int | None
    trials: int | None


@dataclass(frozen=True, kw_only=True)
class PowerAnalysis:
    """Of n_cases with trials_a and trials_b each. detectable: the smallest difference that a two-sided test at `alpha` shows with
    `power`; None below two cases. needed: see there, for differences that were asked about."""

    spread: Spread
    n_cases: int
    trials_a: float
    trials_b: float
    alpha: float
    power: float
    detectable: float | None
    needed: list[Needed]


def power_analysis(
    spread: Spread, n_cases: int, k_a: float, k_b: float, deltas: Sequence[float], alpha: float, power: float
) -> PowerAnalysis:
    """Cases count as unlike each other: where many are of one world it takes more. Raises ValueError for a delta of 0."""
    parts = (spread.omega2, spread.sigma2_a, spread.sigma2_b)
    return PowerAnalysis(
        spread=spread,
        n_cases=n_cases,
        trials_a=k_a,
        trials_b=k_b,
        alpha=alpha,
        power=power,
        detectable=mde(*parts, k_a, k_b, n_cases, alpha, power).mde_t if n_cases > 1 else None,
        needed=[_needed(spread, delta, n_cases, k_a, k_b, alpha, power) for delta in deltas],
    )


def best_trials(spread: Spread, case_usd: float, trial_usd: float) -> OptimalTrials | None:
    """Trials a case for the least error at a given spend. case_usd: of writing a case; trial_usd: of one trial in both arms, above 0.

    None where what trials add can't be told apart from what cases add.
    """
    return optimal_trials(case_usd, trial_usd, spread.sigma2_a + spread.sigma2_b, spread.omega2) if spread.apart else None


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What an experiment that has not run will be able to show. case_usd: what writing a case costs; trial_usd: one trial in two arms,
    None: unknown. best: trials a case for the least error at a given spend, None where it can't be told."""

    analysis: PowerAnalysis
    case_usd: float
    trial_usd: float | None
    best: OptimalTrials | None


def outlook(
    spread: Spread,
    n_cases: int,
    trials: int,
    delta: float,
    power: float,
    case_usd: float,
    trial_usd: float | None,
    alpha: float = 0.05,
) -> Outlook:
    """delta: the difference that matters. Where writing a case costs nothing the price of a trial decides nothing."""
    price = trial_usd or (1.0 if case_usd == 0.0 else None)
    best = None if price is None else best_trials(spread, case_usd, price)
    analysis = power_analysis(spread, n_cases, trials, trials, [delta], alpha, power)
    return Outlook(analysis=analysis, case_usd=case_usd, trial_usd=trial_usd, best=best)


def assumed_spread(sd_between: float | None, sd_within: float | None) -> Spread:
    """Standard deviations, in points of a score from 0 to 1: of true differences between cases, and of the trials of a case."""
    between, within = (ASSUMED_SD if sd is None else sd for sd in (sd_between, sd_within))
    source = f"assumed, not measured: standard deviations of {between:g} between cases and {within:g} within"
    return Spread(omega2=between**2, sigma2_a=within**2, sigma2_b=within**2, apart=True, source=source)


def _needed(spread: Spread, delta: float, n_cases: int, k_a: float, k_b: float, alpha: float, power: float) -> Needed:
    if spread.variance(k_a, k_b) <= 0.0:
        return Needed(delta=delta, cases=None, trials=None)
    parts = (spread.omega2, spread.sigma2_a, spread.sigma2_b)
    cases = max(2, required_cases(*parts, k_a, k_b, delta, alpha, power).n)
    rising = range(1, MAX_TRIALS + 1) if spread.apart else ()
    trials = next((r for r in rising if required_cases(*parts, r, r, delta, alpha, power).n <= n_cases), None)
    return Needed(delta=delta, cases=cases, trials=trials)


def harmonic_mean(counts: list[int]) -> float:
    """Of how many trials the cases have, as the variance of a mean over cases sees them. Raises ZeroDivisionError without any."""
    return len(counts) / math.fsum(1.0 / n for n in counts)
