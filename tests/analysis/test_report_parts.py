"""The report's parts by themselves: marks in a text, pages of a transcript, plots, and the first page of drawn experiments."""

from __future__ import annotations

import io
import json
import re
from html import unescape
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from support.boards import drawn, told

from eval_pipeline.analysis import plots, transcripts
from eval_pipeline.analysis.evidence import Piece, marked, needles
from eval_pipeline.analysis.leaderboard import leaderboard
from eval_pipeline.analysis.report import index_page
from eval_pipeline.analysis.report_tables import Data
from eval_pipeline.analysis.tables import CriterionRow
from eval_pipeline.domain.rubric import Criterion

pytestmark = pytest.mark.slow


def test_marks_overlap_and_ignore_case_and_spacing() -> None:
    pieces = marked("The  Lessee shall\nobtain consent.", {1: ["the lessee shall"], 2: ["shall obtain"], 3: ["nowhere", "(a"]})
    assert pieces == [
        Piece("The  Lessee ", (1,), ()),
        Piece("shall", (1, 2), (1,)),
        Piece("\nobtain", (2,), (2,)),
        Piece(" consent.", (), ()),
    ]
    assert "".join(piece.text for piece in marked("a.b a.b axb", {1: ["a.b"]})) == "a.b a.b axb"
    assert [piece.text for piece in marked("a.b axb", {1: ["a.b"]}) if piece.criteria] == ["a.b"]
    assert marked("", {1: ["a"]}) == []


def criterion(check: dict[str, Any] | None, verdict: float, quotes: list[str] | None = None) -> tuple[Criterion, CriterionRow]:
    made = Criterion(id="c", text="t", points=1, check=check, judge=check is None)
    row = CriterionRow(id="c", text="t", points=1, group=None, verdict=verdict, status="ok", reason=None, quotes=quotes or [])
    return made, row


@pytest.mark.parametrize(
    ("check", "verdict", "found"),
    [
        ({"contains": "60 days"}, 1, ["60 days"]),
        ({"contains": "60 days"}, 0, None),
        ({"contains_any": {"texts": ["a b", "c"], "in": "file:x.md"}}, 1, ["a b", "c"]),
        ({"all": [{"contains": "a"}, {"not": {"contains": "b"}}, {"any": [{"equals": {"text": "c"}}]}]}, 1, ["a", "c"]),
        ({"at_least": {"n": 1, "of": [{"contains_all": ["a", "b"]}]}}, 1, ["a", "b"]),
        ({"cites": {"document": "documents/a.md", "quote": "a clause"}}, 1, ["a clause"]),
        ({"cites": "documents/a.md"}, 1, None),
        ({"number": 5}, 1, None),
    ],
)
def test_what_a_check_that_is_met_looked_for_is_evidence(check: dict[str, Any], verdict: float, found: list[str] | None) -> None:
    made, row = criterion(check, verdict)
    assert needles([made], [row]).get(1, None) == found or (found is None and not needles([made], [row]).get(1))


def test_what_a_judge_quotes_is_evidence_whatever_its_verdict() -> None:
    made, row = criterion(None, 0, ["a quote", " "])
    assert needles([made], [row]) == {1: ["a quote"]}


def lines(*events: object) -> io.BytesIO:
    return io.BytesIO(b"".join((one if isinstance(one, bytes) else json.dumps(one).encode()) + b"\n" for one in events))


def test_events_of_any_kind() -> None:
    found = list(
        transcripts.events(
            lines(
                {"type": "message", "role": "user", "content": "hello", "elapsed_s": 1},
                {"type": "tool_result", "name": "read", "content": '{"a": [1, 2]}'},
                {"type": "usage", "model": "m", "output": 7, "reasoning": True},
                {"type": ["odd"], "elapsed_s": 10**400, "content": {"deep": None}, "x": 1},
                [1, 2],
                b"\xff no JSON",
                b"",
                b"[" * 100_000,
            )
        )
    )
    assert [event.number for event in found] == [1, 2, 3, 4, 5, 6, 7]
    assert [event.kind for event in found] == ["message", "tool_result", "usage", "event", *["unreadable"] * 3]
    assert (found[0].who, found[0].elapsed_s, found[0].parts) == ("user", 1.0, [("", "hello")])
    assert found[1].parts == [("", '{\n "a": [\n  1,\n  2\n ]\n}')]
    assert "output 7" in found[2].parts[0][1]
    assert found[3].parts[-1] == ("more: x", '{\n "x": 1\n}') and found[3].elapsed_s is None
    assert found[6].n_cut == 100_000 - transcripts.EVENT_CHARS


def test_a_line_without_end_is_cut_and_the_next_one_is_read() -> None:
    long = b'{"content": "' + b"x" * (3 * transcripts.LINE_BYTES) + b'"}'
    first, second = transcripts.events(lines(long, {"type": "note", "note": "after"}))
    assert (first.kind, first.chars < 20_000) == ("unreadable", True)
    assert first.n_cut == len(long) + 1 - transcripts.EVENT_CHARS
    assert (second.kind, second.parts) == ("note", [("", "after")])


