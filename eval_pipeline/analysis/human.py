"""What people say of a judge's criterion as one verdict. It wins over the judge's, and shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eval_pipeline.domain.verdict import VerdictRow
from eval_pipeline.scoring.judge_votes import decide
from eval_pipeline.store.reviews import Label

HUMAN_VERSION = "human"


@dataclass(frozen=True, kw_only=True)
class Settled:
    """verdict: of the majority, for counts the median; None when nobody could tell, or when they are split evenly (disputed)."""

    verdict: float | None
    disputed: bool


def settle(labels: Sequence[Label], *, per_occurrence: bool) -> Settled:
    """One label a rater."""
    verdict = decide([one.verdict for one in labels], per_occurrence)
    disputed = verdict == 0.5 and not per_occurrence
    return Settled(verdict=None if disputed else verdict, disputed=disputed)


def human_row(labels: Sequence[Label], judged: VerdictRow | None, criterion: str, *, per_occurrence: bool) -> VerdictRow | None:
    """The verdict that counts in place of `judged`. None: people have not decided it, and the judge's stays."""
    settled = settle(labels, per_occurrence=per_occurrence)
    if settled.verdict is None:
        return None
    notes = "; ".join(one.note for one in labels if one.note)
    said = "the judge said nothing" if judged is None or judged.verdict is None else f"the judge said {judged.verdict:g}"
    raters = ", ".join(one.rater for one in labels if one.verdict is not None)
    return VerdictRow(
        request_digest=labels[0].question_digest,
        judge_version=HUMAN_VERSION,
        vote=0,
        bundle="" if judged is None else judged.bundle,
        criterion=criterion,
        verdict=settled.verdict,
        status="ok",
        reason=f"by hand ({raters}){f': {notes}' if notes else ''}; {said}",
    )
