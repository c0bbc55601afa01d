"""Random rubrics in the published style are read back as written; a mutated one loses nothing or is refused with a line."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eval_pipeline.domain.rubric import Rubric
from eval_pipeline.errors import SpecError
from eval_pipeline.specs.importers.biglaw_csv import Cell
from eval_pipeline.specs.importers.biglaw_rubric import ParsedRubric, parse_rubric

pytestmark = pytest.mark.slow

FIRST_LINE = 7
WORDS = [
    "court",
    "states",
    "“clear”",
    "the",
    "2020",
    "order’s",
    "(e.g., fees)",
    "NBPP",
    "a",
    "I",
    "is",
    "$5.50",
    "—",
    "N/A",
    "x:y",
]
# With eight, `i.` below `h.` can be either when the indentation is lost.
LETTERS = "abcdefg"
ROMANS = ["i", "ii", "iii", "iv", "v", "vi", "vii"]


@dataclass(frozen=True)
class Leaf:
    """points None: the heading is not applicable."""

    text: str
    points: float | None


@dataclass(frozen=True)
class Heading:
    text: str
    children: list[Leaf | Heading] = field(default_factory=list["Leaf | Heading"])


Node = Leaf | Heading
Expected = tuple[str, float, bool, str | None]


def label_published(depth: int, index: int, _: str) -> str:
    return [f"{index + 1}.", f"{LETTERS[index]}.", f"{ROMANS[index]}."][depth]


def label_brackets(depth: int, index: int, _: str) -> str:
    return [f"({LETTERS[index].upper()})", f"{index + 1})", f"({ROMANS[index]})"][depth]


def label_bare(depth: int, index: int, _: str) -> str:
    return [f"{index + 1}", LETTERS[index], ROMANS[index]][depth]


def label_decimal(_: int, index: int, parent: str) -> str:
    return f"{parent}{'.' if parent else ''}{index + 1}"


@dataclass(frozen=True)
class Style:
    label: Callable[[int, int, str], str]
    indent: str
    wrap: bool
    colon: str
    end: str


def question(words: list[str]) -> str:
    return f"Does {' '.join(words)}?"


questions = st.lists(st.sampled_from(WORDS), max_size=8).map(question)
titles = st.lists(st.sampled_from(["Style", "2020 NBPP", "Motion", "to Clarify", "(both)"]), min_size=1, max_size=3).map(" ".join)
points = st.sampled_from([1.0, 2.0, 3.0, 0.5, 1.25, 10.0])
leaves = st.builds(Leaf, questions, points) | st.builds(Leaf, titles, st.none())


def headings(children: st.SearchStrategy[Node]) -> st.SearchStrategy[Heading]:
    return st.builds(Heading, titles, st.lists(children, min_size=1, max_size=len(LETTERS)))


second: st.SearchStrategy[Node] = leaves | headings(leaves)
first: st.SearchStrategy[Node] = leaves | headings(second)
outlines = st.lists(first, min_size=1, max_size=6)
deductions = st.lists(st.tuples(questions, st.sampled_from([-1.0, -0.5, -2.0]), st.booleans()), max_size=3)
styles = st.builds(
    Style,
    label=st.sampled_from([label_published, label_brackets, label_bare, label_decimal]),
    indent=st.sampled_from(["        ", "\t", "  ", ""]),
    wrap=st.booleans(),
    colon=st.sampled_from([":", ""]),
    end=st.sampled_from(["\n", "\r\n"]),
)


def render(nodes: list[Node], style: Style, depth: int = 0, parent: str = "") -> Iterator[str]:
    for index, node in enumerate(nodes):
        label = style.label(depth, index, parent)
        start = f"{style.indent * depth}{label} "
        if isinstance(node, Heading):
            yield f"{start}{node.text}:"
            yield from render(node.children, style, depth + 1, label)
        elif node.points is None:
            yield f"{start}{node.text}: N/A"
        else:
            # A wrapped line begins with a word that no numbering has.
            text = node.text.replace(" court", f"\n{style.indent * depth}   court") if style.wrap else node.text
            yield from f"{start}{text} ({node.points:g} point{'' if node.points == 1 else 's'})".split("\n")


def expected(nodes: list[Node], above: tuple[str, ...] = ()) -> Iterator[Expected]:
    for node in nodes:
        if isinstance(node, Heading):
            yield from expected(node.children, (*above, node.text))
        elif node.points is not None:
            yield node.text, node.points, False, " / ".join(above) or None


def skipped(nodes: list[Node], above: tuple[str, ...] = ()) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, Heading):
            yield from skipped(node.children, (*above, node.text))
        elif node.points is None:
            yield " / ".join((*above, node.text))


def document(nodes: list[Node], negative: list[tuple[str, float, bool]], style: Style) -> str:
    lines = [f"Affirmative Points{style.colon}", "", *render(nodes, style)]
    if negative:
        lines += ["", f"Negative Points{style.colon}", ""]
    for index, (text, value, per_occurrence) in enumerate(negative):
        lines.append(f"{index + 1}. {value:g} point {'for every' if per_occurrence else 'if'} {text}")
    return style.end.join(lines)


def parse(text: str) -> ParsedRubric:
    return parse_rubric(Cell(text, FIRST_LINE), "t.csv")


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(outlines, deductions, styles)
def test_what_is_written_is_read(nodes: list[Node], negative: list[tuple[str, float, bool]], style: Style) -> None:
    wanted = list(expected(nodes))
    text = document(nodes, negative, style)
    if not wanted:
        with pytest.raises(SpecError, match="no affirmative points"):
            parse(text)
        return
    parsed = parse(text)
    found = [(item.text, item.points, item.per_occurrence, item.group) for item in parsed.criteria]
    assert found == wanted + [(what, value, often, None) for what, value, often in negative]
    assert parsed.skipped == list(skipped(nodes))
    Rubric(criteria=tuple(parsed.criteria))


SEED_RUBRIC = """Affirmative Points:

