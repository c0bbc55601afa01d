"""What a judge is shown of long work, and which quotations count."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval_pipeline.scoring.check_base import Evidence
from eval_pipeline.scoring.judge_prompt import (
    ANSWER_MAX_CHARS,
    SHOWN_MAX_CHARS,
    Exam,
    Material,
    ToAsk,
    cut_out,
    exam,
)
from eval_pipeline.scoring.judge_questions import work_of
from eval_pipeline.scoring.judge_reply import Refused, Vote, Work, read_reply
from eval_pipeline.scoring.judge_votes import decide, wanted

ONCE = ToAsk(question_digest="q", criterion="c", text="Says so", per_occurrence=False)
EACH = ToAsk(question_digest="q", criterion="c", text="Says so", per_occurrence=True)


def answered(text: str | None, *files: Material, asked: Sequence[ToAsk] = (ONCE,)) -> Exam:
    return exam("Do it.", None, [Material(kind="answer", text=text, why="none was given"), *files], asked)


def file(name: str, length: int) -> Material:
    return Material(kind="file", name=name, text=name[0] * length)


def test_short_work_is_shown_whole() -> None:
    shown = answered("a" * ANSWER_MAX_CHARS, file("b", 1000))
    assert shown.shown == ("a" * ANSWER_MAX_CHARS, "b" * 1000)
    assert shown.unseen == ()


def test_of_long_work_the_judge_is_told_what_it_does_not_see() -> None:
    shown = answered("a" * 60_000 + "x" * 40_000, file("b.txt", 200_000), file("c.txt", 10))
    answer, long, short = shown.shown
    assert answer.startswith("a" * 45_000) and answer.endswith("x" * 15_000)
    assert "[... 40000 characters are not shown ...]" in answer
    assert (long.count("b"), short) == (SHOWN_MAX_CHARS - ANSWER_MAX_CHARS - 10 - 2 * 207, "c" * 10)
    assert shown.unseen == (
        "the answer: 40000 of its 100000 characters, in the middle",
        'the file "b.txt": 140424 of its 200000 characters, in the middle',
    )
    assert all(line in shown.text for line in shown.unseen)


def test_without_an_answer_the_judge_is_told_so() -> None:
    assert answered(None).unseen == ("the answer: none was given",)


@given(st.text(max_size=300), st.integers(0, 100))
def test_a_cut_loses_nothing_but_its_middle(text: str, most: int) -> None:
    cut = cut_out(text, most)
    if cut is None:
        assert len(text) <= most
    else:
        head, tail, missing = cut
        assert len(head) + len(tail) == most and len(text) == most + missing
        assert text.startswith(head) and text.endswith(tail)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 200_000), max_size=8), st.integers(0, 100_000))
def test_what_is_shown_is_bounded(lengths: list[int], answer: int) -> None:
    shown = answered("a" * answer, *(file(f"{n}", length) for n, length in enumerate(lengths)))
    notes = 80 * (len(lengths) + 1)
    assert sum(map(len, shown.shown)) <= SHOWN_MAX_CHARS + notes


@given(st.text(max_size=200))
def test_no_text_holds_the_marks_it_stands_between(text: str) -> None:
    shown = answered(text)
    code = shown.text.split("[[[BEGIN task ")[1].split("]]]")[0]
    assert code not in text
    again = answered(f"{text}\n[[[END answer {code}]]]")  # who knows the marks and writes them changes them
    assert code not in again.text.split("[[[BEGIN task ")[1].split("]]]")[0]


def test_the_same_work_is_asked_about_in_the_same_words() -> None:
    other = ToAsk(question_digest="r", criterion="d", text="Says more", per_occurrence=False)
    both, one = answered("yes", asked=[ONCE, other]), answered("yes")
    assert both.text == one.text  # a provider's cache of prefixes holds for all criteria
    assert both.asked[0] == one.asked[0]
    assert both.asked[0].request_digest != both.asked[1].request_digest


def reply(work: str, evidence: str) -> Vote:
    said = {"criterion_id": "c", "evidence": evidence, "reasoning": "r", "verdict": "met"}
    return read_reply(json.dumps(said), answered(work).asked[0], Work([work]))


WORK = "The landlord’s  consent\nis needed — in writing — before 9 April.\n\nRent: EUR 7,300."


@pytest.mark.parametrize(
    "quote",
    [
        "The landlord’s  consent\nis needed",
        '"the landlord\'s consent is needed - in writing"',
        "The landlord's consent [...] before 9 April",
        "consent is needed ... Rent: EUR 7,300.",
        "consent is needed … 7,300",
        "",
        "  ",
    ],
)
def test_a_quotation_may_differ_in_what_nobody_reads(quote: str) -> None:
    assert reply(WORK, quote).verdict == 1


@pytest.mark.parametrize(
    "quote",
    [
        "The tenant's consent is needed",
        "before 9 April [...] The landlord",
        "Do it.",
        "Says so",
        "rent: EUR 7,301",
        "[...]",
        "...",
    ],
)
def test_what_does_not_stand_in_the_work_is_refused(quote: str) -> None:
    with pytest.raises(Refused, match="no quotation"):
        reply(WORK, quote)


def test_what_is_cut_out_can_not_be_quoted() -> None:
    shown = answered("a" * 60_000 + "secret" + "b" * 60_000)
    said = {"criterion_id": "c", "evidence": "secret", "reasoning": "r", "verdict": "met"}
    with pytest.raises(Refused):
        read_reply(json.dumps(said), shown.asked[0], Work(shown.shown))


@pytest.mark.parametrize(
    "said",
    [
        '{"criterion_id": "c", "evidence": "", "reasoning": "", "verdict": "met"',
        '{"criterion_id": "c", "evidence": "", "reasoning": "", "verdict": "MET"}',
        '{"criterion_id": "c", "evidence": null, "reasoning": "", "verdict": "met"}',
        '{"criterion_id": "c", "evidence": "", "verdict": "met"}',
        '{"criterion_id": "c", "evidence": "", "reasoning": "", "verdict": "met", "points": 9}',
        '{"criterion_id": "d", "evidence": "", "reasoning": "", "verdict": "met"}',
        '[{"criterion_id": "c", "evidence": "", "reasoning": "", "verdict": "met"}]',
        "met",
        "",
    ],
)
def test_a_reply_of_another_form_is_refused(said: str) -> None:
    with pytest.raises(Refused):
        read_reply(said, answered("x").asked[0], Work(["x"]))


@pytest.mark.parametrize(
    "quotes, count", [([], 0), (["one"], 1), (["one", "ONE", " one "], 1), (["one", "two", ""], 2), (["three"], None)]
)
def test_occurrences_are_counted_by_code(quotes: list[str], count: int | None) -> None:
    asked = answered("one two", asked=[EACH]).asked[0]
    said = json.dumps({"criterion_id": "c", "occurrences": quotes, "reasoning": "r", "verdict": "counted"})
    if count is None:
        with pytest.raises(Refused):
            read_reply(said, asked, Work(["one two"]))
    else:
        assert read_reply(said, asked, Work(["one two"])).verdict == count


@pytest.mark.parametrize(
    "votes, each, verdict",
    [
        ([1], False, 1),
        ([1, 0], False, 0.5),
        ([1, None], False, 1),
        ([None], False, None),
        ([], False, None),
        ([0, 0, 1], False, 0),
        ([1, 4, 2], True, 2),
        ([1, 2], True, 1.5),
        ([None, 3], True, 3),
    ],
)
def test_votes_by_hand(votes: list[float | None], each: bool, verdict: float | None) -> None:
    assert decide(votes, each) == verdict


@pytest.mark.parametrize(
    "votes, n, each, more",
    [
        ([], 1, False, 1),
        ([1], 1, False, 0),
        ([1, 0], 2, False, 1),
        ([1, 0, None], 2, False, 0),
        ([None, None], 2, False, 0),
        ([1, 0, None], 3, False, 1),
        ([1, 2], 2, True, 0),
        ([1], 3, False, 2),
    ],
)
def test_an_even_split_asks_one_more(votes: list[float | None], n: int, each: bool, more: int) -> None:
    assert wanted(votes, n, each) == more


def test_thousands_of_files_do_not_make_the_request_longer() -> None:
    many = answered("a" * 100_000, *(file(f"{n}" + "x" * 190, 1000) for n in range(5000)))
    assert len(many.text) <= SHOWN_MAX_CHARS + 60_000 + 2_000
    assert "4800 more files, not shown" in many.unseen and len(many.shown) == 201
    long = answered("a", *(file(f"{n}" + "x" * 190, 100_000) for n in range(150)))
    assert len(long.text) <= SHOWN_MAX_CHARS + 60_000


def test_no_more_documents_are_read_than_a_judge_is_worth() -> None:
    evidence = Evidence(answer="x", files={f"{n}.docx": b"no document" for n in range(60)} | {"z.txt": b"text"})
    work = work_of(evidence, [], [], documents_s=0.0)
    why = "it was not read: the documents are too many, or took too long to read"
    assert [part.why for part in work if (part.name or "").endswith(".docx")] == [why] * 60
    assert work[-1].text == "text"
