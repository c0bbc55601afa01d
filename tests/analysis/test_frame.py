"""The scored table as a DataFrame: what it holds, what is null, and that it comes back from files as it was."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as parquet
import pytest
from support.boards import Frame, drawn, told
from support.tables import NOW

from eval_pipeline.analysis.frame import COLUMNS, column_types, encoded, flat_row, frame_of, scored_frame
from eval_pipeline.analysis.leaderboard import leaderboard

EARLIER = datetime(2026, 6, 1, 11, 59, 1, 500, tzinfo=UTC)


@pytest.fixture(scope="module")
def truth() -> Frame:
    made = drawn(30, 2, {"base": 0.4, "far": 0.7}, n_worlds=30)
    made["outcome"] = made["outcome"].astype(object)
    made.loc[4, "outcome"] = "infra_failure"
    made.loc[9, "outcome"] = None
    made.loc[13, "outcome"] = "agent_timeout"
    made.loc[17, "b"] = np.nan
    return made


@pytest.fixture(scope="module")
def frame(truth: Frame) -> Frame:
    return scored_frame(told(truth, baseline="base")[1])


def at(frame: Frame, truth: Frame, index: int) -> Any:
    row = truth.loc[index]
    found = frame[
        (frame["case"] == f"{row['world']}.{row['case']}") & (frame["arm"] == row["arm"]) & (frame["trial"] == row["trial"])
    ]
    return found.iloc[0]


def test_every_column_has_its_type_whatever_the_cells_are(frame: Frame) -> None:
    for one in (frame, frame_of([]), frame_of([{"cell": "x/w.c/a/0"}])):
        assert list(one.columns) == list(COLUMNS)
        assert {name: str(kind) for name, kind in one.dtypes.items()} == COLUMNS
    assert set(column_types().values()) == {"string", "int", "float", "bool", "datetime"}


def test_means_of_the_frame_are_the_boards(frame: Frame, truth: Frame) -> None:
    board = leaderboard(*told(truth, baseline="base"), resamples=10)
    for arm in board.arms:
        mine = frame[frame["arm"] == arm.arm]
        assert mine.groupby("case")["score"].mean().mean() == pytest.approx(arm.score)
        assert mine.groupby("case")["cost_usd"].mean().mean() == pytest.approx(arm.cost_usd_mean)
        assert mine["score"].notna().mean() == pytest.approx(arm.coverage)


def test_missing_is_null_and_not_zero(frame: Frame, truth: Frame) -> None:
    lost, still_open, late, unjudged, plain = (at(frame, truth, index) for index in (4, 9, 13, 17, 20))
    for row in (lost, still_open):
        names = ("score", "passed", "all_passed", "cost_usd", "latency_s", "input_tokens", "bundle", "ended_at")
        assert all(pd.isna(row[name]) for name in names)
        assert (row["score_lower"], row["score_upper"]) == (0.0, 1.0)
    assert (late["score"], late["passed"], late["latency_s"], late["latency_censored"]) == (0.0, False, 60.0, True)
    assert pd.isna(unjudged["score"]) and unjudged["n_satisfied"] + unjudged["n_unsatisfied"] == 1
    assert (unjudged["score_lower"], unjudged["score_upper"]) == (truth.loc[17, "a"] / 4, (truth.loc[17, "a"] + 3) / 4)
    assert (
        plain["input_tokens"] == truth.loc[20, "sent"] + truth.loc[20, "cached"]
        and plain["cache_read"] == truth.loc[20, "cached"]
    )
    assert pd.isna(plain["judge_cost_usd"])  # nobody looked it up


def test_what_identifies_a_cell(frame: Frame, truth: Frame) -> None:
    experiment, _ = told(truth, baseline="base")
    row = at(frame, truth, 0)
    arm = experiment.run.arm(str(row["arm"]))
    assert (row["tree"], row["commit"], json.loads(row["config"])) == (arm.tree, arm.commit, arm.config)
    assert row["snapshot"] == experiment.run.worlds[row["world"]]
    assert (row["run_lock"], row["score_lock"]) == (experiment.run.digest, experiment.score.digest)
    assert pd.isna(row["judge_version"]) and row["scoring_version"] == experiment.score.scoring_version


def test_it_comes_back_from_parquet_as_it_was(frame: Frame) -> None:
    data = encoded(frame, "parquet")
    back = pd.read_parquet(io.BytesIO(data))
    pd.testing.assert_frame_equal(back, frame)
    kinds = {field.name: str(field.type) for field in parquet.read_schema(io.BytesIO(data))}
    assert kinds["score"] == "double" and kinds["passed"] == "bool" and kinds["trial"] == "int64"
    assert kinds["ended_at"] == "timestamp[us, tz=UTC]"


def test_csv_and_json_keep_nulls_and_numbers(frame: Frame) -> None:
    back = pd.read_csv(io.BytesIO(encoded(frame, "csv")))
    assert back["score"].isna().tolist() == frame["score"].isna().tolist()
    assert back["cost_usd"].dropna().tolist() == frame["cost_usd"].dropna().tolist()
    rows = json.loads(encoded(frame, "json"))
    assert [row["score"] for row in rows] == [None if pd.isna(value) else value for value in frame["score"]]
    assert rows[0]["ended_at"].startswith(NOW.strftime("%Y-%m-%dT%H:%M:%S"))


def test_other_systems_rows_have_their_place(frame: Frame) -> None:
    row = {"cell": "log/w.c/a/0", "score": 0.5, "cost_usd": Decimal("0.25"), "started_at": EARLIER, "passed": True}
    one = frame_of([{**row, "cost_usd": float(row["cost_usd"])}])
    assert one.loc[0, "started_at"] == pd.Timestamp(EARLIER) and one.loc[0, "score"] == 0.5 and pd.isna(one.loc[0, "trial"])
    with pytest.raises(ValueError, match="not columns of the scored table: colour"):
        frame_of([{"colour": "red"}])


def test_a_row_names_every_column_or_leaves_it_unknown(truth: Frame) -> None:
    _, cells = told(truth)
    assert set(COLUMNS) == {name for cell in cells for name in flat_row(cell)}


def test_what_an_agent_called_its_error_is_no_formula_of_a_spreadsheet() -> None:
    said = ["=HYPERLINK(1)", "@SUM(1)", "no reason given", None]
    rows = [{"cell": f"x/w.c/a/{number}", "error": one} for number, one in enumerate(said)]
    table = frame_of(rows)
    back = pd.read_csv(io.BytesIO(encoded(table, "csv")))["error"]
    assert [None if pd.isna(one) else one for one in back] == ["'=HYPERLINK(1)", "'@SUM(1)", "no reason given", None]
    assert [row["error"] for row in json.loads(encoded(table, "json"))] == said


def test_of_many_rows_one_is_held_at_a_time() -> None:
    def rows() -> Iterator[dict[str, Any]]:
        row: dict[str, Any] = {"error": "=1"}
        for number in range(2500):
            row["cell"] = f"x/w.c/a/{number}"
            yield row  # the same one: whoever held it until the end would have the last cell 2500 times

    table = frame_of(rows())
    back = pd.read_csv(io.BytesIO(encoded(table, "csv")))
    assert back["cell"].tolist() == table["cell"].tolist() == [f"x/w.c/a/{number}" for number in range(2500)]
    assert set(back["error"]) == {"'=1"}
