"""Mean scores and pass rates of arms as the judge has them, and corrected by the cells that people labelled."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from eval_pipeline.analysis.stats import RoganGladen, ppi_mean, rogan_gladen
from eval_pipeline.analysis.tables import ScoredCell


@dataclass(frozen=True, kw_only=True)
class CorrectedArm:
    """Means over the valid cells with a score; raw: by the judge alone. n_judged: of them, those that a judge decides. n_labelled: of these,
    those that were drawn at random and that people decided wholly. corrected: by prediction-powered inference, with a 95 % interval;
    None without a label. lam: how far it relies on the judge, 0 not at all. pass_*: the pass rate likewise, corrected as Rogan
    and Gladen do, by what the judge got right over all arms; flags: why that is None, or `clipped`.
    """

    arm: str
    n_cells: int
    n_judged: int
    n_labelled: int
    raw: float | None
    corrected: float | None
    ci_low: float | None
    ci_high: float | None
    lam: float | None
    pass_raw: float | None
    pass_corrected: float | None
    pass_ci_low: float | None
    pass_ci_high: float | None
    flags: list[str]


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """A cell as the judge scores it, and as people do."""

    judged: ScoredCell
    decided: ScoredCell


def corrected_arms(
    arms: Sequence[str], judged: Sequence[ScoredCell], decided: Sequence[ScoredCell], drawn: Collection[str]
) -> list[CorrectedArm]:
    """judged, decided: the tables of the same cells in one order, by the judge alone and with people's verdicts in its place.

    drawn: keys of the cells that were drawn at random.
    """
    pairs = [_Pair(judged=a, decided=b) for a, b in zip(judged, decided, strict=True) if a.valid and a.score is not None]
    labelled = [one for one in pairs if str(one.judged.key) in drawn and _wholly(one.decided)]
    return [_arm(arm, [one for one in pairs if one.judged.key.arm == arm], labelled) for arm in arms]


def _wholly(cell: ScoredCell) -> bool:
    """People decided all that is the judge's, and nothing else is missing."""
    return cell.score is not None and all(row.by_hand for row in cell.criteria if row.judge)


def _arm(arm: str, pairs: Sequence[_Pair], labelled: Sequence[_Pair]) -> CorrectedArm:
    judged = [one for one in pairs if _is_judged(one.judged)]
    known = [one.judged for one in pairs if not _is_judged(one.judged)]
    mine = [one for one in labelled if one.judged.key.arm == arm]
    score = _score(judged, mine, known)
    passes = _rogan_gladen(judged, labelled)
    share = len(judged) / len(pairs) if pairs else 0.0
    return CorrectedArm(
        arm=arm,
        n_cells=len(pairs),
        n_judged=len(judged),
        n_labelled=len(mine),
        raw=fmean(one.judged.score or 0.0 for one in pairs) if pairs else None,
        corrected=score.estimate,
        ci_low=score.low,
        ci_high=score.high,
        lam=score.lam,
        pass_raw=_rate([one.judged for one in pairs]),
        pass_corrected=_blend(passes.estimate, share, known),
        pass_ci_low=_blend(passes.ci_lower, share, known),
        pass_ci_high=_blend(passes.ci_upper, share, known),
        flags=list(passes.flags),
    )


def _is_judged(cell: ScoredCell) -> bool:
    """A failed agent's cell counts as zero, whatever its judge would say."""
    return any(row.judge and row.status == "ok" for row in cell.criteria)


@dataclass(frozen=True, kw_only=True)
class _Score:
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    lam: float | None = None


def _score(judged: Sequence[_Pair], mine: Sequence[_Pair], known: Sequence[ScoredCell]) -> _Score:
    """What no judge decides is known: it enters as a stratum of its own, with the variance of its cells' means."""
    if not mine:
        return _Score()
    have = {one.judged.key for one in mine}
    rest = [one for one in judged if one.judged.key not in have]
    found = ppi_mean(
        [one.decided.score or 0.0 for one in mine],
        [one.judged.score or 0.0 for one in mine],
        [one.judged.score or 0.0 for one in rest],
        cases_labelled=[one.judged.key.case_name for one in mine],
        cases_unlabelled=[one.judged.key.case_name for one in rest],
    )
    total = len(judged) + len(known)
    share = len(judged) / total
    values = np.array([cell.score or 0.0 for cell in known])
    estimate = share * (found.estimate or 0.0) + (1.0 - share) * (float(values.mean()) if len(values) else 0.0)
    if not found.se or found.ci_upper is None or found.estimate is None:
        return _Score(estimate=estimate, lam=found.lam)
    beside = float(values.var(ddof=1)) / len(values) if len(values) > 1 else 0.0
    reach = (found.ci_upper - found.estimate) / found.se * ((share * found.se) ** 2 + (1.0 - share) ** 2 * beside) ** 0.5
    return _Score(estimate=estimate, low=estimate - reach, high=estimate + reach, lam=found.lam)


def _rogan_gladen(judged: Sequence[_Pair], labelled: Sequence[_Pair]) -> RoganGladen:
    rate = _rate([one.judged for one in judged])
    if rate is None:
        return RoganGladen(flags=("no_labels",))
    passed = [one for one in labelled if one.decided.passed]
    failed = [one for one in labelled if one.decided.passed is False]
    return rogan_gladen(
        rate,
        len(judged),
        tp=sum(one.judged.passed is True for one in passed),
        n_pos=len(passed),
        tn=sum(one.judged.passed is False for one in failed),
        n_neg=len(failed),
    )


def _rate(cells: Sequence[ScoredCell]) -> float | None:
    return fmean(float(bool(cell.passed)) for cell in cells) if cells else None


def _blend(rate: float | None, share: float, known: Sequence[ScoredCell]) -> float | None:
    return None if rate is None else share * rate + (1.0 - share) * (_rate(known) or 0.0)
