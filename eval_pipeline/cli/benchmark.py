from __future__ import annotations

from typing import TYPE_CHECKING

import click

from eval_pipeline.cli.output import count, dry_run_option, emit, json_option, table, with_settings
from eval_pipeline.settings import Settings

if TYPE_CHECKING:
    from eval_pipeline.analysis.benchmark import BenchmarkBoard
    from eval_pipeline.analysis.board_text import Grid


@click.group()
def command() -> None:
    """Arms of many experiments in one table, over months: the same cases, judged the same way."""


@command.command("list")
@json_option
@with_settings
def list_(settings: Settings, as_json: bool) -> None:
    """Every benchmark, with the number of its arms."""
    from eval_pipeline.store.records import read_records

    with read_records(settings) as records:
        names = records.benchmarks.names()
    rows = [[name, n] for name, n in names.items()]
    emit([{"benchmark": name, "n_arms": n} for name, n in names.items()], as_json, lambda: table(["benchmark", "arms"], rows))


@command.command()
@click.argument("name")
@click.argument("experiment")
@click.option("--arm", "arms", multiple=True, help="Only this arm; may be given again.")
@dry_run_option
@json_option
@with_settings
def add(settings: Settings, name: str, experiment: str, arms: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    """Enter the arms of an experiment. The first one makes the benchmark NAME.

    Refused when its cases, worlds, trials, rubrics or judge are not those of the entries; what differs is said.
    """
    from eval_pipeline.analysis.load_benchmark import add_arms
    from eval_pipeline.specs.library import given_name
    from eval_pipeline.store.records import read_records

    given_name(name)
    with read_records(settings) as records:
        row = records.ledger.experiment(experiment)
        added = add_arms(records, name, row, arms, dry_run=dry_run)
    new = [arm for arm, is_new in added.items() if is_new]
    old = [arm for arm, is_new in added.items() if not is_new]

    def show() -> None:
        entered = "would be entered" if dry_run else "entered"
        click.echo(f"{name}: {count(len(new), 'arm', 'arms')} of {row.id} {entered}{': ' + ', '.join(new) if new else ''}")
        if old:
            click.echo(f"there already, with the result they entered with: {', '.join(old)}")

    data = {"benchmark": name, "experiment": row.id, "entered": new, "there_already": old, "dry_run": dry_run}
    emit(data, as_json, show)


@command.command()
@click.argument("name")
@click.argument("experiment")
@click.argument("arm")
@dry_run_option
@json_option
@with_settings
def remove(settings: Settings, name: str, experiment: str, arm: str, dry_run: bool, as_json: bool) -> None:
    """Take an arm out of a benchmark. Its results stay where they are."""
    from eval_pipeline.errors import NotFound
    from eval_pipeline.store.records import read_records

    with read_records(settings) as records:
        row = records.ledger.experiment(experiment)
        there = any((one.arm, one.experiment) == (arm, row.id) for one in records.benchmarks.entries(name))
        if not (there if dry_run else records.benchmarks.remove(name, arm, row.id)):
            raise NotFound(f"no arm {arm!r} of {row.id} in benchmark {name!r}", hint=f"evals benchmark show {name} lists them")
    data = {"benchmark": name, "experiment": row.id, "removed": arm, "dry_run": dry_run}
    emit(data, as_json, lambda: click.echo(f"{name}: {arm} {'would be' if dry_run else 'is'} out"))


@command.command()
@click.argument("name")
@click.option("--baseline", metavar="ARM", help="What the others are compared with; without it the first that entered.")
@json_option
@with_settings
def show(settings: Settings, name: str, baseline: str | None, as_json: bool) -> None:
    """All arms, compared on the same cases; score and cost by commit of each config."""
    from eval_pipeline.analysis.load_benchmark import load_benchmark
    from eval_pipeline.store.records import read_records

    with read_records(settings) as records:
        board = load_benchmark(records, name, baseline)
    emit(board.as_data(), as_json, lambda: _people(board))


def _people(board: BenchmarkBoard) -> None:
    from eval_pipeline.analysis.benchmark_text import entries_grid, standing, trend_grid
    from eval_pipeline.analysis.board_text import NEW_CASES, comparison_grid

    _grid(entries_grid(board))
    if board.comparisons:
        click.echo()
        _grid(comparison_grid(board.comparisons, board.baseline))
    for line in board.lines:
        if len(line.points) > 1:
            click.echo()
            _grid(trend_grid(line))
    for said in [NEW_CASES, *standing(board)]:
        click.echo(said)


def _grid(grid: Grid) -> None:
    table(grid.columns, grid.rows, grid.title, right=grid.columns[1:])
