"""How far a judge may be trusted: what it said of criteria that people labelled, drawn at random, against what they said."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from eval_pipeline.analysis.human import settle
from eval_pipeline.analysis.questions import JudgedQuestion
from eval_pipeline.analysis.stats import (
    Alpha,
    Badge,
    aggregate_votes,
    agreement_ci,
    arm_differences,
    cohen_kappa,
    family_gaps,
    judge_badge,
    krippendorff_alpha,
    verbosity_spearman,
)

MAX_ABSTAINED = 0.05
RESAMPLES = 2000

Interval = tuple[float, float] | None


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A question that was drawn at random. arm: as it is called; family: whose model it is. judge, human: verdicts as they count.

    length: bytes of the work, None when nobody looked.
    """

    question: JudgedQuestion
    arm: str
    family: str
    length: int | None = None

    @property
    def judge(self) -> float | None:
        return None if self.question.judged is None else self.question.judged.verdict

    @property
    def human(self) -> float | None:
        return settle(self.question.labels, per_occurrence=self._counts).verdict

    @property
    def _counts(self) -> bool:
        return self.question.criterion.per_occurrence

    @property
    def case(self) -> str:
        return self.question.cell.case_name

    @property
    def known(self) -> bool:
        """Both have said something."""
        return self.truth is not None and self.said is not None

    @property
    def said(self) -> float | None:
        return _binary(self.judge)

    @property
    def truth(self) -> float | None:
        return _binary(self.human)


def _binary(verdict: float | None) -> float | None:
    """Whether it is there at all. A tie says neither."""
    return None if verdict is None or verdict == 0.5 else float(verdict > 0)


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """*_ci: 95 %, by resampling cases. None where undefined."""

    n: int
    kappa: float | None
    kappa_ci: Interval
    tpr: float | None
    tpr_ci: Interval
    tnr: float | None
    tnr_ci: Interval
    raw_agreement: float | None
    raw_agreement_ci: Interval


@dataclass(frozen=True, kw_only=True)
class ArmAgreement:
    """p_*: that the arm's rate is that of the other arms, by Fisher's exact test with Holm's correction; None with one arm only."""

    arm: str
    family: str
    n_cells: int
    n: int
    kappa: float | None
    tpr: float | None
    tnr: float | None
    p_tpr: float | None
    p_tnr: float | None


@dataclass(frozen=True, kw_only=True)
class Biases:
    """verbosity: rank correlation of the work's length with the judge's verdict; verbosity_gap: with how far it lies above people's.

    families: by arm family the mean of judge - people; the judge's own is `judge_family`. position: None, as the judge is shown one
    work at a time, so there is no order in which two stand.
    """

    judge_family: str
    families: dict[str, float]
    verbosity: float | None
    verbosity_gap: float | None
    position: float | None = None


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """n_drawn, n_labelled: questions drawn at random, and those that people decided; n_cells: cells of the latter.

    n_double: labelled by several people; n_disputed: of them evenly split. n_no_verdict: decided by people, not by the judge.
    raters: how far people agree among themselves. repeat_agreement: share of the pairs of a judge's votes that agree.
    abstaining: criteria of which the judge could not tell more than 5 %, with the share: their text needs work.
    """

    badge: str
    reasons: tuple[str, ...]
    n_drawn: int
    n_labelled: int
    n_cells: int
    n_double: int
    n_disputed: int
    n_no_verdict: int
    whole: Agreement
    arms: list[ArmAgreement]
    raters: Alpha
    repeat_agreement: float | None
    biases: Biases
    abstaining: dict[str, float]


def calibrate(drawn: Sequence[Drawn], asked: Sequence[JudgedQuestion], judge_family: str) -> Calibration:
    """drawn: at random. asked: all questions of the judge, also those that nobody labelled."""
    badge = badge_of(drawn)
    settled = [settle(one.question.labels, per_occurrence=one.question.criterion.per_occurrence) for one in drawn]
    return Calibration(
        badge=badge.badge,
        reasons=badge.reasons,
        n_drawn=len(drawn),
        n_labelled=sum(one.human is not None for one in drawn),
        n_cells=len({one.question.cell for one in drawn if one.human is not None}),
        n_double=sum(sum(label.verdict is not None for label in one.question.labels) > 1 for one in drawn),
        n_disputed=sum(one.disputed for one in settled),
        n_no_verdict=sum(one.truth is not None and one.said is None for one in drawn),
        whole=_agreement(drawn),
        arms=_arms(drawn),
        raters=_between_raters(drawn),
        repeat_agreement=_repeat_agreement(asked),
        biases=_biases(drawn, judge_family),
        abstaining=_abstaining(asked),
    )


