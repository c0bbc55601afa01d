"""What is asked of a bundle, and what a check that breaks says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.locks import criterion

from eval_pipeline.domain.rubric import Criterion, Rubric
from eval_pipeline.scoring.checks import Evidence
from eval_pipeline.scoring.verdicts import Documents, Verdict, answer_questions, document_text, questions


def rubric(*criteria: Criterion) -> Rubric:
    return Rubric(criteria=criteria)


def evidence(answer: str | None, folder: Path, files: dict[str, bytes] | None = None) -> Evidence:
    return Evidence(answer=answer, files=files or {}, documents=Documents(folder), result=None)


def ask(folder: Path, answer: str | None, *criteria: Criterion) -> list[Verdict]:
    return answer_questions(questions(rubric(*criteria), "w", "b"), evidence(answer, folder))


def test_only_what_a_program_decides_is_asked() -> None:
    asked = questions(rubric(criterion("a"), criterion("b", judge=True), criterion("c")), "w", "b")
    assert [question.criterion.id for question in asked] == ["a", "c"]


@pytest.mark.parametrize(
    "change",
    [
        {"text": "Other"},
        {"points": 2.0},
        {"check": {"contains": "no"}},
        {"per_occurrence": True},
        {"critical": True},
        {"group": "g"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_changed_criterion_is_a_new_question(change: dict[str, Any]) -> None:
    (before,), (after,) = questions(rubric(criterion("a")), "w", "b"), questions(rubric(criterion("a", **change)), "w", "b")
    assert after.request_digest != before.request_digest


def test_the_same_criterion_is_the_same_question_in_any_rubric() -> None:
    (alone,) = questions(rubric(criterion("a")), "w", "b")
    among = questions(Rubric(pass_at=0.5, criteria=(criterion("z"), criterion("a"))), "w", "b")
    assert among[1].request_digest == alone.request_digest
    assert {q.request_digest for q in questions(rubric(criterion("a")), "v", "b")} != {alone.request_digest}
    assert {q.request_digest for q in questions(rubric(criterion("a")), "w", "c")} != {alone.request_digest}


def test_answers(tmp_path: Path) -> None:
    counted = criterion("n", check={"contains": "yes"}, per_occurrence=True)
    yes, no, count = ask(tmp_path, "yes, yes and yes", criterion("yes"), criterion("no"), counted)
    assert (yes.verdict, yes.status, no.verdict, no.status, count.verdict) == (1.0, "ok", 0.0, "ok", 3.0)


def test_a_check_that_breaks_decides_nothing_and_stops_nobody(tmp_path: Path) -> None:
    """A citation of a document that the world lacks is a mistake in the rubric, not in the answer."""
    broken = criterion("cites", check={"cites": {"document": "missing.txt", "quote": "x"}})
    unknown = criterion("unknown", check={"no_such_check": 1})
    verdicts = ask(tmp_path, "yes", broken, unknown, criterion("yes"))
    assert [(v.verdict, v.status) for v in verdicts] == [(None, "failed"), (None, "failed"), (1.0, "ok")]
    assert "missing.txt" in verdicts[0].reason
    assert "no_such_check" in verdicts[1].reason


def test_no_answer_meets_nothing(tmp_path: Path) -> None:
    none = criterion("none", check={"contains_none": ["x"]})
    assert [v.verdict for v in ask(tmp_path, None, criterion("yes"), none)] == [0.0, 0.0]


def test_documents_are_named_with_and_without_their_folder(tmp_path: Path) -> None:
    (tmp_path / "documents/a").mkdir(parents=True)
    (tmp_path / "documents/a/lease.txt").write_bytes(b"Sixty days\xff")
    (tmp_path / "permissions").write_text("p")
    documents = Documents(tmp_path)
    assert documents["a/lease.txt"] == documents["documents/a/lease.txt"] == "Sixty days\ufffd"
    assert list(documents) == ["documents/a/lease.txt", "permissions"]
    assert (len(documents), "a/lease.txt" in documents, "b" in documents) == (2, True, False)


@pytest.mark.parametrize("name", ["../secret", "documents/../../secret", "link", "", "documents", "a\0b"])
def test_documents_outside_the_world_are_none(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_text("s")
    world = tmp_path / "world"
    (world / "documents").mkdir(parents=True)
    (world / "documents/link").symlink_to(tmp_path / "secret")
    with pytest.raises(KeyError):
        Documents(world)[name]


def test_the_text_of_a_document(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("é\r\n".encode())
    assert document_text(path) == "é\r\n"