def test_pages_are_bounded_and_hold_every_event_once() -> None:
    events = [{"type": "note", "note": "y" * int(size)} for size in np.random.default_rng(1).integers(0, 9_000, 900)]
    pages = list(transcripts.pages(lines(*events)))
    assert [event.number for page in pages for event in page] == list(range(1, 901))
    assert all(sum(event.chars for event in page) <= transcripts.PAGE_CHARS for page in pages)
    assert len(list(transcripts.pages(lines(*[{}] * 900)))) == 3
    assert list(transcripts.pages(lines())) == []


def texts(svg: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(svg).iter("text")]


def test_an_arm_that_costs_nothing_stands_in_a_column_of_its_own() -> None:
    common: dict[str, Any] = {"x_low": None, "x_high": None, "y_low": 0.4, "y_high": 0.8}
    points = [
        plots.Point(label="free", x=0.0, y=0.5, arm=0, on_front=True, **common),
        plots.Point(label="paid", x=0.02, y=0.6, arm=1, on_front=False, **common),
    ]
    svg = plots.scatter(points, title="t", x_axis="USD", y_axis="score", y_limits=(0, 1), log=True)
    assert {"free", "paid", "0", "0.02"} <= set(texts(svg))
    alone = plots.scatter(points[:1], title="t", x_axis="USD", y_axis="score", y_limits=(0, 1), log=True)
    assert "free" in texts(alone)


def test_plots_take_their_colours_from_the_page_and_style_nothing_inline() -> None:
    row = plots.Interval(label="a <b>", value=0.5, low=0.2, high=0.8, text="0.5", arm=9, faint_low=0.1, faint_high=0.9)
    svg = plots.intervals([row], title='"quoted" <title>', axis="score", limits=(0, 1))
    assert "a <b>" in texts(svg)
    root = ElementTree.fromstring(svg)
    assert (root.get("role"), root.get("aria-label")) == ("img", '"quoted" <title>')
    assert not [node for node in root.iter() if node.get("style")]
    colours = {node.get(name) for node in root.iter() for name in ("fill", "stroke")} - {None, "none"}
    assert colours and all(re.fullmatch(r"var\(--[a-z]+(-\d)?\)", str(colour)) for colour in colours), colours


def first_page(truth: Any, baseline: str | None = None, **more: Any) -> str:
    experiment, cells = told(truth, baseline, **more)
    return index_page(Data.of(experiment, leaderboard(experiment, cells, resamples=200), cells)).decode()


def plain(page: str) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", re.sub(r"<(style|svg).*?</\1>", "", page, flags=re.DOTALL))))


def test_the_first_page_says_who_differs() -> None:
    text = plain(first_page(drawn(40, 2, {"old": 0.2, "new": 0.8}, 40), "old"))
    assert re.search(r"new has the highest mean score, of 0\.\d+ \(95% CI", text)
    assert re.search(r"new differs from old by \+0\.\d+ \(p < 0\.001 after Holm\)", text)
    assert "Nothing is missing" in text


def test_slices_are_means_over_the_cases_of_each_world() -> None:
    truth = drawn(12, 2, {"old": 0.3, "new": 0.7}, 2)
    page = first_page(truth, "old")
    table = page[page.index("Score by world") : page.index("</table>", page.index("Score by world"))]
    shown = [float(value) for value in re.findall(r"<b>([\d.]+)</b>", table)]
    scores = truth.assign(score=(truth["a"] + truth["b"] * 3) / 4)
    means = scores.groupby(["world", "case", "arm"])["score"].mean().groupby(["world", "arm"]).mean()
    assert shown == pytest.approx([means[world, arm] for world in ("w0", "w1") for arm in ("old", "new")], abs=0.006)
    assert len(re.findall(r"p [<\d]", plain(table))) == 2, "new against old, in either world"
    assert "Score by group of criteria" in page
    assert "Score by world" not in first_page(drawn(12, 1, {"old": 0.3, "new": 0.7}, 1), "old")


def test_a_provisional_page_ranks_nobody_and_lists_what_is_missing() -> None:
    truth = drawn(10, 2, {"a": 0.5, "b": 0.5}, 10)
    truth.loc[truth.index[:5], "outcome"] = "infra_failure"
    truth.loc[truth.index[20:23], ["a", "b"]] = np.nan
    page = first_page(truth, "a")
    text = plain(page)
    assert "This result is provisional: 80.0% of 40 cells have a score" in text
    assert "highest" not in text
    assert "Cells without a valid result: 5" in text and "Valid cells without a score: 3" in text
    assert 'class="f none"' in page


@pytest.mark.parametrize("n_arms", [1, 9])
def test_one_arm_or_many_and_no_baseline(n_arms: int) -> None:
    page = first_page(drawn(12, 1, {f"arm-{n}": 0.5 for n in range(n_arms)}, 1))
    assert page.count("<figure>") >= 3
    assert ("Differences between arms" in page) == (n_arms > 1)
    assert "Case by case" not in page
