"""Rubrics by hand: what each form means, and the line of what means nothing."""

from __future__ import annotations

import pytest

from eval_pipeline.domain.rubric import Rubric
from eval_pipeline.errors import SpecError
from eval_pipeline.specs.importers.biglaw_csv import Cell
from eval_pipeline.specs.importers.biglaw_rubric import ParsedRubric, parse_rubric

FIRST_LINE = 100


def parse(*lines: str) -> ParsedRubric:
    return parse_rubric(Cell("\n".join(lines), FIRST_LINE), "t.csv")


def worth(*lines: str) -> list[tuple[str, float, bool, str | None]]:
    return [(item.text, item.points, item.per_occurrence, item.group) for item in parse(*lines).criteria]


def affirmative(*lines: str) -> list[tuple[str, float, str | None]]:
    return [(text, points, group) for text, points, _, group in worth("Affirmative Points:", *lines)]


def negative(*lines: str) -> list[tuple[str, float, bool]]:
    found = worth("Affirmative Points:", "1. Is it? (1 point)", "Negative Points:", *lines)
    return [(text, points, per_occurrence) for text, points, per_occurrence, _ in found[1:]]


@pytest.mark.parametrize(
    ("line", "text", "points"),
    [
        ("1. Is it? (1 point)", "Is it?", 1),
        ("1. Is it? (2 points)", "Is it?", 2),
        ("1. Is it? (3 point)", "Is it?", 3),
        ("1. Is it? (0.5 points)", "Is it?", 0.5),
        ("1. Is it? (.25 Points)", "Is it?", 0.25),
        ("1. Is it?(1 pt)", "Is it?", 1),
        ("1. Is it? ( 10 points )", "Is it?", 10),
        ("1. Is it (e.g., 150 basis points) there? (1 point)", "Is it (e.g., 150 basis points) there?", 1),
        ("1. Is it up 2-3 points for a day? (1 point)", "Is it up 2-3 points for a day?", 1),
        ("1. Is it a claim: N/A? (1 point)", "Is it a claim: N/A?", 1),
        ("1 Is it? (1 point)", "Is it?", 1),
        ("1) Is it? (1 point)", "Is it?", 1),
        ("(1) Is it? (1 point)", "Is it?", 1),
        ("(a) Is it? (1 point)", "Is it?", 1),
        ("a.Is it? (1 point)", "Is it?", 1),
        ("A. Is it? (1 point)", "Is it?", 1),
        ("IV. Is it? (1 point)", "Is it?", 1),
        ("1.1 Is it? (1 point)", "Is it?", 1),
        ("\u00a0\u00a01.\u00a0Is it? (1 point)", "Is it?", 1),
    ],
)
def test_an_affirmative_criterion(line: str, text: str, points: float) -> None:
    assert affirmative(line) == [(text, points, None)]


@pytest.mark.parametrize(
    ("line", "text", "points", "per_occurrence"),
    [
        ("1. -1 point for every hallucination", "hallucination", -1, True),
        ("1. -0.5 point for every stray remark", "stray remark", -0.5, True),
        ("1. -0.5 points for each stray remark.", "stray remark.", -0.5, True),
        ("1. -2 points per wrong date", "wrong date", -2, True),
        ("1. \u22121 point for every error", "error", -1, True),
        ("1. – 1 point for every error", "error", -1, True),
        ("1. -3 points if the date is wrong", "the date is wrong", -3, False),
        ("1. -3 points for omitting the date", "omitting the date", -3, False),
        ("1. Does the response name a stranger? (-2 points)", "Does the response name a stranger?", -2, False),
    ],
)
def test_a_negative_criterion(line: str, text: str, points: float, per_occurrence: bool) -> None:
    assert negative(line) == [(text, points, per_occurrence)]


def test_headings_become_the_group() -> None:
    assert affirmative(
        "1. Structure:",
        "        a Is one? (1 point)",
        "2. Style: N/A",
        "3. Substance:",
        "        a. 2020 NBPP:",
        "                i. Is two? (1 point)",
        "                ii. Is three? (1 point)",
        "        b. Without a colon",
        "                i. Is four? (1 point)",
        "        c. Is five? (1 point)",
    ) == [
        ("Is one?", 1, "Structure"),
        ("Is two?", 1, "Substance / 2020 NBPP"),
        ("Is three?", 1, "Substance / 2020 NBPP"),
        ("Is four?", 1, "Substance / Without a colon"),
        ("Is five?", 1, "Substance"),
    ]


