"""The votes of a judge on one question as one verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from eval_pipeline.domain.verdict import VerdictRow
from eval_pipeline.scoring.judge_votes import decide


def judged_row(votes: Sequence[VerdictRow], unseen: Sequence[str], *, per_occurrence: bool) -> VerdictRow:
    """votes: at least one, of one judge, in order. What failed is no vote; without any the last failure stands."""
    given = [row for row in votes if row.status != "failed"]
    if not given:
        return votes[-1]
    verdict = decide([row.verdict for row in given], per_occurrence)
    spoken = next((row for row in given if row.verdict == verdict), given[0])
    notes = [*_split(given), *([f"not shown to the judge: {'; '.join(unseen)}"] if unseen else [])]
    said = f"{spoken.reason or ''}{''.join(f' ({note})' for note in notes)}"
    return replace(spoken, verdict=verdict, status="abstained" if verdict is None else "ok", reason=said)


def _split(given: Sequence[VerdictRow]) -> list[str]:
    if len({row.verdict for row in given}) < 2:
        return []
    said = ", ".join("abstained" if row.verdict is None else f"{row.verdict:g}" for row in given)
    return [f"the votes: {said}"]
