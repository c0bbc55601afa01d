from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eval_pipeline.cli.diffs import diff_lines, summary_line
from eval_pipeline.cli.output import emit, harmless, json_option, note, shown, starts_sandboxes, table, with_settings
from eval_pipeline.settings import Settings

if TYPE_CHECKING:
    from eval_pipeline.analysis.tables import ScoredCell

_RESULT_MAX_BYTES = 16 * 2**20


@click.group()
def command() -> None:
    """One cell: experiment/world.case/arm/trial."""


@command.command("show")
@click.argument("key")
@json_option
@with_settings
def show(settings: Settings, key: str, as_json: bool) -> None:
    """Its result: answer, verdicts with reasons, usage, cost, attempts."""
    with _cell(settings, key) as cell:
        answer = _answer(settings, cell)
    data = {
        "cell": str(cell.key),
        "state": cell.state,
        "outcome": cell.view.outcome,
        "score": cell.score,
        "score_lower": cell.lower,
        "score_upper": cell.upper,
        "passed": cell.passed,
        "answer": answer,
        "cost_usd": cell.cost_usd,
        "latency_s": cell.latency_s,
        "usage": [usage.model_dump() for usage in cell.usages],
        "criteria": [row.__dict__ for row in cell.criteria],
        "error": cell.error,
        "world_diff": _compared(cell),
        "attempts": [attempt.__dict__ for attempt in cell.view.attempts],
    }
    emit(data, as_json, lambda: _show_people(cell, answer))


def _show_people(cell: ScoredCell, answer: str | None) -> None:
    cost = None if cell.cost_usd is None else f"{cell.cost_usd:.6f}"
    click.echo(f"{cell.key}\n{cell.state}, {cell.view.outcome or 'no outcome yet'}; score {shown(cell.score)}", nl=False)
    click.echo(f" (between {shown(cell.lower)} and {shown(cell.upper)})" if cell.score is None else "", nl=False)
    click.echo(f", {shown(cost)} USD, {shown(cell.latency_s)} s")
    if cell.error:
        click.echo(f"error: {harmless(cell.error)}")
    click.echo(f"\n{harmless((answer or 'no answer').strip())}\n")
    if (compared := _compared(cell)) is not None:
        click.echo(f"changed in the application: {summary_line(compared)}\n")
    rows = [[row.id, row.points, row.verdict if row.status == "ok" else row.status, row.reason] for row in cell.criteria]
    table(["criterion", "points", "verdict", "reason"], rows, right=["points", "verdict"])
    attempts = [[a.number, a.sandbox, a.outcome, a.created_at, a.ended_at, a.error] for a in cell.view.attempts]
    table(["attempt", "sandbox", "outcome", "started", "ended", "error"], attempts, "\nattempts")
    if any(attempt.error for attempt in cell.view.attempts):
        click.echo(f"what the agent printed: evals cell logs {cell.view.key}")
    for attempt in cell.view.attempts:
        if (isolation := attempt.evidence.get("isolation")) is not None:
            lacks = f", without: {', '.join(isolation['missing'])}" if isolation["missing"] else ""
            click.echo(f"isolation of attempt {attempt.number}: {isolation['level']}{lacks}")
        if count := attempt.evidence.get("egress_refused_count"):
            click.echo(f"egress refused in attempt {attempt.number}: {count}")
            kinds = attempt.evidence["egress_refused"]
            table(["host", "port", "times", "reason"], [[one["host"], one["port"], one["count"], one["reason"]] for one in kinds])


@command.command("logs")
@click.argument("key")
@click.option("--transcript", is_flag=True, help="The agent's transcript instead of its stdout and stderr.")
@json_option
@with_settings
def logs(settings: Settings, key: str, transcript: bool, as_json: bool) -> None:
    """What the agent printed, or its transcript."""
    with _cell(settings, key) as cell:
        found = dict(_members(settings, cell, only="out/transcript.jsonl" if transcript else "logs/"))
    texts = {name: data.decode("utf-8", "replace") for name, data in found.items()}

    def people() -> None:
        for name, text in texts.items():
            if not transcript:
                note(f"--- {name.removeprefix('logs/')}")
            click.echo(harmless(text) if text else "(empty)", nl=not text.endswith("\n"))
        if cell.error:
            note(f"error: {harmless(cell.error)}")

    emit({"cell": str(cell.key), "logs": texts}, as_json, people)


