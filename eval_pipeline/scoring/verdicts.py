"""From a stored bundle to verdicts. A check that crashes is a failed judgement (null), never "not met"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval_pipeline.domain.canonical import digest
from eval_pipeline.domain.lock import SCORING_VERSION
from eval_pipeline.domain.rubric import Criterion, Rubric
from eval_pipeline.scoring.check_base import Undecided
from eval_pipeline.scoring.checks import Evidence, compares_states, run_check
from eval_pipeline.scoring.documents import document_text

CHECK_VERSION = f"check-{SCORING_VERSION}"


@dataclass(frozen=True, kw_only=True)
class Question:
    """One criterion asked of one bundle. `request_digest` covers all that the verdict depends on."""

    request_digest: str
    criterion: Criterion


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """verdict: 0, 1 or a count; None with status `failed` when it could not be had."""

    request_digest: str
    criterion: str
    verdict: float | None
    status: str
    reason: str


def compared_state(evidence: Mapping[str, Any]) -> str | None:
    """Of an attempt's evidence: digest of the dump to compare its state with.

    None: the app has no dump, or it did not run to its end, and then nobody knows who wrote what lies in /out/state.
    """
    return evidence.get("state_before") if "dump_s" in evidence else None


def questions(rubric: Rubric, world_digest: str, bundle: str, state_before: str | None = None) -> list[Question]:
    """The criteria that a program decides, as asked of this bundle.

    state_before: digest of the prepared state's dump, which only a check that compares with it depends on; None: there is none.
    """
    return [
        Question(request_digest=digest([criterion.model_dump(mode="json"), *asked_of]), criterion=criterion)
        for criterion in rubric.criteria
        if criterion.check is not None
        for asked_of in [
            [world_digest, bundle, CHECK_VERSION, *([state_before] if state_before and compares_states(criterion.check) else [])]
        ]
    ]


def answer_questions(asked: list[Question], evidence: Evidence) -> list[Verdict]:
    return [_answer(question, evidence) for question in asked]


def _answer(question: Question, evidence: Evidence) -> Verdict:
    criterion = question.criterion
    assert criterion.check is not None
    try:
        result = run_check(criterion.check, evidence, per_occurrence=criterion.per_occurrence)
        return Verdict(
            request_digest=question.request_digest,
            criterion=criterion.id,
            verdict=result.verdict,
            status="ok",
            reason=result.reason,
        )
    except Undecided as why:
        return no_verdict(question, str(why))
    except Exception as error:  # noqa: BLE001 - the judge's boundary: a check's own bug must not become a verdict
        return no_verdict(question, f"the check failed: {type(error).__name__}: {error}")


def no_verdict(question: Question, reason: str) -> Verdict:
    return Verdict(
        request_digest=question.request_digest,
        criterion=question.criterion.id,
        verdict=None,
        status="failed",
        reason=reason,
    )


class Documents(Mapping[str, str]):
    """The world's documents as text, read when asked for. Keys are paths in the snapshot and the same below `documents/`."""

    def __init__(self, world_dir: Path) -> None:
        self._root = world_dir
        self._read: dict[str, str] = {}

    def _path(self, name: str) -> Path | None:
        for path in (self._root / name, self._root / "documents" / name):
            if path.is_file() and path.resolve().is_relative_to(self._root.resolve()):
                return path
        return None

    def __getitem__(self, name: str) -> str:
        path = self._path(name)
        if path is None:
            raise KeyError(name)
        if name not in self._read:
            self._read[name] = document_text(path)
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return (str(path.relative_to(self._root)) for path in sorted(self._root.rglob("*")) if path.is_file())

    def __len__(self) -> int:
        return sum(1 for _ in self)
