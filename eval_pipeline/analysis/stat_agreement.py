"""How well a judge agrees with humans, and humans with one another."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from eval_pipeline.analysis.stat_bootstrap import RESAMPLES, bootstrap_sums, percentiles
from eval_pipeline.analysis.stat_family import holm
from eval_pipeline.analysis.stat_intervals import EPS, Floats, cluster_index

Label = float | None
"""1 or 0; None: no verdict, or a tie"""

MIN_KAPPA = 0.6
MIN_RATE = 0.8
MIN_LABELS = 100


@dataclass(frozen=True, kw_only=True)
class Kappa:
    """tpr, tnr: share of the human's positives (negatives) the judge calls so. None where it is undefined; se also at 0."""

    n: int
    kappa: float | None
    se: float | None
    raw_agreement: float | None
    tpr: float | None
    tnr: float | None


def cohen_kappa(judge: Sequence[Label], human: Sequence[Label]) -> Kappa:
    """Cohen (1960), with the large-sample error of Fleiss, Cohen and Everitt (1969). Pairs with None are left out.

    Raises ValueError for labels other than 1, 0 and None.
    """
    table = _tables(judge, human).sum(axis=0)
    n = float(table.sum())
    kappa, tpr, tnr, raw = (_or_none(value) for value in _rates(table[None, :])[0])
    return Kappa(
        n=int(n),
        kappa=kappa,
        se=None if kappa is None else _kappa_se(table.reshape(2, 2) / n, n, kappa),
        raw_agreement=raw,
        tpr=tpr,
        tnr=tnr,
    )


def _tables(judge: Sequence[Label], human: Sequence[Label]) -> Floats:
    """A row a known pair, one 1 among its (judge, human) cells 00, 01, 10, 11."""
    if any(label not in (0, 1, None) for label in (*judge, *human)):
        raise ValueError("labels are 1, 0 or None; a tie is None")
    rows = np.zeros((len(judge), 4))
    for row, said, true in zip(rows, judge, human, strict=True):
        if said is not None and true is not None:
            row[int(2 * said + true)] = 1.0
    return rows


def _rates(tables: Floats) -> Floats:
    """(kappa, tpr, tnr, raw agreement) of each row of four counts, NaN where undefined."""
    n = tables.sum(axis=1)
    tn, fn, fp, tp = tables.T
    with np.errstate(invalid="ignore", divide="ignore"):
        agreed = (tn + tp) / n
        chance = ((tn + fn) * (tn + fp) + (fp + tp) * (fn + tp)) / n**2
        kappa = np.where(1.0 - chance > EPS, (agreed - chance) / (1.0 - chance), np.nan)
        return np.stack([kappa, tp / (tp + fn), tn / (tn + fp), agreed], axis=1)


def _kappa_se(p: Floats, n: float, kappa: float) -> float | None:
    judge, human = p.sum(axis=1), p.sum(axis=0)
    chance, rest = float(judge @ human), 1.0 - kappa
    diagonal = float(np.sum(np.diag(p) * (1.0 - (judge + human) * rest) ** 2))
    off = p * (human[:, None] + judge[None, :]) ** 2
    spread = diagonal + rest**2 * float(off.sum() - np.trace(off)) - (kappa - chance * rest) ** 2
    variance = spread / ((1.0 - chance) ** 2 * n)
    return math.sqrt(variance) if variance > EPS else None


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


@dataclass(frozen=True, kw_only=True)
class AgreementIntervals:
    """(lower, upper) by percentiles; None with fewer than two cases, or where it is undefined in every resample."""

    kappa: tuple[float, float] | None
    tpr: tuple[float, float] | None
    tnr: tuple[float, float] | None
    raw_agreement: tuple[float, float] | None