def test_what_is_not_applicable_is_skipped_and_said() -> None:
    parsed = parse(
        "Affirmative Points:",
        "1. Structure : n/a",
        "2. Style:",
        "   a. Tone: NA.",
        "3. Is it? (1 point)",
        "",
        "Negative Points: N/A",
    )
    assert parsed.skipped == ["Structure", "Style / Tone", "Negative Points"]
    assert [item.text for item in parsed.criteria] == ["Is it?"]


def test_the_section_may_lack_its_colon_and_come_in_any_order() -> None:
    assert worth("negative points", "1. -1 point for every error", "", "  AFFIRMATIVE POINTS  ", "1. Is it? (1 point)") == [
        ("error", -1, True, None),
        ("Is it?", 1, False, None),
    ]


def test_lines_of_one_criterion_are_joined() -> None:
    assert worth(
        "Affirmative Points:",
        "1. Gaps or",
        "   ambiguities:",
        "        a. Does the response state that",
        "        a Delaware company sold",
        "200,000 shares on",
        "                11 September",
        "        (1 point)",
        "        b.",
        "        Is it? (1 point)",
        "Negative Points:",
        "1. -1 point for every statement of accurate",
        "but extraneous information",
    ) == [
        ("Does the response state that a Delaware company sold 200,000 shares on 11 September", 1, False, "Gaps or ambiguities"),
        ("Is it?", 1, False, "Gaps or ambiguities"),
        ("statement of accurate but extraneous information", -1, True, None),
    ]


def test_letters_without_a_dot_go_on_where_they_are_due() -> None:
    assert affirmative("1 Structure:", "   a Is one? (1 point)", "   b Is two? (1 point)", "2 Is three? (1 point)") == [
        ("Is one?", 1, "Structure"),
        ("Is two?", 1, "Structure"),
        ("Is three?", 1, None),
    ]


def test_the_letter_i_is_not_the_roman_one() -> None:
    letters = [f"        {letter}. Is {letter}? (1 point)" for letter in "abcdefghij"]
    assert len(affirmative("1. Structure:", *letters)) == 10
    flat = [line.strip() for line in letters]
    assert [group for _, _, group in affirmative("1. Structure:", *flat)] == ["Structure"] * 10


def test_nesting_is_read_from_the_numbers_where_indentation_is_lost() -> None:
    assert affirmative(
        "1. Structure:",
        "a. Is one? (1 point)",
        "2. Substance:",
        "a. Chronology:",
        "i. Is two? (1 point)",
        "ii. Is three? (1 point)",
        "b. Gaps:",
        "i. Is four? (1 point)",
        "3. Is five? (1 point)",
    ) == [
        ("Is one?", 1, "Structure"),
        ("Is two?", 1, "Substance / Chronology"),
        ("Is three?", 1, "Substance / Chronology"),
        ("Is four?", 1, "Substance / Gaps"),
        ("Is five?", 1, None),
    ]


def test_tabs_and_uneven_indentation() -> None:
    assert affirmative(
        "1. One:",
        "\ta. Is a? (1 point)",
        "     b. Is b? (1 point)",
        "       \tc. Two:",
        "\t\ti. Is c? (1 point)",
        "2. Is d? (1 point)",
    ) == [("Is a?", 1, "One"), ("Is b?", 1, "One"), ("Is c?", 1, "One / Two"), ("Is d?", 1, None)]


def test_ids_are_unique_positions_with_words() -> None:
    parsed = parse(
        "Affirmative Points:",
        "1. Structure: N/A",
        "2. Substance:",
        "        a. Does the response state that the agencies’ order stands? (1 point)",
        "        b. Does the response state that the agencies’ order stands? (1 point)",
        "        c. 是否? (1 point)",
        "Negative Points:",
        "1. -1 point for every hallucination",
    )
    assert [item.id for item in parsed.criteria] == [
        "2-1-agencies-order-stands",
        "2-2-agencies-order-stands",
        "2-3",
        "neg-1-hallucination",
    ]
    Rubric(criteria=tuple(parsed.criteria))


A = "Affirmative Points:"
OK = "1. Is it? (1 point)"


