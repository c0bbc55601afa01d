from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eval_pipeline.analysis.diffs import compared_in, diff_lines, dump_error, not_compared, summary_line
from eval_pipeline.cli.cell_transcript import transcript
from eval_pipeline.cli.output import emit, examples, harmless, json_option, note, shown, starts_sandboxes, table, with_settings
from eval_pipeline.settings import Settings

if TYPE_CHECKING:
    from eval_pipeline.analysis.tables import ScoredCell
    from eval_pipeline.store.judge_calls import JudgeSpend

_JSON_LOG_BYTES = 2**20


@click.group()
def command() -> None:
    """One cell: experiment/world.case/arm/trial."""


command.add_command(transcript)


@command.command("show", epilog=examples("evals cell show demo/harbour-spa.consents/base/0"))
@click.argument("key")
@json_option
@with_settings
def show(settings: Settings, key: str, as_json: bool) -> None:
    """Its result: answer, verdicts with reasons, usage, cost, attempts."""
    found = cell_data(settings, key)
    emit(found.data, as_json, lambda: show_cell(found))


@dataclass(frozen=True)
class Shown:
    cell: ScoredCell
    answer: str | None
    judged: JudgeSpend | None
    data: dict[str, Any]


def cell_data(settings: Settings, key: str) -> Shown:
    """What `cell show` tells. Raises SpecError, NotFound."""
    with stored_cell(settings, key) as cell:
        answer = _answer(settings, cell)
        judged = _judge_spend(settings, cell)
    data = {
        "cell": str(cell.key),
        "state": cell.state,
        "outcome": cell.view.outcome,
        "failure": cell.failure,
        "failures": cell.failures,
        "error_class": cell.error_class,
        "score": cell.score,
        "score_lower": cell.lower,
        "score_upper": cell.upper,
        "passed": cell.passed,
        "answer": answer,
        "cost_usd": cell.cost_usd,
        "cost_unknown": cell.cost_unknown,
        "cost_over_usd": cell.cost_over_usd,
        "sandbox_cost_usd": cell.sandbox_cost_usd,
        "sandbox_s": cell.sandbox_s,
        "sandbox_spent_usd": cell.sandbox_spent_usd,
        "sandbox_spent_s": cell.sandbox_spent_s,
        "latency_s": cell.latency_s,
        "usage": [usage.model_dump() for usage in cell.usages],
        "groups": cell.groups,
        "usage_source": cell.usage_source,
        "overhead_usd": cell.overhead_usd,
        "n_overhead_unknown": cell.n_overhead_unknown,
        "criteria": [row.__dict__ for row in cell.criteria],
        "error": cell.error,
        "world_diff": compared_in(cell),
        "adopted_from": cell.view.adopted_from,
        "judge": None if judged is None else asdict(judged),
        "secrets_found": cell.view.secrets_found,
        "attempts": [attempt.__dict__ for attempt in cell.view.attempts],
    }
    return Shown(cell, answer, judged, data)


def _judge_spend(settings: Settings, cell: ScoredCell) -> JudgeSpend | None:
    from eval_pipeline.store.records import read_records

    with read_records(settings) as records:
        return records.judge_calls.spend(cell.key.experiment).get(str(cell.key))


def first_line(text: str | None) -> str | None:
    return text and text.strip().partition("\n")[0]


