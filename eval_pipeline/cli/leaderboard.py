from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from eval_pipeline.cli.output import (
    alarm_line,
    counted,
    emit,
    examples,
    harmless,
    json_option,
    leaked_line,
    shown,
    table,
    unsafe_line,
    with_settings,
)
from eval_pipeline.settings import Settings

if TYPE_CHECKING:
    from eval_pipeline.analysis.board import ArmRow, JudgeLine, Leaderboard
    from eval_pipeline.analysis.board_text import Grid
    from eval_pipeline.analysis.slices import By, Slice

_ARMS_ABREAST = 3
_LOST = {"infra_failure": "ended in an error, without a score", "cancelled": "planned, or withdrawn"}


@click.command(epilog=examples("evals leaderboard demo", "evals leaderboard demo --by tag --json"))
@click.argument("name")
@click.option("--wide", is_flag=True, help="Every number of each arm.")
@click.option("--by", type=click.Choice(["world", "tag", "group"]), help="Scores of each world, tag or group of criteria.")
@json_option
@with_settings
def command(settings: Settings, name: str, wide: bool, by: By | None, as_json: bool) -> None:
    """Arms side by side: ranks, score with its interval, pass rate, cost, latency, comparisons, and what is missing.

    NAME is an experiment's id, its name for the newest of that name, or an import's name.
    """
    from eval_pipeline.analysis.load_tables import load_tables
    from eval_pipeline.analysis.slices import slices
    from eval_pipeline.analysis.sources import board_of, source_of
    from eval_pipeline.errors import SpecError
    from eval_pipeline.store.ledger import ExperimentRow
    from eval_pipeline.store.records import read_records

    with read_records(settings) as records:
        source = source_of(settings, records, name)
        tables = load_tables(records, source) if isinstance(source, ExperimentRow) else None
        board = board_of(records, source, tables)
        if by is not None and not isinstance(source, ExperimentRow):
            raise SpecError(f"{source.name} is imported: of its cases no {by} is known", hint="leave out --by")
        parts = slices(source, tables.decided, by) if by and tables and isinstance(source, ExperimentRow) else None
    sliced = {} if parts is None else {"by": by, "slices": [part.as_data() for part in parts]}

    def people() -> None:
        show(board, wide=wide)
        if by is not None and parts is not None:
            click.echo()
            show_slices(by, parts, board.baseline)

    emit(board.as_data() | sliced, as_json, people)


def show(board: Leaderboard, *, wide: bool = False) -> None:
    from eval_pipeline.analysis.board_text import NEW_CASES, comparison_grid, detail_grid, in_order, main_grid, standing
    from eval_pipeline.analysis.standing import expected

    _grid(main_grid(board))
    for alarm in board.alarms:
        click.echo(alarm_line(str(alarm)))
    if board.comparisons:
        click.echo()
        _grid(comparison_grid(board.comparisons, board.baseline))
    arms = in_order(board)
    for start in range(0, len(arms) if wide else 0, _ARMS_ABREAST):
        click.echo()
        _grid(detail_grid(board, arms[start : start + _ARMS_ABREAST]))
    kinds = list(board.arms[0].failures)
    failed = [[arm.arm, *arm.failures.values()] for arm in board.arms]
    table(["arm", *kinds], failed, "\ncells that failed, by kind", right=kinds)
    n_valid = board.n_cells - sum(board.missing.values())
    click.echo(expected(n_valid, board.n_cells, board.missing) if board.imported is None else _imported_line(n_valid, board))
    click.echo(NEW_CASES)
    for line in [*standing(board), *_money(board), *_cautions(board)]:
        click.echo(line)
    if not wide:
        click.echo("more of each arm: --wide")


def _imported_line(n_valid: int, board: Leaderboard) -> str:
    why = ", ".join(f"{n} {_LOST.get(status, status)}" for status, n in board.missing.items())
    return f"{n_valid} of {counted(board.n_cells, 'cell', 'cells')} ended in a result" + (f"; missing: {why}" if why else "")