@pytest.mark.parametrize(
    ("lines", "line", "message"),
    [
        (["1. Is it? (1 point)"], 0, "above the first section"),
        ([A, OK, "", "Bonus Points:", OK], 3, "section 'Bonus Points:' is unknown"),
        ([A, OK, A, OK], 2, "stands twice"),
        ([A], 0, "has no items"),
        ([A, OK, "Negative Points:", ""], 2, "has no items"),
        ([A + " N/A", OK], 1, "has items below it"),
        (["Negative Points:", "1. -1 point for every error"], 0, "no affirmative points"),
        ([A, "1. Style: N/A"], 0, "no affirmative points"),
        ([A, "", "1. Is it?", "2. Is it? (1 point)"], 2, "has no points"),
        ([A, "1. Is it? (1)"], 1, "has no points"),
        ([A, "1. Style - N/A"], 1, "has no points"),
        ([A, "1. Is it right to write: N/A? Or: N/A"], 1, "has no points"),
        ([A, OK, "2. Is it? (0 points)"], 2, "0 points"),
        ([A, OK, "2. Is it", "   there? (0.0 points)"], 3, "0 points"),
        ([A, "1. Is it? (one point)"], 1, "'one' is not a number"),
        ([A, "1. Is it? (1,5 points)"], 1, "'1,5' is not a number"),
        ([A, "1. Is it? (1e3 points)"], 1, "'1e3' is not a number"),
        ([A, "1. Is it? (nan points)"], 1, "'nan' is not a number"),
        ([A, "1. Is it? (99999 points)"], 1, "'99999' is not a number"),
        ([A, "1. Is it? (٣ points)"], 1, "is not a number"),
        ([A, "1. Is it? (1-2 points)"], 1, "'1-2' is not a number"),
        ([A, "1. Is it? (-1 point)"], 1, "among the affirmative"),
        ([A, "1. -1 point for every error"], 1, "after the points"),
        ([A, "1. Style (1 point): N/A"], 1, "points stand in"),
        ([A, "1. Structure:", "Style: N/A", OK], 1, "has no points"),
        ([A, "1. Is it? (1 point) Or not"], 1, "after the points: 'Or not'"),
        ([A, "1. Is it? (1 point).", OK], 1, "after the points: '.'"),
        ([A, "1. Is it? (1 point)", "or is it not?"], 2, "after the points: 'or is it not?'"),
        ([A, "1. Is it? (1 point)", "   a further thing"], 2, "after the points: 'a further thing'"),
        ([A, "1. Is it? (1 point) And? (2 points)"], 1, "stand twice"),
        ([A, "1. (1 point)"], 1, "no criterion"),
        ([A, OK, "2. Style:"], 2, "nothing below it"),
        ([A, "1. One:", "   a. Two:", "2. Is it? (1 point)"], 2, "nothing below it"),
        ([A, OK, "   a. Is it? (1 point)"], 2, "points of its own"),
        ([A, "1. One (2 points):", "   a. Is it? (1 point)"], 2, "points of its own"),
        ([A, "1. Style: N/A", "   a. Is it? (1 point)"], 2, "not applicable"),
        ([A, "1. One:", "Does it?", "   a. Is it? (1 point)"], 2, "between a heading and its items"),
        ([A, "1. Is it -1 point for every error? (1 point)"], 1, "stand twice"),
        ([A, "1.", "   a. Is it? (1 point)"], 1, "no text"),
        ([A, "Is it? (1 point)"], 1, "belongs to no item"),
        ([A, OK, "", "Total: 14"], 3, "belongs to no item"),
        ([A, "1. Is it?", "   a. Is it? (1 point)"], 1, "has no points but items below it"),
        ([A, OK, "b. Is it? (1 point)"], 2, "fits no list"),
        ([A, "1. One:", "   b. Two:", "   a Is it? (1 point)"], 3, "fits no list"),
        ([A, OK, "Negative Points:", "1. -1 point"], 3, "no points"),
        ([A, OK, "Negative Points:", "1. 1 point for every error"], 3, "begin with a minus"),
        ([A, OK, "Negative Points:", "1. Is it? (1 point)"], 3, "begin with a minus"),
        ([A, OK, "Negative Points:", "1. 1 point for every error", "   a. -2 points for every slip"], 4, "is no heading"),
        ([A, OK, "Negative Points:", "1. -one point for every error"], 3, "'one' is not a number"),
        ([A, OK, "Negative Points:", "1. -0 points for every error"], 3, "0 points"),
        ([A, OK, "Negative Points:", "1. -1 point hallucination"], 3, "doesn't say what"),
        ([A, OK, "Negative Points:", "1. -1 point for every"], 3, "doesn't say what"),
        ([A, OK, "Negative Points:", "1. -1 point for every error (max 3 points)"], 3, "stand twice"),
        ([A, OK, "Negative Points:", "1. -1 point for every error", "-0.5 points for every slip"], 3, "stand twice"),
        ([A, OK, "Negative Points:", "1. -1 point for every error", "   a. -2 points for every slip"], 4, "points of its own"),
    ],
)
def test_what_can_not_be_read_is_named_with_its_line(lines: list[str], line: int, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(*lines)
    assert caught.value.where == f"t.csv:{FIRST_LINE + line}"
    assert message in str(caught.value)
