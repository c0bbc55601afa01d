"""Pages of a list whose order never changes: a cursor names the last item that was had."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from eval_pipeline.cli.output import NextPage
from eval_pipeline.errors import NotFound

Command = TypeVar("Command", bound=Callable[..., Any])


def limit_option(command: Command) -> Command:
    return click.option("--limit", type=click.IntRange(min=1), help="So many at most; all when it is not given.")(command)


def cursor_option(command: Command) -> Command:
    return click.option("--cursor", help="Go on after it: the `next` of the page before.")(command)


@dataclass(frozen=True)
class Page:
    keys: list[str]
    following: NextPage


def page(every: Sequence[str], wanted: Collection[str], limit: int | None, cursor: str | None, hint: str) -> Page:
    """The first `limit` of those wanted that come after the cursor, which need not be wanted itself. Raises NotFound."""
    start = 0
    if cursor is not None:
        if cursor not in every:
            raise NotFound(f"the cursor {cursor!r} is none of them", hint=hint)
        start = every.index(cursor) + 1
    left = [key for key in every[start:] if key in wanted]
    keys = left if limit is None else left[:limit]
    return Page(keys, NextPage(keys[-1] if len(keys) < len(left) else None))
