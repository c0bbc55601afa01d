"""The check on what an agent changed: met, not met, or left open when the states could not be compared as a whole."""

from __future__ import annotations

import re
from typing import Any

import pytest

from eval_pipeline.domain.rubric import Criterion, Rubric
from eval_pipeline.domain.world_diff import (
    NOTHING_SEEN,
    CellChange,
    Counts,
    DocumentChange,
    DocumentChanges,
    FileChange,
    FileChanges,
    FileFacts,
    Hunk,
    NoteChange,
    PartName,
    Permissions,
    Problem,
    Problems,
    ReaderChange,
    ReaderChanges,
    RowChange,
    RowChanges,
    TextDiff,
    WorldDiff,
)
from eval_pipeline.scoring.check_base import Undecided
from eval_pipeline.scoring.checks import Evidence, run_check, validate_check
from eval_pipeline.scoring.verdicts import answer_questions, questions

OLD, NEW = FileFacts(size=1, sha256="a" * 64), FileFacts(size=2, sha256="b" * 64)
LEASE = DocumentChange(
    path="documents/lease.docx",
    change="changed",
    before=OLD,
    after=NEW,
    text=TextDiff(
        hunks=(
            Hunk(
                before_line=1,
                after_line=1,
                lines=(" Head", "-The notice period is sixty days.", "+The notice period is ninety  Days."),
            ),
        )
    ),
    notes=(
        NoteChange(change="added", kind="insertion", author="Agent", text="ninety"),
        NoteChange(change="added", kind="comment", author="Agent", text="Ask the landlord"),
    ),
)
NOTE = DocumentChange(path="documents/new/note.md", change="added", before=None, after=NEW, unread=NOTHING_SEEN)
ROW = RowChange(
    table="reviews",
    key="t-1",
    change="changed",
    fields=("status", "text"),
    before={"id": "t-1", "status": "open", "text": "abc…", "n": 1},
    after={"id": "t-1", "status": "Done ", "text": "abd…", "n": 1},
    cut=("text",),
)
ADDED = RowChange(table="reviews", key="t-2", change="added", before=None, after={"id": "t-2", "value": 5})
READER = ReaderChange(path="documents/secret.md", gained=("bob", "eve"), lost=())


def made(*problems: PartName, n_more: int = 0) -> WorldDiff:
    return WorldDiff(
        documents=DocumentChanges(counts=Counts(added=1, changed=1), entries=(LEASE, NOTE), n_more=n_more),
        rows=RowChanges(counts=Counts(added=1, changed=1), entries=(ROW, ADDED)),
        permissions=Permissions(effect=ReaderChanges(counts=Counts(changed=1), entries=(READER,))),
        problems=Problems(entries=tuple(Problem(part=part, side="after", where="x", what="is bad") for part in problems)),
    )


def verdict(argument: Any, diff: WorldDiff | None) -> float | None:
    try:
        return run_check({"world_diff": argument}, Evidence(answer=None, world_diff=diff)).verdict
    except Undecided:
        return None


