from __future__ import annotations

import re

import click

from eval_pipeline.cli.judge_calibrate import calibrate
from eval_pipeline.cli.judge_review import label, review
from eval_pipeline.cli.output import emit, json_option, table, with_settings
from eval_pipeline.settings import Settings


@click.group()
def command() -> None:
    """Judges: LLMs that decide criteria."""


@command.command("limits")
@click.argument("pool", required=False)
@click.option("--calls", type=click.IntRange(min=1), help="So many at once.")
@click.option("--per-minute", type=click.IntRange(min=1), help="So many a minute.")
@json_option
@with_settings
def limits(settings: Settings, pool: str | None, calls: int | None, per_minute: int | None, as_json: bool) -> None:
    """How many calls of judges are made at once and a minute.

    In the whole installation; with an option, set it. POOL is `anthropic`, `openai`, or host:port of a base_url; without it the limit of every pool that has none of its own.
    """
    from eval_pipeline.errors import SpecError
    from eval_pipeline.store.judge_calls import CALLS, CALLS_PER_MINUTE
    from eval_pipeline.store.records import open_records

    if pool is not None and not re.fullmatch(r"anthropic|openai|[^\s/@]+(:\d+)?", pool):
        raise SpecError(
            f"{pool!r} is no pool of a judge", hint="name `anthropic`, `openai`, or HOST[:PORT] of the judge's base_url"
        )
    with open_records(settings) as records:
        for name, value in ((CALLS, calls), (CALLS_PER_MINUTE, per_minute)):
            if value is not None:
                records.judge_calls.set_limit(name, pool, value)
        rows = records.judge_calls.limits()
    emit(rows, as_json, lambda: table(["limit", "value"], list(rows.items()), right=["value"]))


command.add_command(review)
command.add_command(label)
command.add_command(calibrate)
