"""Scores by world, by tag and by group of criteria, against pandas' own grouping."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats
from statsmodels.stats.multitest import multipletests
from support.boards import Frame, drawn, told

from eval_pipeline.analysis.forest import forest_markdown, forest_png
from eval_pipeline.analysis.leaderboard import leaderboard
from eval_pipeline.analysis.slices import Slice, slices
from eval_pipeline.cli.leaderboard import show_slices
from eval_pipeline.store.ledger import ExperimentRow

pytestmark = pytest.mark.slow

TAGS = {0: ("long",), 1: ("long", "hard"), 2: ()}


@pytest.fixture(scope="module")
def truth() -> Frame:
    made = drawn(36, 2, {"base": 0.4, "far": 0.7}, n_worlds=3, seed=5)
    number = made["case"].str[1:].astype(int)
    return made.assign(score=(made["a"] + 3 * made["b"]) / 4, number=number)


def tagged(experiment: ExperimentRow) -> ExperimentRow:
    """By the case's number: see TAGS."""
    cases = {
        name: case.model_copy(update={"tags": TAGS[int(name.rpartition("c")[2]) % 3]})
        for name, case in experiment.score.cases.items()
    }
    return replace(experiment, score=experiment.score.model_copy(update={"cases": cases}))


def means(truth: Frame, column: str) -> Frame:
    return truth.pivot_table(index="case", columns="arm", values=column, aggfunc="mean")


def found(all_of_them: list[Slice], name: str) -> dict[str, Any]:
    (one,) = [part for part in all_of_them if part.name == name]
    return {"n_cases": one.n_cases, **{row.arm: row for row in one.arms}, "comparison": one.comparisons[0]}


def test_by_world_cases_are_what_is_drawn(truth: Frame) -> None:
    experiment, cells = told(truth, baseline="base")
    parts = slices(experiment, cells, "world")
    assert [part.name for part in parts] == ["w0", "w1", "w2"]
    plain: list[float] = []
    for part in parts:
        mine = means(truth[truth["world"] == part.name], "score")
        one = found(parts, part.name)
        assert one["n_cases"] == 12 and one["far"].score == pytest.approx(mine["far"].mean())
        assert one["far"].ci_low < one["far"].score < one["far"].ci_high  # one world, and yet an interval: of its cases
        test = scipy_stats.ttest_rel(mine["far"], mine["base"])
        assert one["comparison"].p == pytest.approx(test.pvalue)
        plain.append(float(test.pvalue))
    adjusted: Any = multipletests(plain, method="holm")[1]
    assert [part.comparisons[0].p_holm for part in parts] == pytest.approx(list(adjusted))


def test_by_tag_a_case_is_in_all_of_its_own(truth: Frame) -> None:
    experiment, cells = told(truth, baseline="base")
    parts = slices(tagged(experiment), cells, "tag")
    assert [(part.name, part.n_cases) for part in parts] == [("long", 24), ("hard", 12)]
    for name, numbers in (("long", (0, 1)), ("hard", (1,))):
        mine = truth[(truth["number"] % 3).isin(numbers)]
        assert found(parts, name)["base"].score == pytest.approx(means(mine, "score")["base"].mean())
        assert found(parts, name)["base"].pass_rate == pytest.approx((mine[mine["arm"] == "base"]["score"] >= 0.7).mean())


def test_by_group_only_its_criteria_count(truth: Frame) -> None:
    some = truth.copy()
    some.loc[(some["case"] == "c3") & (some["arm"] == "far"), "b"] = np.nan
    experiment, cells = told(some, baseline="base")
    parts = slices(experiment, cells, "group")
    assert [part.name for part in parts] == ["facts", "reasons"]
    for name, column in (("facts", "a"), ("reasons", "b")):
        assert found(parts, name)["base"].score == pytest.approx(means(some, column)["base"].mean())
        assert found(parts, name)["base"].pass_rate is None
    unjudged = found(parts, "reasons")["far"]
    assert (unjudged.n_cells, unjudged.n_scored) == (72, 70)
    assert found(parts, "reasons")["comparison"].n_shared == 35


def test_no_tags_no_slices(truth: Frame) -> None:
    assert slices(*told(truth), "tag") == []


def test_people_read_slices_in_100_columns(truth: Frame, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    experiment, cells = told(truth, baseline="base")
    show_slices("world", slices(experiment, cells, "world"), "base")
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 100 for line in lines) and sum(line.startswith(("w0", "w1", "w2")) for line in lines) == 6
    show_slices("tag", [], "base")
    assert "no case has a tag" in capsys.readouterr().out


def test_a_picture_of_all_arms(truth: Frame) -> None:
    """A PNG that is taller with more arms, also for an arm without any score, whatever its name."""
    board = leaderboard(*told(truth), resamples=10)
    nothing = replace(board.arms[0], arm="$x_{", score=None, ci_low=None, ci_high=None, bound_low=None, bound_high=None)
    sizes: list[tuple[int, int]] = []
    for rows in (board.arms, [*board.arms, nothing]):
        data = forest_png(rows)
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        sizes.append(struct.unpack(">II", data[16:24]))
    assert sizes[0][0] == sizes[1][0] and sizes[0][1] < sizes[1][1]
    assert forest_markdown(board.arms).startswith("![scores with 95% CI](data:image/png;base64,iVBOR")