MET: list[Any] = [
    {"documents": {"changed": "documents/lease*"}},
    {"documents": {"changed": "lease.docx", "added": ["documents/new/*"], "only": True}},
    {"documents": {"changed": "lease.docx", "inserted": "ninety days"}},
    {"documents": {"inserted": ["ninety days", "ninety"], "deleted": "sixty"}},
    {"documents": {"changed": "*", "inserted": "ninety", "tracked": True}},
    {"documents": {"comment": "LANDLORD"}},
    {"blobs": "unchanged"},
    {"blobs": "unchanged", "documents": {"changed": "*"}},
    {"rows": {"table": "reviews", "changed": {"status": "done"}, "where": {"id": "t-1", "n": 1.0}}},
    {"rows": {"table": "reviews", "changed": ["status"], "count": 1}},
    {"rows": {"table": "reviews", "added": {"value": 5}}},
    {"rows": [{"table": "reviews", "changed": True, "only": True}, {"table": "reviews", "added": True}]},
    {"permissions": {"gained": "eve", "only": True}},
    {"permissions": {"path": "documents/secret*", "gained": ["bob", "eve"]}},
]
NOT_MET: list[Any] = [
    "unchanged",
    {"documents": "unchanged"},
    {"documents": {"removed": "*"}},
    {"documents": {"changed": "lease.docx", "only": True}},
    {"documents": {"changed": "lease.docx", "inserted": "the notice period"}},
    {"documents": {"inserted": "sixty"}},
    {"documents": {"inserted": "days", "tracked": True}},
    {"documents": {"deleted": "sixty", "tracked": True}},
    {"documents": {"comment": "tenant"}},
    {"documents": {"added": "*", "inserted": "ninety"}},
    {"blobs": {"changed": "*"}},
    {"blobs": "unchanged", "rows": "unchanged"},
    {"rows": {"table": "reviews", "changed": {"status": "open"}}},
    {"rows": {"table": "reviews", "changed": {"n": 1}}},
    {"rows": {"table": "other", "changed": True}},
    {"rows": {"table": "reviews", "changed": True, "where": {"id": "t-2"}}},
    {"rows": {"table": "reviews", "changed": True, "only": True}},
    {"rows": {"table": "reviews", "changed": True, "count": 2}},
    {"rows": {"table": "reviews", "added": {"value": True}}},
    {"permissions": "unchanged"},
    {"permissions": {"lost": "eve"}},
    {"permissions": {"path": "documents/other", "gained": "eve"}},
    {"permissions": {"path": "blobs/*", "gained": "eve", "only": True}},
]


@pytest.mark.parametrize("argument", MET, ids=str)
def test_met(argument: Any) -> None:
    assert verdict(argument, made()) == 1
    assert verdict(argument, None) is None, "without a diff nothing can be said"


@pytest.mark.parametrize("argument", NOT_MET, ids=str)
def test_not_met(argument: Any) -> None:
    assert verdict(argument, made()) == 0
    assert verdict(argument, None) is None


@pytest.mark.parametrize(
    "argument", ["unchanged", *({part: "unchanged"} for part in ("documents", "rows", "permissions", "blobs"))]
)
def test_of_nothing_nothing_changed(argument: Any) -> None:
    assert verdict(argument, WorldDiff()) == 1


SEEN: list[Any] = [
    ({"documents": "unchanged"}, 0),
    ({"documents": {"changed": "lease*", "only": True}}, 0),
    ({"documents": {"changed": "lease*"}}, 1),
    ({"documents": {"changed": "lease*", "inserted": "ninety"}}, 1),
    ({"documents": {"changed": "lease*", "added": "*", "only": True}}, None),
    ({"documents": {"removed": "*"}}, None),
    ({"documents": {"removed": "*", "inserted": "eighty"}}, None),
    ({"documents": {"inserted": "eighty"}}, None),
]


@pytest.mark.parametrize("argument, expected", SEEN, ids=str)
@pytest.mark.parametrize("diff", [made("documents"), made("state"), made(n_more=1)], ids=["part", "state", "cut"])
def test_what_is_seen_is_certain_and_what_is_not_may_be_there(argument: Any, expected: float | None, diff: WorldDiff) -> None:
    assert verdict(argument, diff) == expected


def test_a_problem_of_another_part_is_no_doubt() -> None:
    assert verdict({"rows": {"table": "other", "changed": True}}, made("documents")) == 0
    assert verdict({"rows": {"table": "other", "changed": True}}, made("rows")) is None
    assert verdict({"blobs": "unchanged", "rows": "unchanged"}, made("blobs")) == 0, "one clause is certainly not met"
    assert verdict({"blobs": "unchanged"}, made("blobs")) is None


def test_a_value_that_is_cut_is_no_evidence() -> None:
    assert verdict({"rows": {"table": "reviews", "changed": {"text": "abd and more"}}}, made()) is None
    assert verdict({"rows": {"table": "reviews", "changed": {"text": "abd", "status": "open"}}}, made()) == 0
    assert verdict({"rows": {"table": "reviews", "changed": True, "where": {"text": "abc and more"}, "count": 1}}, made()) is None


