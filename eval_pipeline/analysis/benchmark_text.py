"""A benchmark in words and figures."""

from __future__ import annotations

from collections.abc import Sequence

from eval_pipeline.analysis.benchmark import BenchmarkBoard, Line
from eval_pipeline.analysis.board_text import Grid, chance, interval, number, rank, usd

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float | None]) -> str:
    """From the lowest to the highest of them; a dot where there is none, the middle where they are all equal."""
    known = [value for value in values if value is not None]
    if not known:
        return "·" * len(values)
    low, width = min(known), max(known) - min(known)
    return "".join("·" if value is None else _bar((value - low) / width if width > 0 else 0.5) for value in values)


def _bar(share: float) -> str:
    return _BARS[min(int(share * len(_BARS)), len(_BARS) - 1)]


def entries_grid(board: BenchmarkBoard) -> Grid:
    columns = ["arm", "entered", "commit", "rank", "score", "95% CI", "pass", "USD/case", "valid"]
    rows = [
        [
            entry.label + (" (baseline)" if entry.label == board.baseline else ""),
            f"{entry.entered_at:%Y-%m-%d}",
            (entry.commit or "worktree")[:8],
            rank(row),
            number(row.score),
            interval(row.ci_low, row.ci_high),
            number(row.pass_rate),
            usd(row.cost_usd_mean),
            f"{row.n_valid}/{row.n_cells}",
        ]
        for entry, row in zip(board.entries, board.arms, strict=True)
    ]
    return Grid(title=f"benchmark {board.benchmark} ({board.status})", columns=columns, rows=rows)


def trend_grid(line: Line) -> Grid:
    points = line.points
    columns = ["commit", "entered", "score", "95% CI", "since the last", "95% CI", "p", "USD/case"]
    rows = [
        [
            (point.commit or "worktree")[:8],
            f"{point.entered_at:%Y-%m-%d}",
            number(point.score),
            interval(point.ci_low, point.ci_high),
            number(point.since_last, sign="+"),
            interval(point.since_last_low, point.since_last_high, sign="+"),
            chance(point.p),
            usd(point.cost_usd_mean),
        ]
        for point in points
    ]
    score, cost = (sparkline(values) for values in ([one.score for one in points], [one.cost_usd_mean for one in points]))
    return Grid(title=f"{points[-1].label}: score {score}  cost {cost}", columns=columns, rows=rows)


def standing(board: BenchmarkBoard) -> list[str]:
    lines = [
        f"{board.n_cases} cases x {board.trials} trials, {board.n_common_cases} cases in every arm; policy {board.policy}",
        f"versions: benchmark {board.version[:12]}, judge {board.judge_version or 'none'}, all costs at prices {board.prices}",
        *(f"provisional: {reason}" for reason in board.reasons),
        *(f"note: {note}" for note in board.notes),
    ]
    if board.unranked:
        lines.append(f"no ranks: {'; '.join(board.unranked)}")
    return lines
