from __future__ import annotations

from dataclasses import asdict
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

import click

from eval_pipeline.cli.output import emit, json_option, table, with_settings
from eval_pipeline.settings import Settings

if TYPE_CHECKING:
    from eval_pipeline.runner.planning import Plan
    from eval_pipeline.specs.lock import Locked
    from eval_pipeline.store.records import Records


@click.command()
@click.option("--monthly-cap", metavar="USD", help="What all experiments of a calendar month (UTC) may cost; `none`: no cap.")
@click.option("--confirm-above", metavar="USD", help="A run that may cost more asks first; `none`: nobody is asked.")
@json_option
@with_settings
def command(settings: Settings, monthly_cap: str | None, confirm_above: str | None, as_json: bool) -> None:
    """What this installation spends this month, on what and for whom, and what it may spend."""
    from eval_pipeline.store.records import open_records

    given = {"monthly_cap_usd": monthly_cap, "confirm_above_usd": confirm_above}
    values = {name: _usd(name, text) for name, text in given.items() if text is not None}
    with open_records(settings) as records:
        if values:
            records.spending.set(**values)
        month, rows = records.spending.month(), records.spending.by_experiment()
    data = {**asdict(month), "month": f"{month.month:%Y-%m}", "experiments": rows}

    def people() -> None:
        cap = "no cap" if month.monthly_cap_usd is None else f"of {month.monthly_cap_usd:f}"
        click.echo(f"{data['month']}: {month.committed_usd:.4f} USD spent or reserved, {cap}")
        asks = (
            "no run asks first" if month.confirm_above_usd is None else f"a run above {month.confirm_above_usd:f} USD asks first"
        )
        click.echo(asks)
        if rows:
            shown = [[row["experiment"], row["created_by"], f"{row['committed_usd']:.4f}"] for row in rows]
            table(["experiment", "created by", "USD"], shown, right=["USD"])

    emit(data, as_json, people)


def _usd(name: str, text: str) -> Decimal | None:
    from eval_pipeline.errors import SpecError

    if text == "none":
        return None
    try:
        value = Decimal(text)
    except InvalidOperation:
        value = Decimal(-1)
    if not value.is_finite() or value < 0:
        raise SpecError(f"{name} is {text!r}", hint="write a number of USD, or `none`")
    return value


def confirm(records: Records, locked: Locked, planned: Plan, *, yes: bool) -> None:
    """Ask before much is spent. Raises SpecError where nobody can be asked, click.Abort when the answer is no."""
    import sys

    from eval_pipeline.runner.planning import to_confirm

    error = None if yes else to_confirm(records, locked, planned)
    if error is None:
        return
    if not sys.stdin.isatty():
        raise error
    click.confirm(f"{str(error).partition(', and ')[0]}. Run them?", abort=True, err=True)
