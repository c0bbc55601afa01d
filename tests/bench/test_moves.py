from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

from moves import FAILING, moves, table  # noqa: E402
from smoke import ratios  # noqa: E402


def verdicts(before: dict[str, float], now: dict[str, float], factor: float = 1.5) -> dict[str, str]:
    return {one.name: one.verdict for one in moves(before, now, factor)}


def test_only_what_moved_beyond_the_factor_counts() -> None:
    before = dict.fromkeys("abcde", 4.0)
    now = {"a": 4.0, "b": 6.0, "c": 6.01, "d": 4 / 1.5, "e": 2.6}
    assert verdicts(before, now) == {"a": "within", "b": "within", "c": "worse", "d": "within", "e": "better"}


def test_a_ratio_that_is_gone_fails_and_a_new_one_does_not() -> None:
    found = moves({"gone": 2.0}, {"new": 3.0}, 1.5)
    assert [(one.name, one.verdict, one.by, one.verdict in FAILING) for one in found] == [
        ("gone", "missing", None, True),
        ("new", "new", None, False),
    ]


@pytest.mark.parametrize(
    ("before", "now", "factor"),
    [({"a": 1.0}, {"a": 1.0}, 1.0), ({"a": 0.0}, {"a": 1.0}, 2), ({"a": 1.0}, {"a": float("nan")}, 2)],
)
def test_what_cannot_be_compared_is_refused(before: dict[str, float], now: dict[str, float], factor: float) -> None:
    with pytest.raises(ValueError, match="above"):
        moves(before, now, factor)


def test_the_table_says_by_how_much() -> None:
    assert table(moves({"cell": 2.0, "gone": 1.0}, {"cell": 3.5}, 1.5)).splitlines() == [
        "ratio  before  now   moved by",
        "cell   2.00    3.50  +75 %     worse",
        "gone   1.00    -     -         missing",
    ]


def test_a_cell_is_told_apart_from_what_a_run_costs_anyway() -> None:
    """10 s for the run itself and 20 ms a cell, written out as 40 and 240 of them."""
    commands = {"cells": 40, "run_cpu_s": 10.8, "import_dagster_cpu_s": 2.0, "resume_cpu_s": 3.0, "leaderboard_cpu_s": 1.0}
    commands |= {"list_cpu_s": 0.5, "help_cpu_s": 0.1, "python_cpu_s": 0.02}
    cells = {"cells": 240, "cpu_ms_per_cell": 14.8 / 240 * 1e3, "floor_ms_per_cell": 10.0}
    found = ratios(commands, cells, {"cpu_s": 3.0, "floor_cpu_s": 1.5})
    assert found == pytest.approx(
        {
            "cell_over_floor": 2.0,
            "run_over_dagster": 5.0,
            "resume_over_dagster": 1.5,
            "leaderboard_over_help": 10.0,
            "list_over_help": 5.0,
            "help_over_python": 5.0,
            "persist_over_floor": 2.0,
        }
    )


def test_the_committed_baseline_holds_every_ratio() -> None:
    baseline = json.loads((BENCH / "baseline.json").read_text())
    assert {one.verdict for one in moves(baseline["ratios"], baseline["ratios"], baseline["factor"])} == {"within"}
    assert set(baseline["ratios"]) == {
        "cell_over_floor", "run_over_dagster", "resume_over_dagster", "leaderboard_over_help", "list_over_help", "help_over_python",
        "persist_over_floor",
    }  # fmt: skip
