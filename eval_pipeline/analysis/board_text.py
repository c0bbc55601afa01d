"""A leaderboard in words and figures: the same for the command line, the Dagster UI and what is sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eval_pipeline.analysis.board import ArmRow, Comparison, Leaderboard, Span

NEW_CASES = "95% CI is for new cases. - means: could not be had, or too few cells to say."


@dataclass(frozen=True, kw_only=True)
class Grid:
    """columns: the first holds names, the others numbers."""

    title: str
    columns: list[str]
    rows: list[list[str]]

    def as_markdown(self) -> str:
        lines = [self.columns, ["---", *(["---:"] * (len(self.columns) - 1))], *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float | None, digits: int = 3, sign: str = "") -> str:
    return "-" if value is None else f"{value:{sign}.{digits}f}"


def chance(p: float | None) -> str:
    return "<0.0001" if p is not None and p < 1e-4 else number(p, 4)


def usd(value: float | None) -> str:
    """Three figures of what is small, cents of what is not."""
    if value is None:
        return "-"
    return f"{value:.2f}" if value >= 100 else f"{value:#.3g}" if value >= 1e-4 or value == 0 else f"{value:.1e}"


def interval(low: float | None, high: float | None, digits: int = 3, sign: str = "") -> str:
    return "-" if low is None and high is None else f"{number(low, digits, sign)} to {number(high, digits, sign)}"


def rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def seconds(value: float | None, *, above: bool = False) -> str:
    return "-" if value is None else f"{'>' if above else ''}{value:.{0 if value >= 1000 else 1 if value >= 100 else 2}f}"


def rank(arm: ArmRow) -> str:
    if arm.rank_best is None or arm.rank_worst is None:
        return "-"
    return str(arm.rank_best) if arm.rank_best == arm.rank_worst else f"{arm.rank_best}-{arm.rank_worst}"


def solved(arm: ArmRow) -> str:
    return "none solved" if "none_solved" in arm.money.flags else usd(arm.money.a_solved.value)


def name(arm: ArmRow, board: Leaderboard) -> str:
    """With what must not be overlooked."""
    marks = ("*" if arm.stand_in else "") + (" (baseline)" if arm.arm == board.baseline else "")
    return arm.arm + marks + (" !! FAILED AS A WHOLE" if any(alarm.arm == arm.arm for alarm in board.alarms) else "")


def in_order(board: Leaderboard) -> list[ArmRow]:
    """By rank, then by score, when there are ranks; else as the experiment names them."""
    if board.unranked or any(arm.rank_best is None for arm in board.arms):
        return board.arms
    return sorted(board.arms, key=lambda arm: (arm.rank_best or 0, arm.rank_worst or 0, -(arm.score or 0.0)))


def main_grid(board: Leaderboard) -> Grid:
    columns = ["arm", "rank", "score", "95% CI", "pass", "USD/case", "USD/solved", "p50 s", "p95 s", "valid"]
    return Grid(
        title=f"{board.experiment} ({board.status})", columns=columns, rows=[_main(arm, board) for arm in in_order(board)]
    )


def _main(arm: ArmRow, board: Leaderboard) -> list[str]:
    return [
        name(arm, board),
        rank(arm),
        number(arm.score),
        interval(arm.ci_low, arm.ci_high),
        number(arm.pass_rate),
        usd(arm.cost_usd_mean),
        solved(arm),
        seconds(arm.latency_p50_s, above="p50" in arm.latency_above),
        seconds(arm.latency_p95_s, above="p95" in arm.latency_above),
        f"{arm.n_valid}/{arm.n_cells}",
    ]


def comparison_grid(comparisons: Sequence[Comparison], baseline: str | None) -> Grid:
    against = f"against {baseline}" if baseline else "every pair"
    columns = ["arm" if baseline else "pair", "difference", "95% CI", "p", "Holm p", "wins-ties-losses", "verdict"]
    rows = [
        [
            one.b if baseline else f"{one.b} over {one.a}",
            number(one.diff, sign="+"),
            interval(one.ci_low, one.ci_high, sign="+"),
            chance(one.p),
            chance(one.p_holm),
            "-" if one.wins is None else f"{one.wins}-{one.ties}-{one.losses}",
            verdict(one),
        ]
        for one in comparisons
    ]
    return Grid(title=f"{against}, paired by case; p adjusted for all {len(rows)} lines", columns=columns, rows=rows)


def verdict(one: Comparison) -> str:
    if one.significant is None:
        return "nothing to say"
    return ("better" if (one.diff or 0.0) > 0 else "worse") if one.significant else "undecided"


def detail_grid(board: Leaderboard, arms: Sequence[ArmRow] | None = None) -> Grid:
    """What does not fit beside the score: a line a number, a column an arm. arms: some of the board's; None: all."""
    chosen = in_order(board) if arms is None else arms
    lines = [*_of_scores(board.arms[0].trials.k), *_of_means(board.arms[0])]
    rows = [[title, *(value(arm) for arm in chosen)] for title, value in lines]
    return Grid(title="in detail, with 95% CI", columns=["", *(arm.arm for arm in chosen)], rows=rows)