def agreement_ci(
    judge: Sequence[Label],
    human: Sequence[Label],
    cases: Sequence[Hashable],
    alpha: float = 0.05,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> AgreementIntervals:
    """Bootstrap intervals of kappa, TPR, TNR and agreement over cases (Efron 1979); cases: the label of what is drawn whole, a pair each."""
    index, groups = cluster_index(cases)
    if groups < 2:
        return AgreementIntervals(kappa=None, tpr=None, tnr=None, raw_agreement=None)
    tables = np.zeros((groups, 4))
    np.add.at(tables, index, _tables(judge, human))
    kappa, tpr, tnr, raw = (percentiles(column, alpha) for column in _rates(bootstrap_sums(tables, resamples, seed)).T)
    return AgreementIntervals(kappa=kappa, tpr=tpr, tnr=tnr, raw_agreement=raw)


def fleiss_kappa(table: Sequence[Sequence[int]]) -> float | None:
    """Fleiss (1971), "Measuring nominal scale agreement among many raters". A row is a subject, with how many raters chose each
    category; all rows have the same number. None without variance, subjects or a second rater."""
    counts = np.array(table, dtype=np.float64)
    if not counts.size:
        return None
    raters = counts.sum(axis=1)
    if (raters != raters[0]).any():
        raise ValueError("every subject needs the same number of raters: use krippendorff_alpha for missing ones")
    m = float(raters[0])
    chance = float(np.sum((counts.sum(axis=0) / counts.sum()) ** 2))
    if m < 2 or 1.0 - chance <= EPS:
        return None
    agreed = float(np.mean((np.sum(counts**2, axis=1) - m) / (m * (m - 1.0))))
    return (agreed - chance) / (1.0 - chance)


@dataclass(frozen=True, kw_only=True)
class Alpha:
    """None without variance or a pair of ratings. *_ci: bootstrap over units or their cases, where it was asked for."""

    nominal: float | None
    interval: float | None
    nominal_ci: tuple[float, float] | None = None
    interval_ci: tuple[float, float] | None = None


def krippendorff_alpha(
    ratings: Sequence[Sequence[float | None]],
    resamples: int = 0,
    alpha: float = 0.05,
    seed: int = 0,
    cases: Sequence[Hashable] | None = None,
) -> Alpha:
    """Krippendorff (2011), "Computing Krippendorff's alpha-reliability". A row is a rater, a column a unit, None a missing rating.

    resamples: of the units, for intervals; 0 for none. cases: the label of what is drawn whole, a unit each; None: units are.
    Deviation: the interval is a percentile bootstrap, not Krippendorff's own.
    """
    rows = np.array([[math.nan if value is None else value for value in row] for row in ratings], dtype=np.float64)
    values = np.unique(rows[~np.isnan(rows)]) if rows.size else np.array([])
    if not len(values):
        return Alpha(nominal=None, interval=None)
    counts = np.array([[np.sum(unit == value) for value in values] for unit in rows.T], dtype=np.float64)
    paired = counts.sum(axis=1) >= 2
    counts = counts[paired]
    gaps = ((values[:, None] != values[None, :]).astype(np.float64), (values[:, None] - values[None, :]) ** 2)
    if not len(counts):
        return Alpha(nominal=None, interval=None)
    parts = [_alpha_sums(counts, gap) for gap in gaps]
    nominal, interval = (
        _or_none(float(_alpha(part.sum(axis=0)[None, :], gap)[0])) for part, gap in zip(parts, gaps, strict=True)
    )
    if cases is not None:
        parts = [_by_case(part, [case for case, kept in zip(cases, paired, strict=True) if kept]) for part in parts]
    if not resamples or len(parts[0]) < 2:
        return Alpha(nominal=nominal, interval=interval)
    drawn = [_alpha(bootstrap_sums(part, resamples, seed), gap) for part, gap in zip(parts, gaps, strict=True)]
    nominal_ci, interval_ci = (percentiles(found, alpha) for found in drawn)
    return Alpha(nominal=nominal, interval=interval, nominal_ci=nominal_ci, interval_ci=interval_ci)


def _by_case(rows: Floats, cases: Sequence[Hashable]) -> Floats:
    index, groups = cluster_index(cases)
    sums = np.zeros((groups, rows.shape[1]))
    np.add.at(sums, index, rows)
    return sums


def _alpha_sums(counts: Floats, gap: Floats) -> Floats:
    """Per unit: its disagreement, then how often each value was given."""
    observed = np.einsum("uc,cd,ud->u", counts, gap, counts) / (counts.sum(axis=1) - 1.0)
    return np.concatenate([observed[:, None], counts], axis=1)


def _alpha(sums: Floats, gap: Floats) -> Floats:
    observed, counts = sums[:, 0], sums[:, 1:]
    expected = np.einsum("uc,cd,ud->u", counts, gap, counts) / (counts.sum(axis=1) - 1.0)
    return np.where(expected > EPS, 1.0 - observed / np.maximum(expected, EPS), np.nan)


@dataclass(frozen=True, kw_only=True)
class Badge:
    """reasons: why the judge is unvalidated; empty means validated."""

    badge: Literal["validated", "judge unvalidated"]
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ArmDifference:
    """A rate (TPR or TNR) of one arm against that of all others. p: Fisher's (1935) exact test; p_holm: over all arms and both rates."""

    arm: str
    rate: str
    p: float
    p_holm: float
    significant: bool


def judge_badge(
    by_arm: Mapping[str, tuple[Sequence[Label], Sequence[Label]]], alpha: float = 0.05, cells: Mapping[str, int] | None = None
) -> Badge:
    """Whether a judge may be trusted: kappa >= .6, TPR and TNR >= .8 over all, 100 labelled cells an arm family, and no arm's
    TPR or TNR apart from the others'. by_arm: arm -> the judge's and the human's labels. cells: arm family -> its labelled
    cells; None: every arm is a family, every pair of labels a cell.
    """
    whole = cohen_kappa([v for said, _ in by_arm.values() for v in said], [v for _, true in by_arm.values() for v in true])
    bars = {"kappa": (whole.kappa, MIN_KAPPA), "TPR": (whole.tpr, MIN_RATE), "TNR": (whole.tnr, MIN_RATE)}
    reasons = [
        f"{name} is {'undefined' if value is None else f'{value:.2f}'}, {bar} is needed"
        for name, (value, bar) in bars.items()
        if value is None or value < bar
    ]
    counts = cells if cells is not None else {arm: int(_tables(*pair).sum()) for arm, pair in by_arm.items()}
    few = [f"{family}: {n} labelled cells, {MIN_LABELS} are needed" for family, n in counts.items() if n < MIN_LABELS]
    differing = [
        f"{one.arm}: {one.rate} differs from the other arms'" for one in arm_differences(by_arm, alpha) if one.significant
    ]
    found = (*reasons, *few, *differing)
    return Badge(badge="judge unvalidated" if found else "validated", reasons=found)


def arm_differences(by_arm: Mapping[str, tuple[Sequence[Label], Sequence[Label]]], alpha: float = 0.05) -> list[ArmDifference]:
    """Arms against the rest. Nothing with fewer than two arms."""
    if len(by_arm) < 2:
        return []
    from scipy.stats import fisher_exact  # type: ignore[import-untyped]  # slow to load, needed by calibration only

    tables = {arm: _tables(*pair).sum(axis=0) for arm, pair in by_arm.items()}
    total = sum(tables.values(), np.zeros(4))
    tests: list[tuple[str, str, float]] = []
    for arm, table in tables.items():
        for name, (right, wrong) in {"TPR": (3, 1), "TNR": (0, 2)}.items():
            rest = total - table
            result = fisher_exact([[table[right], table[wrong]], [rest[right], rest[wrong]]])
            tests.append((arm, name, float(result.pvalue)))  # pyright: ignore[reportAttributeAccessIssue]
    adjusted = holm([p for *_, p in tests], alpha)
    return [
        ArmDifference(arm=arm, rate=name, p=p, p_holm=p_holm or 0.0, significant=bool(reject))
        for (arm, name, p), p_holm, reject in zip(tests, adjusted.p_adj, adjusted.reject, strict=True)
    ]
