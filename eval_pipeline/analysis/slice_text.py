"""Slices of a leaderboard in words and figures."""

from __future__ import annotations

from collections.abc import Sequence

from eval_pipeline.analysis.board_text import Grid, chance, interval, number
from eval_pipeline.analysis.slices import By, Slice


def slice_grid(by: By, parts: Sequence[Slice], baseline: str | None) -> Grid:
    """A line an arm in a slice; with a baseline also what it is apart from that."""
    against = [f"over {baseline}", "its 95% CI", "Holm p"] if baseline else []
    rows: list[list[str]] = []
    for part in parts:
        found = {one.b: one for one in part.comparisons} if baseline else {}
        for arm in part.arms:
            row = [part.name, arm.arm, str(part.n_cases), number(arm.score), interval(arm.ci_low, arm.ci_high)]
            row += [] if by == "group" else [number(arm.pass_rate)]
            if baseline:
                one = found.get(arm.arm)
                row += ["", "", ""] if one is None else [
                    number(one.diff, sign="+"), interval(one.ci_low, one.ci_high, sign="+"), chance(one.p_holm)]  # fmt: skip
            rows.append(row)
    columns = [by, "arm", "cases", "score", "95% CI", *([] if by == "group" else ["pass"]), *against]
    return Grid(title=f"by {by}; p adjusted for all of these lines" if baseline else f"by {by}", columns=columns, rows=rows)