def show_cell(found: Shown) -> None:
    from eval_pipeline.analysis.cell_cost import source_in_words

    cell, answer, judged = found.cell, found.answer, found.judged
    cost = None if cell.cost_usd is None else f"{cell.cost_usd:.6f}"
    click.echo(f"{cell.key}\n{cell.state}, {cell.view.outcome or 'no outcome yet'}; score {shown(cell.score)}", nl=False)
    click.echo(f" (between {shown(cell.lower)} and {shown(cell.upper)})" if cell.score is None else "", nl=False)
    click.echo(f", {shown(cost)} USD ({harmless(source_in_words(cell))}), {shown(cell.latency_s)} s")
    click.echo(_sandbox_line(cell))
    if len(cell.view.attempts) > 1:
        unknown = f"; of unknown cost: {cell.n_overhead_unknown}" if cell.n_overhead_unknown else ""
        click.echo(f"models in attempts that do not count: {cell.overhead_usd:.6f} USD{unknown}")
    if cell.cost_over_usd:
        click.echo(f"{cell.cost_over_usd:.6f} USD above its limit")
    if cell.failures:
        click.echo(f"failed: {', '.join(cell.failures)}")
    if cell.lacks_verdicts_as_refusal:
        click.echo("a refusal counts its own score where every criterion has a verdict; this one lacks some, so it counts 0")
    if cell.view.adopted_from is not None:
        gone = f", discarded there since: {harmless(cell.counted.discarded)}" if cell.counted and cell.counted.discarded else ""
        click.echo(f"adopted: the result is that of {cell.view.adopted_from}, which ran the same{gone}")
    if judged is not None:
        unknown = f", the cost of {judged.n_unpriced} unknown" if judged.n_unpriced else ""
        click.echo(f"judging it: {judged.n_calls} calls, {judged.cost_usd:.6f} USD{unknown}, {judged.latency_s:.2f} s")
    if cell.error:
        click.echo(f"error: {harmless(cell.error)}")
    click.echo(f"\n{harmless((answer or 'no answer').strip())}\n")
    _show_secrets(cell)
    if (compared := compared_in(cell)) is not None:
        click.echo(f"changed in the application: {harmless(summary_line(compared))}\n")
    elif (why := dump_error(cell)) is not None:
        click.echo(f"changed in the application: not known: {harmless(first_line(why) or why)}\n")
    rows = [[row.id, row.points, row.verdict if row.status == "ok" else row.status, row.reason] for row in cell.criteria]
    table(["criterion", "points", "verdict", "reason"], rows, right=["points", "verdict"])
    if cell.groups:
        table(["group", "score"], [[name, score] for name, score in cell.groups.items()], "\nby group", ["score"])
    # The whole error stands above; here it would fill the table
    attempts = [[a.number, a.sandbox, a.outcome, a.created_at, a.ended_at, first_line(a.error)] for a in cell.view.attempts]
    if attempts:
        table(["attempt", "sandbox", "outcome", "started", "ended", "error"], attempts, "\nattempts")
    if any(attempt.error for attempt in cell.view.attempts) and any(attempt.bundle for attempt in cell.view.attempts):
        click.echo(f"what the agent printed: evals cell logs {cell.view.key}")
    isolated: dict[str, list[str]] = {}
    for attempt in cell.view.attempts:
        if (isolation := attempt.evidence.get("isolation")) is not None:
            lacks = f", without: {', '.join(isolation['missing'])}" if isolation["missing"] else ""
            isolated.setdefault(f"{isolation['level']}{lacks}", []).append(str(attempt.number))
    for said, numbers in isolated.items():
        click.echo(f"isolation of attempt {', '.join(numbers)}: {said}")
    for attempt in cell.view.attempts:
        if count := attempt.evidence.get("egress_refused_count"):
            click.echo(f"egress refused in attempt {attempt.number}: {count}")
            kinds = attempt.evidence["egress_refused"]
            table(["host", "port", "times", "reason"], [[one["host"], one["port"], one["count"], one["reason"]] for one in kinds])


def _show_secrets(cell: ScoredCell) -> None:
    if (found := cell.view.secrets_found) is None:
        return
    replaced = ", ".join(f"{name} {n} times" for name, n in found["replaced"].items())
    click.echo(f"it wrote secrets that it was given: {replaced or 'none in its texts'}")
    for one in found["quarantined"]:
        click.echo(f"in quarantine, and judged by nobody: {harmless(one['file'])}: {harmless(one['why'])}")
    if found.get("left_out"):
        click.echo(f"{found['left_out']} more of the same kind, kept nowhere")


def _sandbox_line(cell: ScoredCell) -> str:
    """What it cost, and what it took with all its attempts."""
    usd = None if cell.sandbox_cost_usd is None else f"{cell.sandbox_cost_usd:.6f}"
    rate = cell.counted.sandbox_rate if cell.counted else None
    line = f"sandbox: {shown(usd)} USD, {shown(cell.sandbox_s)} s" + (f", at the rate {rate}" if rate else "")
    if len(cell.view.attempts) > 1:
        line += f"; with all attempts {cell.sandbox_spent_usd:.6f} USD, {cell.sandbox_spent_s:.1f} s"
    return line + (f"; of unknown cost: {cell.n_sandbox_unknown}" if cell.n_sandbox_unknown else "")


@command.command("logs")
@click.argument("key")
@click.option("--transcript", is_flag=True, help="The agent's transcript instead of its stdout and stderr.")
@click.option("--raw", is_flag=True, help="The bytes as they are, whatever they are.")
@json_option
@with_settings
def logs(settings: Settings, key: str, transcript: bool, raw: bool, as_json: bool) -> None:
    """What the agent printed, or its transcript. With --json the last MiB of each: `cut` has the size of what is longer."""
    from eval_pipeline.cli.bundles import last_bytes, members, print_raw, print_text

    only = "out/transcript.jsonl" if transcript else "logs/"
    with stored_cell(settings, key) as cell:
        found = ((name, size, stream) for name, size, stream in members(settings, cell) if name.startswith(only))
        if as_json:
            kept = {name: (size, last_bytes(stream, _JSON_LOG_BYTES)) for name, size, stream in found}
            texts = {name: data.decode("utf-8", "replace") for name, (_, data) in kept.items()}
            cut = {name: size for name, (size, data) in kept.items() if size > len(data)}
            emit({"cell": str(cell.key), "logs": texts, "cut": cut}, as_json, lambda: None)
            return
        for name, _, stream in found:
            if raw:
                print_raw(stream)
                continue
            if not transcript:
                click.echo(harmless(f"--- {name.removeprefix('logs/')}"))
            print_text(stream)
        if not raw and not transcript:
            _show_ends(cell)