def _of_scores(k: int) -> list[tuple[str, Callable[[ArmRow], str]]]:
    of_trials: list[tuple[str, Callable[[ArmRow], str]]] = [
        (f"all {k} trials pass", lambda a: _rated(a.trials.all_k)),
        (f"any of {k} passes", lambda a: _rated(a.trials.any_k)),
    ]
    return [
        ("all criteria met", lambda a: _rated(a.all_passed)),
        ("pass rate", lambda a: _rated(a.passed)),
        *(of_trials if k > 1 else []),
        ("score, common cases", lambda a: number(a.score_common)),
        ("SE, new cases", lambda a: number(a.se)),
        ("SE, same cases", lambda a: number(a.se_same_cases)),
        ("score, bounds", lambda a: interval(a.bound_low, a.bound_high)),
        ("cells with a score", lambda a: rate(a.coverage)),
        ("worlds or cases drawn", lambda a: str(a.n_clusters)),
        ("flags", lambda a: ", ".join(a.flags) or "-"),
    ]


def _of_means(first: ArmRow) -> list[tuple[str, Callable[[ArmRow], str]]]:
    return [
        ("USD/case", lambda a: _paid(a.money.a_case)),
        ("USD/case, cold cache", lambda a: usd(a.money.cold)),
        ("USD/solved case", lambda a: solved(a) if a.money.a_solved.value is None else _paid(a.money.a_solved)),
        ("cells of unknown cost", lambda a: str(a.n_unpriced)),
        ("USD/case, sandbox", lambda a: usd(a.sandbox_usd_mean)),
        ("input from caches", lambda a: rate(a.money.cache_share)),
        ("p50 s", lambda a: _timed(a.latency.p50, above="p50" in a.latency_above)),
        ("p95 s", lambda a: _timed(a.latency.p95, above="p95" in a.latency_above)),
        ("mean s (to the limit)", lambda a: seconds(a.latency.rmst_s)),
        ("front: cost", lambda a: _share(a.front.cost, a.front.on)),
        ("front: cost, latency", lambda a: number(a.front.latency, 2)),
        *((f"rate: {kind}", lambda a, kind=kind: rate(a.rates[kind])) for kind in first.rates),
    ]


def _rated(found: Span) -> str:
    return number(found.value) + ("" if found.low is None else f" ({interval(found.low, found.high)})")


def _paid(found: Span) -> str:
    return usd(found.value) + ("" if found.low is None else f" ({usd(found.low)} to {usd(found.high)})")


def _timed(found: Span, *, above: bool) -> str:
    ends = "" if found.low is None and found.high is None else f" ({seconds(found.low)} to {seconds(found.high)})"
    return seconds(found.value, above=above) + ends


def _share(share: float | None, on: str | None) -> str:
    return "-" if share is None else f"{share:.2f} ({on})"


def standing(board: Leaderboard) -> list[str]:
    """What the board stands on, and why it is not final or not ranked."""
    lines = [
        f"policy {board.policy}; {board.coverage:.1%} of {board.n_cells} cells have a score, {board.n_common_cases} of {board.n_cases} cases in every arm",
        *_origin(board),
        *_unpriced(board),
    ]
    lines += [f"provisional: {reason}" for reason in board.reasons]
    if board.unranked:
        others = [reason for reason in board.unranked if reason not in board.reasons]
        lines.append(f"no ranks: {'; '.join(others) or 'for what makes it provisional'}")
    return lines


def _unpriced(board: Leaderboard) -> list[str]:
    """Of an import its reader says it, with what is known of its files."""
    arms = [arm for arm in board.arms if arm.n_unpriced and board.imported is None]
    told = "; ".join(f"{arm.arm} {arm.n_unpriced} ({'; '.join(arm.cost_unknown)})" for arm in arms)
    return [f"cells of unknown cost, in no mean and no sum: {told}"] if arms else []


def _origin(board: Leaderboard) -> list[str]:
    if (versions := board.versions) is not None:
        return [
            f"versions: run {versions.run[:12]}, score {versions.score[:12]}, prices {versions.prices}, scoring {versions.scoring}, judge {versions.judge or 'none'}"
        ]
    if (found := board.imported) is None:
        return []
    passes = "whether a cell passes is not known" if found.pass_at is None else f"a cell passes from {found.pass_at:g} on"
    return [
        f"IMPORTED from {found.system} ({found.digest[:12]}): {', '.join(found.files[:3])}{', ...' if found.files[3:] else ''}",
        f"score {found.score}, from {found.low:g} to {found.high:g}; {passes}. Each case is a draw of its own",
        "as its files report it: nothing of it was run, judged or priced here, nor is anything known of isolation or of what was reached",
        *(f"note: {note}" for note in found.notes),
    ]