def badge_of(drawn: Sequence[Drawn]) -> Badge:
    if not any(one.human is not None for one in drawn):
        return Badge(badge="judge unvalidated", reasons=("nobody has labelled a random sample of its verdicts",))
    cells: dict[str, set[object]] = {one.family: set() for one in drawn}
    for one in drawn:
        if one.known:
            cells[one.family].add(one.question.cell)
    return judge_badge(_pairs(drawn), cells={family: len(found) for family, found in cells.items()})


def _pairs(drawn: Sequence[Drawn]) -> dict[str, tuple[list[float | None], list[float | None]]]:
    pairs: dict[str, tuple[list[float | None], list[float | None]]] = {one.arm: ([], []) for one in drawn}
    for one in drawn:
        pairs[one.arm][0].append(one.said)
        pairs[one.arm][1].append(one.truth)
    return pairs


def _agreement(drawn: Sequence[Drawn]) -> Agreement:
    known = [one for one in drawn if one.known]
    said, truth = [one.said for one in known], [one.truth for one in known]
    found = cohen_kappa(said, truth)
    around = agreement_ci(said, truth, [one.case for one in known], resamples=RESAMPLES)
    return Agreement(
        n=found.n,
        kappa=found.kappa,
        kappa_ci=around.kappa,
        tpr=found.tpr,
        tpr_ci=around.tpr,
        tnr=found.tnr,
        tnr_ci=around.tnr,
        raw_agreement=found.raw_agreement,
        raw_agreement_ci=around.raw_agreement,
    )


def _arms(drawn: Sequence[Drawn]) -> list[ArmAgreement]:
    pairs, families = _pairs(drawn), {one.arm: one.family for one in drawn}
    p = {(one.arm, one.rate): one.p_holm for one in arm_differences(pairs)}
    found: list[ArmAgreement] = []
    for arm, (said, truth) in pairs.items():
        kappa = cohen_kappa(said, truth)
        found.append(
            ArmAgreement(
                arm=arm,
                family=families[arm],
                n_cells=len({one.question.cell for one in drawn if one.arm == arm and one.known}),
                n=kappa.n,
                kappa=kappa.kappa,
                tpr=kappa.tpr,
                tnr=kappa.tnr,
                p_tpr=p.get((arm, "TPR")),
                p_tnr=p.get((arm, "TNR")),
            )
        )
    return found


def _between_raters(drawn: Sequence[Drawn]) -> Alpha:
    """A question that several cells share is one unit."""
    units = list({one.question.digest: one for one in drawn}.values())
    said = [{label.rater: _binary(label.verdict) for label in one.question.labels} for one in units]
    raters = sorted({rater for labels in said for rater in labels})
    rows = [[labels.get(rater) for labels in said] for rater in raters]
    return krippendorff_alpha(rows, resamples=RESAMPLES, cases=[one.case for one in units])


def _repeat_agreement(asked: Sequence[JudgedQuestion]) -> float | None:
    """Of criteria that are met or not."""
    shares = [
        share
        for one in {one.digest: one for one in asked if not one.criterion.per_occurrence}.values()
        if (share := aggregate_votes([1 if vote.verdict else 0 for vote in one.votes if vote.verdict is not None]).agreement) is not None
    ]  # fmt: skip
    return fmean(shares) if shares else None


def _biases(drawn: Sequence[Drawn], judge_family: str) -> Biases:
    known = [one for one in drawn if one.known]
    gaps = family_gaps((judge_family, one.family, one.said, one.truth) for one in known)
    return Biases(
        judge_family=judge_family,
        families={str(family): gap for (_, family), gap in gaps.items()},
        verbosity=_spearman(known, lambda one: one.said or 0.0),
        verbosity_gap=_spearman(known, lambda one: (one.said or 0.0) - (one.truth or 0.0)),
    )


def _spearman(known: Sequence[Drawn], value: Callable[[Drawn], float]) -> float | None:
    """Over cells: criteria of one work are averaged. A verdict of an undesirable criterion counts against the work."""
    lengths: dict[object, int] = {}
    values: dict[object, list[float]] = defaultdict(list)
    for one in known:
        if one.length is not None:
            lengths[one.question.cell] = one.length
            values[one.question.cell].append(value(one) if one.question.criterion.points > 0 else -value(one))
    return verbosity_spearman([*lengths.values()], [fmean(values[cell]) for cell in lengths])


def _abstaining(asked: Sequence[JudgedQuestion]) -> dict[str, float]:
    found: dict[str, list[bool]] = defaultdict(list)
    for one in {one.digest: one for one in asked}.values():
        if one.judged is not None and one.judged.status != "failed":
            found[f"{one.cell.case_name}: {one.criterion.id}"].append(one.judged.status == "abstained")
    shares = {name: fmean(abstained) for name, abstained in found.items()}
    return {name: share for name, share in shares.items() if share > MAX_ABSTAINED}