@command.command("shell")
@click.argument("key")
@click.argument("argv", nargs=-1)
@click.option("--egress", is_flag=True, help="Let it reach what the agent could; secrets are never in it.")
@click.option("--live", is_flag=True, help="In the sandbox of the cell that runs now, within its limits and beside its agent.")
@json_option
@with_settings
@starts_sandboxes
def shell(settings: Settings, key: str, argv: tuple[str, ...], egress: bool, live: bool, as_json: bool) -> int:
    """A shell in a fresh sandbox made as the cell's, with what the cell left below /out. `-- COMMAND` in place of a shell.

    Piped input works: echo 'ls /app' | evals cell shell KEY. The exit code is the shell's; with --json its output goes to stderr.
    """
    import asyncio

    from eval_pipeline.runner.cell_shell import cell_shell

    with _cell(settings, key) as cell:
        where = cell.view.attempts[-1].sandbox if cell.view.attempts else None
        bundle = next(
            (a.bundle for a in [cell.counted, *reversed(cell.view.attempts)] if a is not None and a.bundle is not None), None
        )
        parsed = cell.key
    ended = asyncio.run(
        cell_shell(
            settings, parsed, bundle=bundle, running=where if live else None, live=live, egress=egress, argv=argv, quiet=as_json
        )
    )
    emit({"cell": str(parsed), **asdict(ended)}, as_json, lambda: None)
    return ended.exit_code


@command.command("files")
@click.argument("key")
@click.option("--into", type=click.Path(path_type=Path), help="Write the files below this folder.")
@json_option
@with_settings
def files(settings: Settings, key: str, into: Path | None, as_json: bool) -> None:
    """The files the agent wrote."""
    with _cell(settings, key) as cell:
        found = {name.removeprefix("out/files/"): data for name, data in _members(settings, cell, only="out/files/")}
    if into is not None:
        for name, data in found.items():
            _write_below(into, name, data)
        note(f"{len(found)} files written below {into}")
    rows = [{"file": name.encode("utf-8", "backslashreplace").decode(), "size_bytes": len(data)} for name, data in found.items()]
    emit({"cell": str(cell.key), "files": rows}, as_json, lambda: table(["file", "size_bytes"], [list(r.values()) for r in rows]))


@command.command("diff")
@click.argument("key")
@json_option
@with_settings
def diff(settings: Settings, key: str, as_json: bool) -> None:
    """What the agent changed in the application: documents, rows, permissions, blobs."""
    from eval_pipeline.domain.world_diff import WorldDiff
    from eval_pipeline.errors import NotFound
    from eval_pipeline.store.artifacts import open_store

    with _cell(settings, key) as cell:
        compared = _compared(cell)
    if compared is None:
        why = next((a.evidence["dump_error"] for a in reversed(cell.view.attempts) if "dump_error" in a.evidence), None)
        hint = harmless(why) if why else "an app's manifest says with `dump` how its state is written"
        raise NotFound(f"no state was compared for {key}", hint=hint)
    with open_store(settings).open(compared["digest"]) as stream:
        found = WorldDiff.model_validate_json(stream.read())
    emit(found.model_dump(mode="json"), as_json, lambda: click.echo(harmless("\n".join(diff_lines(found)))))


def _compared(cell: ScoredCell) -> dict[str, Any] | None:
    """Digest and summary of the world_diff, of the counted attempt or of the last that has one."""
    tried = [attempt for attempt in [cell.counted, *reversed(cell.view.attempts)] if attempt is not None]
    return next((found for attempt in tried if (found := attempt.evidence.get("world_diff")) is not None), None)


@contextmanager
def _cell(settings: Settings, key: str) -> Iterator[ScoredCell]:
    from eval_pipeline.analysis.load import load_table
    from eval_pipeline.domain.ids import CellKey
    from eval_pipeline.errors import NotFound, SpecError
    from eval_pipeline.store.records import open_records

    try:
        parsed = CellKey.parse(key)
    except ValueError as error:
        raise SpecError(str(error), hint="`evals experiment cells EXPERIMENT` lists them") from None
    with open_records(settings) as records:
        experiment = records.ledger.experiment(parsed.experiment)  # its name will do
        found = load_table(records, experiment, [str(replace(parsed, experiment=experiment.id))])
        if not found:
            raise NotFound(f"there is no cell {key!r}", hint=f"`evals experiment cells {experiment.id}` lists them")
        yield found[0]


def _members(settings: Settings, cell: ScoredCell, only: str = "") -> Iterator[tuple[str, bytes]]:
    """Name and content of the files whose name begins with `only`, of the counted attempt or of the last that left a bundle."""
    from eval_pipeline.store.artifacts import open_store

    bundles = [a.bundle for a in [cell.counted, *reversed(cell.view.attempts)] if a is not None and a.bundle is not None]
    if not bundles:
        return
    with open_store(settings).open(bundles[0]) as stream, tarfile.open(fileobj=stream, mode="r|gz") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() and member.name.startswith(only) else None
            if content is not None:
                yield member.name, content.read()


def _answer(settings: Settings, cell: ScoredCell) -> str | None:
    from eval_pipeline.domain.outcome import read_result

    for name, data in _members(settings, cell, only="out/result.json"):
        if name == "out/result.json" and len(data) <= _RESULT_MAX_BYTES:
            try:
                return read_result(json.loads(data)).answer
            except (ValueError, RecursionError):
                return None
    return None


def _write_below(folder: Path, name: str, data: bytes) -> None:
    from eval_pipeline.errors import StoreError

    target = folder / name
    if not target.resolve().is_relative_to(folder.resolve()):
        raise StoreError(f"the file name {name!r} leads out of {folder}")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