def test_a_document_that_is_not_compared_inside_is_no_evidence() -> None:
    hidden = LEASE.model_copy(update={"text": None, "notes": (), "unread": "is encrypted"})
    diff = WorldDiff(documents=DocumentChanges(counts=Counts(changed=1), entries=(hidden,)))
    assert verdict({"documents": {"changed": "*", "inserted": "ninety"}}, diff) is None
    assert verdict({"documents": {"changed": "*", "only": True}}, diff) == 1


def test_what_is_open_decides_only_where_it_matters() -> None:
    evidence = Evidence(answer="yes", world_diff=None)
    open_one, yes, no = {"world_diff": "unchanged"}, {"contains": "yes"}, {"contains": "no"}
    assert run_check({"any": [open_one, yes]}, evidence).verdict == 1
    assert run_check({"all": [open_one, no]}, evidence).verdict == 0
    for check in (
        {"all": [open_one, yes]},
        {"any": [open_one, no]},
        {"not": open_one},
        {"at_least": {"n": 2, "of": [open_one, yes, no]}},
    ):
        with pytest.raises(Undecided, match="no state to compare"):
            run_check(check, evidence)


def test_the_verdict_is_missing_and_depends_on_the_state_before() -> None:
    check = {"any": [{"world_diff": {"blobs": "unchanged"}}]}
    rubric = Rubric(
        criteria=tuple(
            Criterion(id=name, text="t", points=1, check=one) for name, one in [("w", check), ("c", {"contains": "x"})]
        )
    )
    without, one, two = (questions(rubric, "w", "b", before) for before in (None, "1" * 64, "2" * 64))
    assert len({asked[0].request_digest for asked in (without, one, two)}) == 3
    assert len({asked[1].request_digest for asked in (without, one, two)}) == 1
    (open_one, _) = answer_questions(one, Evidence(answer=None))
    assert (open_one.verdict, open_one.status) == (None, "failed")
    assert "no state to compare" in open_one.reason


WRONG = {
    "is `unchanged` or a mapping": "anything",
    "has no option 'document'": {"document": "unchanged"},
    "at least one": {},
    "takes `rows: unchanged`": {"rows": True},
    "needs `added`": {"documents": {"only": True}},
    "has no option 'inserted'": {"blobs": {"changed": "*", "inserted": "x"}},
    "exactly one of": {"rows": {"table": "t"}},
    "as `table`": {"rows": {"changed": True}},
    "as `changed`, found 'x'": {"rows": {"table": "t", "changed": "x"}},
    "as `where`": {"rows": {"table": "t", "added": True, "where": []}},
    "as `count`": {"rows": {"table": "t", "added": True, "count": 0}},
    "needs `gained` or `lost`": {"permissions": {"path": "x"}},
    "true or false as `only`": {"documents": {"changed": "*", "only": "yes"}},
}


@pytest.mark.parametrize("message, argument", WRONG.items(), ids=WRONG)
def test_mistakes_are_found_before_anything_runs(message: str, argument: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(message) if argument != "anything" else "takes a mapping") as raised:
        validate_check({"world_diff": argument})
    assert "write `world_diff: unchanged`" in str(raised.value)


def test_it_cannot_count() -> None:
    with pytest.raises(ValueError, match="can't count"):
        validate_check({"world_diff": "unchanged"}, per_occurrence=True)


def test_reasons_name_what_changed() -> None:
    found = run_check(
        {"world_diff": {"documents": {"changed": "lease*", "only": True}}}, Evidence(answer=None, world_diff=made())
    )
    assert found.reason == "also changed: 'documents/new/note.md (added)'"
    cells = WorldDiff(
        documents=DocumentChanges(
            counts=Counts(changed=1),
            entries=(LEASE.model_copy(update={"cells": (CellChange(cell="A!B2", before="1", after="2"),)}),),
        ),
        blobs=FileChanges(
            counts=Counts(removed=1), entries=(FileChange(path="blobs/x", change="removed", before=OLD, after=None),)
        ),
    )
    found = run_check({"world_diff": "unchanged"}, Evidence(answer=None, world_diff=cells))
    assert found.reason == "documents changed: 'documents/lease.docx (changed)'; blobs changed: 'blobs/x (removed)'"