def show_slices(by: By, parts: Sequence[Slice], baseline: str | None) -> None:
    from eval_pipeline.analysis.slice_text import slice_grid

    if not parts:
        click.echo(f"no case has a {by}" if by != "group" else "no criterion has a group")
        return
    _grid(slice_grid(by, parts, baseline))
    if by == "world":
        click.echo("95% CI here is for new cases of the same world.")


def _grid(grid: Grid) -> None:
    table(grid.columns, grid.rows, grid.title, right=grid.columns[1:])


def _money(board: Leaderboard) -> Iterator[str]:
    if (found := board.imported) is not None:
        unknown = f"; cells of unknown cost: {found.n_unknown_cost}" if found.n_unknown_cost else ""
        yield f"cost, as reported: {board.spent_usd:.4f} USD{unknown}"
        return
    yield f"spent: {board.spent_usd:.4f} USD for models, {board.sandbox_spent_usd:.4f} for sandboxes; over all attempts"
    if board.overhead_usd or board.n_overhead_unknown:
        unknown = f"; of unknown cost: {board.n_overhead_unknown}" if board.n_overhead_unknown else ""
        yield f"of that for models in attempts that do not count: {board.overhead_usd:.4f} USD{unknown}"
    if board.n_measured:
        yield f"usage: measured in {board.n_measured} of {board.n_cells} cells; where it is not, agents report it themselves"
    if board.n_sandbox_unknown:
        yield f"attempts whose sandbox has no known cost: {board.n_sandbox_unknown}"
    if (judge := board.judge) is not None:
        unknown = f", the cost of {judge.n_unpriced} unknown" if judge.n_unpriced else ""
        paid = f"{judge.n_calls} calls, {judge.cost_usd:.6f} USD{unknown}; apart from the arms' cost"
        yield f"judge {judge.model} ({judge.version}), {judge.badge}: {paid}"
        yield from _trust(judge)


def _trust(judge: JudgeLine) -> Iterator[str]:
    from eval_pipeline.analysis.board_text import interval

    if judge.badge_reasons:
        yield f"judge unvalidated: {'; '.join(map(harmless, judge.badge_reasons))}"
    if judge.n_by_hand:
        yield f"criteria that people decided in its place: {judge.n_by_hand}"
    if judge.corrected:
        means = [
            f"{one.arm} {shown(one.corrected)} ({interval(one.ci_low, one.ci_high)}; raw {shown(one.raw)}, {one.n_labelled} cells)"
            for one in judge.corrected
        ]
        yield f"scores corrected by the cells that people labelled: {'; '.join(means)}"


def _cautions(board: Leaderboard) -> Iterator[str]:
    flags = {flag for arm in board.arms for flag in arm.flags}
    drawn = "worlds" if board.imported is None else "cases"
    if "one_cluster" in flags:
        one = "all cases are of one world" if board.imported is None else "there is one case"
        yield f"no interval: {one}, and nothing is known of another."
    if "few_clusters" in flags:
        yield f"few {drawn}: an interval that rests on so few is wide."
    if board.n_unsafe:
        yield unsafe_line(board.n_unsafe)
    if board.leaked_sandboxes:
        yield leaked_line(board.leaked_sandboxes)
    if board.open_egress:
        yield f"egress was not wholly held: {board.open_egress}"
    if any(arm.n_not_judged for arm in board.arms):
        counts = ", ".join(f"{arm.arm} {arm.n_not_judged}" for arm in board.arms if arm.n_not_judged)
        bounds = "; ".join(f"{arm.arm} {shown(arm.bound_low)} to {shown(arm.bound_high)}" for arm in board.arms)
        yield f"valid cells without a score: {counts}; cells without a score bound the means: {bounds}"
    if any(arm.n_discarded for arm in board.arms):
        yield f"discarded results: {', '.join(_discarded(arm) for arm in board.arms if arm.n_discarded)}"
    if any(arm.stand_in for arm in board.arms):
        yield "* the stand-in model, no real model: these numbers show that the pipeline works, nothing more."


def _discarded(arm: ArmRow) -> str:
    return f"{arm.arm} {arm.n_discarded} ({'; '.join(map(harmless, arm.discard_reasons))})"