1. Structure zq1z:
        a Is the response zq2z in the format of a memo (zq3z)? (2 points)
        b. Does zq4z come first
           and zq5z after it? (1 point)
2. Style zq6z: N/A
3. Substance zq7z:
        a. Chronology zq8z:
                i. Does the response state zq9z? (1 point)
                ii. Does the response state zq10z in 2001? (3 point)
        b. Gaps zq11z:
                i. Does the response state zq12z? (1.5 points)

Negative Points

1. -1 point for every zq13z
2. -0.5 points for every statement of zq14z
"""
SNIPPETS = [
    "(1 point)",
    "\n",
    ":",
    "N/A",
    "a. ",
    "2. ",
    "ii",
    " ",
    "\t",
    "(",
    ")",
    "-1 point for every ",
    "point",
    ".",
    "0",
    "zq99z ",
    "\r",
]


def mutate(text: str, chance: random.Random) -> str:
    lines = text.split("\n")
    at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    kind = chance.randrange(8)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines[at], lines[other] = lines[other], lines[at]
    elif kind == 2:
        lines.insert(other, lines[at])
    elif kind == 3:
        lines[at] = " " * chance.randrange(20) + lines[at].lstrip()
    elif kind == 4:
        lines[at : at + 2] = [" ".join(lines[at : at + 2])]
    text = "\n".join(lines)
    place = chance.randrange(len(text) + 1)
    if kind == 5:
        return text[:place] + text[place + chance.randrange(1, 12) :]
    if kind >= 6:
        return text[:place] + chance.choice(SNIPPETS) + text[place:]
    return text


def words(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w*zq\w*", text))


def assert_nothing_is_lost(text: str, parsed: ParsedRubric) -> None:
    """Every marked word is in a criterion, a group or a skipped heading as often as in the text; every sum of points too."""
    groups = [item.group or "" for item in parsed.criteria]
    found = words("\n".join([*(item.text for item in parsed.criteria), *groups, *parsed.skipped]))
    missing = {word: count for word, count in words(text).items() if found[word] < count}
    assert not missing, text
    worth = re.findall(r"\(\s*(-?[\d.]+)\s*(?:points?|pts?)\s*\)|(?<!\d)-\s*([\d.]+)\s+(?:points?|pts?)\s+(?:for|if)\b", text)
    assert len(worth) == len(parsed.criteria), text
    assert sorted(float(one) if one else -float(taken) for one, taken in worth) == sorted(
        item.points for item in parsed.criteria
    ), text


def test_the_seed_is_read_whole() -> None:
    parsed = parse(SEED_RUBRIC)
    assert_nothing_is_lost(SEED_RUBRIC, parsed)
    assert len(parsed.criteria) == 7
    assert sum(words(SEED_RUBRIC).values()) == 14


@pytest.mark.parametrize("seed", range(10))
def test_a_mutation_is_read_whole_or_refused_with_its_line(seed: int) -> None:
    chance = random.Random(seed)
    outcomes: Counter[str] = Counter()
    for _ in range(250):
        text = SEED_RUBRIC
        for _ in range(chance.randrange(1, 4)):
            text = mutate(text, chance)
        try:
            parsed = parse(text)
        except SpecError as error:
            place, _, line = (error.where or "").partition(":")
            assert place == "t.csv" and FIRST_LINE <= int(line) <= FIRST_LINE + len(re.split(r"\r\n|\n|\r", text)) - 1, text
            outcomes["refused"] += 1
        else:
            assert_nothing_is_lost(text, parsed)
            outcomes["read"] += 1
    assert min(outcomes["refused"], outcomes["read"]) > 20
