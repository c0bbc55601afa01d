"""A cell's transcript, event by event and page by page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, Any

import click

from eval_pipeline.cli.output import NextPage, emit, harmless, json_option, with_settings
from eval_pipeline.cli.paging import cursor_option
from eval_pipeline.settings import Settings

_LINE_MAX_BYTES = 2**20
_TEXT_MAX = 400


@click.command(
    "transcript",
    epilog="""\b
Examples:
  evals cell transcript KEY --type usage
  evals cell transcript KEY --limit 20 --cursor 19 --json""",
)
@click.argument("key")
@click.option("--type", "kinds", multiple=True, help="Only events of this `type`; may be given again.")
@click.option("--limit", type=click.IntRange(min=1), default=200, show_default=True, help="So many events at most.")
@cursor_option
@json_option
@with_settings
def transcript(settings: Settings, key: str, kinds: tuple[str, ...], limit: int, cursor: str | None, as_json: bool) -> None:
    """What the agent did, one event a row, each with its number in the transcript.

    A line that is no JSON, or longer than 1 MiB, has its beginning as `text` in place of an `event`.
    """
    from eval_pipeline.cli.bundles import members
    from eval_pipeline.cli.cell import stored_cell

    after = _number(cursor)
    rows: list[dict[str, Any]] = []
    more = False
    with stored_cell(settings, key) as cell:
        for name, _, stream in members(settings, cell):
            if name != "out/transcript.jsonl":
                continue
            for row in _events(stream):
                if row["id"] <= after or (kinds and _kind(row) not in kinds):
                    continue
                if more := len(rows) == limit:
                    break
                rows.append(row)
            break
    following = NextPage(str(rows[-1]["id"]) if more else None)
    data = {"cell": str(cell.key), "events": rows}
    emit(data, as_json, lambda: click.echo("\n".join(_line(row) for row in rows) or "no events"), next_page=following)


def _number(cursor: str | None) -> int:
    from eval_pipeline.errors import SpecError

    if cursor is None:
        return -1
    if not cursor.isdecimal():
        raise SpecError(f"the cursor {cursor!r} is no number of an event", hint="give the `next` of the page before")
    return int(cursor)


def _events(stream: IO[bytes]) -> Iterator[dict[str, Any]]:
    number = 0
    while line := stream.readline(_LINE_MAX_BYTES):
        whole = line.endswith(b"\n") or len(line) < _LINE_MAX_BYTES
        yield {"id": number, **_event(line, whole)}
        while not whole:
            rest = stream.readline(_LINE_MAX_BYTES)
            whole = rest.endswith(b"\n") or len(rest) < _LINE_MAX_BYTES
        number += 1


def _event(line: bytes, whole: bool) -> dict[str, Any]:
    try:
        if whole:
            return {"event": json.loads(line)}
    except (ValueError, RecursionError):
        pass
    return {"text": line[: _LINE_MAX_BYTES // 16].decode("utf-8", "replace").rstrip("\n")}


def _kind(row: dict[str, Any]) -> str | None:
    event = row.get("event")
    return event.get("type") if isinstance(event, dict) else None


def _line(row: dict[str, Any]) -> str:
    event = row.get("event", row.get("text"))
    kind = _kind(row) or "-"
    rest = {key: value for key, value in event.items() if key != "type"} if isinstance(event, dict) else event
    text = rest if isinstance(rest, str) else json.dumps(rest, ensure_ascii=False)
    cut = text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}… ({len(text)} characters)"
    return harmless(f"{row['id']:>5}  {kind:<12} {cut}")
