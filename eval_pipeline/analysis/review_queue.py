"""What people are asked to label: cells drawn at random, stratified by arm, or criteria whose verdict is in doubt."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from eval_pipeline.analysis.questions import JudgedQuestion
from eval_pipeline.analysis.tables import ScoredCell
from eval_pipeline.store.reviews import ReviewItem

DOUBLE_EVERY = 5
"""Of an arm's cells every fifth is labelled by two people."""
_SPREAD = 2.0 / 9.0 - 1e-9
"""Variance of verdicts over trials from which on they are in doubt: a third of them say otherwise."""


def random_queue(questions: Sequence[JudgedQuestion], seed: int, n_cells: int) -> list[ReviewItem]:
    """All questions of `n_cells` cells, spread evenly over the arms; people see the arms mixed.

    A cell's place follows from its key and the seed alone: a larger sample holds the smaller one.
    """
    cells: dict[str, list[JudgedQuestion]] = defaultdict(list)
    arms: dict[str, dict[str, None]] = defaultdict(dict)
    for one in questions:
        cells[str(one.cell)].append(one)
        arms[one.cell.arm][str(one.cell)] = None
    queues = [sorted(keys, key=lambda key: _place(seed, key)) for keys in arms.values()]
    raters = {key: 2 if place % DOUBLE_EVERY == 0 else 1 for queue in queues for place, key in enumerate(queue)}
    drawn = [key for row in zip_longest(*queues) for key in row if key is not None][:n_cells]
    drawn.sort(key=lambda key: _place(seed, key))
    return [_item(one, raters[key]) for key in drawn for one in cells[key]]


def doubtful_queue(questions: Sequence[JudgedQuestion], cells: Sequence[ScoredCell], seed: int) -> list[ReviewItem]:
    """Whose votes were split, whose judge could not tell, whose verdict stands against the cell's checks, or differs between trials."""
    checks = {str(cell.key): verdict for cell in cells if (verdict := _of_checks(cell)) is not None}
    unsteady = _unsteady(questions)
    doubtful = [
        one for one in questions if one.judged is not None and (_split(one) or one.digest in unsteady or _against(one, checks))
    ]
    return [_item(one, 1) for one in sorted(doubtful, key=lambda one: _place(seed, str(one.cell)))]


def _item(one: JudgedQuestion, raters: int) -> ReviewItem:
    return ReviewItem(question_digest=one.digest, cell_key=str(one.cell), criterion=one.criterion.id, raters=raters)


def _place(seed: int, key: str) -> bytes:
    return hashlib.sha256(f"{seed}\0{key}".encode()).digest()


def _split(one: JudgedQuestion) -> bool:
    given = {vote.verdict for vote in one.votes if vote.status != "failed"}
    return len(given) > 1 or one.judged is None or one.judged.verdict is None


def _of_checks(cell: ScoredCell) -> bool | None:
    """True: its checks found nothing wrong; False: all that is wrong. None without any, or when they differ among themselves."""
    found = {(row.verdict > 0) == (row.points > 0) for row in cell.criteria if not row.judge and row.verdict is not None}
    return found.pop() if len(found) == 1 else None


def _against(one: JudgedQuestion, checks: Mapping[str, bool]) -> bool:
    said, found = one.judged, checks.get(str(one.cell))
    if found is None or said is None or said.verdict is None or said.verdict == 0.5:
        return False
    return ((said.verdict > 0) == (one.criterion.points > 0)) != found


def _unsteady(questions: Sequence[JudgedQuestion]) -> set[str]:
    trials: dict[tuple[str, str, str], list[JudgedQuestion]] = defaultdict(list)
    for one in questions:
        if one.judged is not None and one.judged.verdict is not None:
            trials[one.cell.case_name, one.cell.arm, one.criterion.id].append(one)
    return {one.digest for group in trials.values() if _spread(group) >= _SPREAD for one in group}


def _spread(group: Sequence[JudgedQuestion]) -> float:
    shares = [
        min(one.judged.verdict / one.criterion.effective_cap, 1.0)
        for one in group
        if one.judged is not None and one.judged.verdict is not None
    ]
    mean = sum(shares) / len(shares)
    return sum((share - mean) ** 2 for share in shares) / len(shares)
