"""Which criteria a judge is asked about a stored bundle, and the work as it is shown to it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from eval_pipeline.domain.canonical import digest
from eval_pipeline.domain.lock import LockedCase, ScoredCase
from eval_pipeline.domain.rubric import Criterion
from eval_pipeline.scoring.check_base import Absent, Evidence, file_text
from eval_pipeline.scoring.documents import SUFFIXES, suffix_of
from eval_pipeline.scoring.judge_prompt import PROMPT_DIGEST, Material, ToAsk


def judge_questions(case: LockedCase, scored: ScoredCase, bundle: str, state_before: str | None) -> list[ToAsk]:
    """The criteria that a judge decides, as asked of this bundle. What a criterion is worth is no part of a question."""
    return [
        ToAsk(
            question_digest=digest(
                [PROMPT_DIGEST, case.prompt, scored.reference, one.id, one.text, one.per_occurrence, bundle, state_before]
            ),
            criterion=one.id,
            text=one.text,
            per_occurrence=one.per_occurrence,
        )
        for one in scored.rubric.criteria
        if one.judge
    ]


def label_digest(case: LockedCase, scored: ScoredCase, criterion: Criterion, bundle: str, state_before: str | None) -> str:
    """What people's labels stand under: all that they judge by. In what words a judge is asked is no part of it."""
    one = criterion
    return digest([case.prompt, scored.reference, one.id, one.text, one.per_occurrence, bundle, state_before])


DOCUMENTS_MAX = 50
DOCUMENTS_S = 60.0


def work_of(
    evidence: Evidence, too_large: Sequence[str], deliverables: Sequence[str], documents_s: float = DOCUMENTS_S
) -> list[Material]:
    """The answer, the files with those that were asked for first, and what was changed in the application.

    Of office documents and PDFs at most DOCUMENTS_MAX are read, and none once documents_s are used up; the judge is told.

    Raises subprocess.TimeoutExpired when this machine is too busy to read a file.
    """
    names = sorted(evidence.files, key=lambda name: (name not in deliverables, name))
    answer = Material(kind="answer", text=evidence.answer, why="none was given")
    missing = [Material(kind="file", name=name, text=None, why="it was asked for and is not there") for name in deliverables]
    large = [Material(kind="file", name=name, text=None, why="it is there, but too large to be read") for name in too_large]
    diff = evidence.world_diff
    changes = [] if diff is None else [Material(kind="changes", text=diff.model_dump_json(indent=1, exclude_defaults=True))]
    absent = [one for one in missing if one.name not in (*evidence.files, *too_large)]
    return [answer, *_files(evidence, names, documents_s), *absent, *large, *changes]


def _files(evidence: Evidence, names: Sequence[str], documents_s: float) -> list[Material]:
    until, n_documents, found = time.monotonic() + documents_s, 0, list[Material]()
    for name in names:
        if suffix_of(name) in SUFFIXES:
            n_documents += 1
            if n_documents > DOCUMENTS_MAX or time.monotonic() >= until:
                why = "it was not read: the documents are too many, or took too long to read"
                found.append(Material(kind="file", name=name, text=None, why=why))
                continue
        found.append(_file(evidence, name))
    return found


def _file(evidence: Evidence, name: str) -> Material:
    try:
        return Material(kind="file", name=name, text=file_text(evidence, name))
    except Absent as why:
        return Material(kind="file", name=name, text=None, why=str(why))
