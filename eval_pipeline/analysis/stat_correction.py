"""What human labels make of a judge's scores: corrected rates and means. Shown beside the raw ones."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from eval_pipeline.analysis.stat_distributions import normal_quantile, t_quantile
from eval_pipeline.analysis.stat_intervals import EPS, Floats, cluster_sums

MIN_YOUDEN = 0.3
SMALL_SAMPLE = 100


@dataclass(frozen=True, kw_only=True)
class RoganGladen:
    """raw: unclipped. The interval's ends are clipped to what a rate can be only on their own side: an upper end below 0 says
    that the labels contradict the rate. flags: no_labels, judge_uninformative, judge_too_weak, clipped."""

    raw: float | None = None
    estimate: float | None = None
    se: float | None = None
    ci_lower: float | None = None
    ci_upper: float | None = None
    youden: float | None = None
    flags: tuple[str, ...] = ()


def rogan_gladen(judge_rate: float, n: int, tp: int, n_pos: int, tn: int, n_neg: int, alpha: float = 0.05) -> RoganGladen:
    """The true pass rate behind a judge's (Rogan and Gladen 1978, "Estimating prevalence from the results of a screening test").

    judge_rate of n cells; tp of n_pos human passes and tn of n_neg human fails that the judge got right. The error is by the delta
    method with plug-in rates. Deviation: a judge with sensitivity + specificity - 1 below 0.3 is refused.
    """
    if not (0.0 <= judge_rate <= 1.0 and 0 <= tp <= n_pos and 0 <= tn <= n_neg and n > 0):
        raise ValueError("a rate lies within 0..1 of at least one cell, and hits within 0..labels")
    if not (n_pos and n_neg):
        return RoganGladen(flags=("no_labels",))
    sensitivity, specificity = tp / n_pos, tn / n_neg
    youden = sensitivity + specificity - 1.0
    if youden < MIN_YOUDEN - EPS:
        return RoganGladen(youden=youden, flags=("judge_uninformative" if youden <= EPS else "judge_too_weak",))
    raw = (judge_rate + specificity - 1.0) / youden
    noise = (
        judge_rate * (1.0 - judge_rate) / n
        + raw**2 * sensitivity * (1.0 - sensitivity) / n_pos
        + (1.0 - raw) ** 2 * specificity * (1.0 - specificity) / n_neg
    )
    se, reach = math.sqrt(noise) / youden, normal_quantile(1.0 - alpha / 2.0)
    estimate = min(max(raw, 0.0), 1.0)
    return RoganGladen(
        raw=raw,
        estimate=estimate,
        se=se,
        ci_lower=max(raw - reach * se, 0.0),
        ci_upper=min(raw + reach * se, 1.0),
        youden=youden,
        flags=() if abs(raw - estimate) <= EPS else ("clipped",),
    )


def rogan_gladen_point(positive: int, n: int, sensitivity: float, specificity: float) -> float | None:
    """The estimate alone, for known error rates, clipped to 0..1 (Rogan and Gladen 1978). None when the test says nothing."""
    youden = sensitivity + specificity - 1.0
    if n <= 0 or youden <= EPS:
        return None
    return min(max((positive / n + specificity - 1.0) / youden, 0.0), 1.0)


@dataclass(frozen=True, kw_only=True)
class PpiMean:
    """lam: how far the judge is relied on, 0 not at all. se and CI are None where too few labels define them."""

    lam: float | None
    estimate: float | None
    se: float | None
    ci_lower: float | None
    ci_upper: float | None


def ppi_mean(
    human: Sequence[float],
    judge_labelled: Sequence[float],
    judge_unlabelled: Sequence[float],
    alpha: float = 0.05,
    reference: Literal["auto", "z"] = "auto",
    cases_labelled: Sequence[Hashable] | None = None,
    cases_unlabelled: Sequence[Hashable] | None = None,
) -> PpiMean:
    """A mean of human scores that uses the judge's on all cells: prediction-powered inference, power tuned (Angelopoulos, Duchi and
    Zrnic 2023, "PPI++"). Unbiased whatever the judge.

    reference: z, or auto: t on n - 1 when there are fewer than 100 labels. cases_*: the case of each cell; both variances are then
    of case means. Deviation: lam is clipped to 0..1, and t replaces z for few labels.
    """
    y, f, rest = (np.asarray(values, dtype=np.float64) for values in (human, judge_labelled, judge_unlabelled))
    if len(y) != len(f):
        raise ValueError(f"every human label needs the judge's of the same cell, found {len(y)} and {len(f)}")
    if not len(y):
        return PpiMean(lam=None, estimate=None, se=None, ci_lower=None, ci_upper=None)
    lam = _reliance(y, f, rest)
    unlabelled = lam * float(rest.mean()) if len(rest) else 0.0
    estimate = unlabelled + float(np.mean(y - lam * f))
    gaps, predictions = _case_means(y - lam * f, cases_labelled), _case_means(rest, cases_unlabelled)
    if len(gaps) < 2:
        return PpiMean(lam=lam, estimate=estimate, se=None, ci_lower=None, ci_upper=None)
    variance = float(gaps.var()) / len(gaps) + (lam**2 * float(predictions.var()) / len(predictions) if len(rest) else 0.0)
    se, q = math.sqrt(variance), 1.0 - alpha / 2.0
    small = reference == "auto" and len(gaps) < SMALL_SAMPLE
    reach = (t_quantile(q, len(gaps) - 1) if small else normal_quantile(q)) * se
    return PpiMean(lam=lam, estimate=estimate, se=se, ci_lower=estimate - reach, ci_upper=estimate + reach)


def _reliance(y: Floats, f: Floats, rest: Floats) -> float:
    """The lam of least variance; 0 without unlabelled cells or variance of the judge's scores."""
    every = np.concatenate([f, rest])
    spread = float(every.var(ddof=1)) if len(every) > 1 and len(rest) else 0.0
    if spread <= EPS:
        return 0.0
    shared = float(np.mean((y - y.mean()) * (f - f.mean())))
    return min(max(shared / ((1.0 + len(y) / len(rest)) * spread), 0.0), 1.0)


def _case_means(values: Floats, cases: Sequence[Hashable] | None) -> Floats:
    if cases is None or not len(values):
        return values
    sums, sizes = cluster_sums(values, cases)
    return sums / sizes