def _show_ends(cell: ScoredCell) -> None:
    """What there is beside the logs; of a cell whose agent never ran it is all."""
    attempts = cell.view.attempts
    if not attempts and cell.view.adopted_from is None:
        click.echo(f"nothing is stored: it has not begun ({cell.state})")
    elif attempts and not any(attempt.bundle for attempt in attempts):
        click.echo("no output is stored: its agent left none, or never ran. What is known of its attempts:")
    for attempt in attempts:
        if attempt.error:
            click.echo(f"--- error of attempt {attempt.number}\n{harmless(attempt.error)}")


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

    with stored_cell(settings, key) as cell:
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
    from eval_pipeline.cli.bundles import members, write_below

    rows: list[dict[str, Any]] = []
    with stored_cell(settings, key) as cell:
        for path, size, stream in members(settings, cell):
            if path.startswith("out/files/"):
                name = path.removeprefix("out/files/")
                if into is not None:
                    write_below(into, name, stream)
                rows.append({"file": name.encode("utf-8", "backslashreplace").decode(), "size_bytes": size})
    if into is not None:
        note(f"{len(rows)} files written below {into}")
    emit({"cell": str(cell.key), "files": rows}, as_json, lambda: table(["file", "size_bytes"], [list(r.values()) for r in rows]))


@command.command("quarantine")
@click.argument("key")
@click.option("--into", type=click.Path(path_type=Path), help="Write the files below this folder. They hold secrets.")
@json_option
@with_settings
def quarantine(settings: Settings, key: str, into: Path | None, as_json: bool) -> None:
    """The files that were put aside because they hold a secret. Nothing else reads them; a number takes the place of a name."""
    from eval_pipeline.cli.bundles import write_below
    from eval_pipeline.store.artifacts import open_quarantine

    with stored_cell(settings, key) as cell:
        found: list[dict[str, Any]] = (cell.view.secrets_found or {}).get("quarantined", [])
    rows = [{"number": n, **one} for n, one in enumerate(found, 1)]
    for row in rows if into is not None else ():
        with open_quarantine(settings).open(row["digest"]) as stream:
            write_below(into or Path(), f"{row['number']}{Path(row['file']).suffix[:10]}", stream)
    if into is not None:
        note(f"{len(rows)} files written below {into}; they hold secrets")
    columns = ["number", "file", "size_bytes", "why"]
    emit({"cell": str(cell.key), "files": rows}, as_json, lambda: table(columns, [[row[c] for c in columns] for row in rows]))


@command.command("diff")
@click.argument("key")
@json_option
@with_settings
def diff(settings: Settings, key: str, as_json: bool) -> None:
    """What the agent changed in the application: documents, rows, permissions, blobs."""
    from eval_pipeline.domain.world_diff import WorldDiff
    from eval_pipeline.errors import NotFound
    from eval_pipeline.store.artifacts import open_store
    from eval_pipeline.store.records import read_records

    with stored_cell(settings, key) as cell:
        compared = compared_in(cell)
    if compared is None:
        with read_records(settings) as records:
            dumps = records.ledger.experiment(cell.key.experiment).run.arm(cell.key.arm).manifest.dump is not None
        raise NotFound(f"no state was compared for {key}", hint=harmless(not_compared(cell, dumps=dumps)))
    with open_store(settings).open(compared["digest"]) as stream:
        found = WorldDiff.model_validate_json(stream.read())
    emit(found.model_dump(mode="json"), as_json, lambda: click.echo(harmless("\n".join(diff_lines(found)))))


@contextmanager
def stored_cell(settings: Settings, key: str) -> Iterator[ScoredCell]:
    from eval_pipeline.analysis.load import load_table
    from eval_pipeline.domain.ids import CellKey
    from eval_pipeline.errors import NotFound, SpecError
    from eval_pipeline.store.records import read_records

    try:
        parsed = CellKey.parse(key)
    except ValueError as error:
        raise SpecError(str(error), hint="`evals experiment cells EXPERIMENT` lists them") from None
    with read_records(settings) as records:
        experiment = records.ledger.experiment(parsed.experiment)  # its name will do
        found = load_table(records, experiment, [str(replace(parsed, experiment=experiment.id))], whole=True)
        if not found:
            raise NotFound(f"there is no cell {key!r}", hint=f"`evals experiment cells {experiment.id}` lists them")
        yield found[0]


def _answer(settings: Settings, cell: ScoredCell) -> str | None:
    from eval_pipeline.cli.bundles import members
    from eval_pipeline.runner.output import RESULT_MAX_BYTES, parse_result

    for name, size, stream in members(settings, cell):
        if name == "out/result.json":
            return parse_result(stream.read()).answer if size <= RESULT_MAX_BYTES else None
    return None
