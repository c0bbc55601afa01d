from __future__ import annotations

from typing import TYPE_CHECKING

import click

from eval_pipeline.cli.output import (
    alarm_line,
    emit,
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
    from eval_pipeline.analysis.leaderboard import ArmRow, Leaderboard


@click.command()
@click.argument("name")
@json_option
@with_settings
def command(settings: Settings, name: str, as_json: bool) -> None:
    """Arms side by side: score with its interval, pass rate, cost, latency, and what is missing.

    NAME is an experiment's id, or its name for the newest of that name.
    """
    from eval_pipeline.analysis.load import load_leaderboard
    from eval_pipeline.store.records import read_records

    with read_records(settings) as records:
        board = load_leaderboard(records, records.ledger.experiment(name))
    emit(board.as_data(), as_json, lambda: show(board))


def show(board: Leaderboard) -> None:
    from eval_pipeline.analysis.standing import expected

    rows = [_row(arm, board) for arm in board.arms]
    columns = [
        "arm",
        "score",
        "95% CI",
        "pass",
        "USD/case",
        "sandbox",
        "p50 s",
        "p95 s",
        "valid",
        "not judged",
    ]
    table(columns, rows, f"{board.experiment} ({board.status})", right=columns[1:])
    for alarm in board.alarms:
        click.echo(alarm_line(str(alarm)))
    kinds = list(board.arms[0].failures)
    table(["arm", *kinds], [[arm.arm, *arm.failures.values()] for arm in board.arms], "\ncells that failed, by kind", right=kinds)
    click.echo(expected(board.n_cells - sum(board.missing.values()), board.n_cells, board.missing))
    click.echo("95% CI is for new cases. - means: could not be had, or too few cells to say.")
    click.echo(f"spent: {board.spent_usd:.4f} USD for models, {board.sandbox_spent_usd:.4f} for sandboxes; over all attempts")
    if board.overhead_usd or board.n_overhead_unknown:
        unknown = f"; of unknown cost: {board.n_overhead_unknown}" if board.n_overhead_unknown else ""
        click.echo(f"of that for models in attempts that do not count: {board.overhead_usd:.4f} USD{unknown}")
    if board.n_measured:
        click.echo(
            f"usage: measured in {board.n_measured} of {board.n_cells} cells; where it is not, agents report it themselves"
        )
    if board.n_sandbox_unknown:
        click.echo(f"attempts whose sandbox has no known cost: {board.n_sandbox_unknown}")
    if (judge := board.judge) is not None:
        unknown = f", the cost of {judge.n_unpriced} unknown" if judge.n_unpriced else ""
        click.echo(
            f"judge {judge.model} ({judge.version}): {judge.n_calls} calls, {judge.cost_usd:.6f} USD{unknown}; apart from the arms' cost"
        )
    flags = {flag for arm in board.arms for flag in arm.flags}
    if "one_cluster" in flags:
        click.echo("no interval: all cases are of one world, and nothing is known of another.")
    if "few_clusters" in flags:
        click.echo("few worlds: an interval that rests on so few is wide.")
    if board.n_unsafe:
        click.echo(unsafe_line(board.n_unsafe))
    if board.leaked_sandboxes:
        click.echo(leaked_line(board.leaked_sandboxes))
    if board.open_egress:
        click.echo(f"egress was not wholly held: {board.open_egress}")
    for reason in board.reasons:
        click.echo(f"provisional: {reason}")
    if any(arm.n_not_judged for arm in board.arms):
        bounds = [f"{arm.arm} {shown(arm.bound_low)} to {shown(arm.bound_high)}" for arm in board.arms]
        click.echo(f"cells without a score bound the means: {'; '.join(bounds)}")
    if any(arm.n_discarded for arm in board.arms):
        click.echo(f"discarded results: {', '.join(_discarded(arm) for arm in board.arms if arm.n_discarded)}")
    if any(arm.stand_in for arm in board.arms):
        click.echo("* the stand-in model, no real model: these numbers show that the pipeline works, nothing more.")


def _discarded(arm: ArmRow) -> str:
    return f"{arm.arm} {arm.n_discarded} ({'; '.join(map(harmless, arm.discard_reasons))})"


def _row(arm: ArmRow, board: Leaderboard) -> list[str]:
    marks = ("*" if arm.stand_in else "") + (" (baseline)" if arm.arm == board.baseline else "")
    marks += " !! FAILED AS A WHOLE" if any(alarm.arm == arm.arm for alarm in board.alarms) else ""
    interval = "-" if arm.ci_low is None else f"{shown(arm.ci_low)} to {shown(arm.ci_high)}"
    money = ["-" if usd is None else f"{usd:.6f}" for usd in (arm.cost_usd_mean, arm.sandbox_usd_mean)]
    latency = [_latency(arm.latency_p50_s, "p50" in arm.latency_above), _latency(arm.latency_p95_s, "p95" in arm.latency_above)]
    counts = [f"{arm.n_valid}/{arm.n_cells}", str(arm.n_not_judged)]
    return [arm.arm + marks, shown(arm.score), interval, shown(arm.pass_rate), *money, *latency, *counts]


def _latency(value_s: float | None, above: bool) -> str:
    return "-" if value_s is None else f"{'>' if above else ''}{value_s:.2f}"
