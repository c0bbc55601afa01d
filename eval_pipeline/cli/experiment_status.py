"""How an experiment stands, and why what is open is open."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eval_pipeline.cli.output import (
    alarm_line,
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
from eval_pipeline.domain.cell import CellState
from eval_pipeline.settings import Settings

if TYPE_CHECKING:
    from eval_pipeline.analysis.standing import Waiting
    from eval_pipeline.store.ledger import ExperimentRow
    from eval_pipeline.store.records import Records

FEW = 20


@click.command("status", epilog=examples("evals experiment status demo --watch"))
@click.argument("name")
@click.option("--watch", is_flag=True, help="Follow it until nobody works on it any more.")
@click.option("--cells", "all_cells", is_flag=True, help=f"What each open cell waits for, also when they are more than {FEW}.")
@json_option
@with_settings
def status(settings: Settings, name: str, watch: bool, all_cells: bool, as_json: bool) -> None:
    """How far it is: cells, spend, who works on it, time left.

    With what each open cell waits for.
    """
    from eval_pipeline.cli.launch import WATCH_POLL_S, is_worked_on
    from eval_pipeline.cli.progress import Progress
    from eval_pipeline.store.records import read_records

    with read_records(settings) as records:
        row = records.ledger.experiment(name)
        if watch:
            with Progress(records, row) as progress:
                while is_worked_on(settings, records, row.id):
                    progress.update()
                    time.sleep(WATCH_POLL_S)
                progress.update(last=True)
            row = records.ledger.experiment(row.id)
        data = standing(settings, records, row, all_cells)
    emit(data, as_json, lambda: _show(data))


def standing(settings: Settings, records: Records, row: ExperimentRow, all_cells: bool) -> dict[str, Any]:
    from eval_pipeline.analysis.load import load_table
    from eval_pipeline.analysis.standing import alarms, died_at, eta_s, explain
    from eval_pipeline.analysis.tables import count_failures
    from eval_pipeline.cli.experiment_report import run_command
    from eval_pipeline.cli.launch import log_of
    from eval_pipeline.cli.progress import status_of
    from eval_pipeline.runner.room import no_room
    from eval_pipeline.scoring.sandbox_prices import listed
    from eval_pipeline.store.standing import open_cells, pace

    tally = records.views.tallies(row.id)[row.id]
    waiting = open_cells(records.database, row.id)
    every = records.views.cells(row.id)
    engines = records.leases.engines_of(row.id)
    rates = listed(row.run.backend, settings.modal.region if row.run.backend == "modal" else None)
    blocked = None if engines else no_room(records, row, rates)
    explained = [explain(cell, blocked and blocked.waits_for) for cell in waiting]
    log = log_of(settings, row.id)
    return {
        "experiment": row.id,
        "name": row.name,
        "status": status_of(row, tally),
        "n_cells": row.n_cells,
        "n_done": tally.n_done,
        "states": tally.states,
        "outcomes": tally.outcomes,
        "failures": count_failures(load_table(records, row)),
        "n_unsafe": sum(cell.unsafe for cell in every),
        "open_egress": next(filter(None, (cell.open_egress for cell in every)), None),
        "n_with_secrets": sum(cell.secrets_found is not None for cell in every),
        "n_quarantined": sum(cell.n_quarantined for cell in every),
        "leaked_sandboxes": records.views.leaked(),
        "created_by": row.created_by,
        "budget_usd": row.budget_usd,
        "budget_cells": row.budget_cells,
        "begun_cells": row.begun_cells,
        "budget_wall_s": row.budget_wall_s,
        "worked_s": records.spending.worked_s(row.id),
        "committed_usd": row.committed_usd,
        "eta_s": eta_s(pace(records.database, row.id)),
        "engine_died_at": None if engines else died_at(waiting) or _died_before(settings, row.id, log),
        "engine_log": str(log) if log.is_file() else None,
        "blocked": None if blocked is None else asdict(blocked),
        "run_command": run_command(settings, row),
        "alarms": [{**asdict(alarm), "text": str(alarm)} for alarm in alarms(records.database, row.id)],
        "engines": [
            {"engine": engine.id, "kind": engine.kind, "pid": engine.pid, "started_at": engine.started_at} for engine in engines
        ],
        "open_cells": [asdict(one) for one in (explained if all_cells or len(explained) <= FEW else [])],
        "n_open": len(explained),
        "waiting": _counted(explained),
        "errors": [{"cell": one.cell, "error": one.error} for one in explained if one.error][:FEW],
    }


def _died_before(settings: Settings, experiment: str, log: Path) -> datetime | None:
    """Of an engine that left no cell behind: when it last wrote. None when none died."""
    from eval_pipeline.store.liveness import died_driving

    if not log.is_file() or not died_driving(settings, experiment):
        return None
    return datetime.fromtimestamp(log.stat().st_mtime, UTC)


def _counted(cells: list[Waiting]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for cell in cells:
        waits_for = cell.waits_for or "nothing: its attempts are used up"
        counts[waits_for] = counts.get(waits_for, 0) + 1
    return counts


def _show(data: dict[str, Any]) -> None:
    from eval_pipeline.analysis.standing import expected
    from eval_pipeline.cli.progress import duration, failures_line, money, outcomes_line, states_line

    click.echo(f"{data['experiment']}: {data['status']}; {expected(data['n_done'], data['n_cells'], data['states'])}")
    click.echo(f"states: {states_line(data['states'])}")
    click.echo(f"outcomes: {outcomes_line(data['outcomes'])}; failed: {failures_line(data['failures'])}")
    click.echo(money(data["committed_usd"], data["budget_usd"]))
    cells = "" if data["budget_cells"] is None else f"; {data['begun_cells']} cells begun of {data['budget_cells']}"
    wall = "" if data["budget_wall_s"] is None else f" of {duration(data['budget_wall_s'])}"
    click.echo(f"worked on for {duration(data['worked_s'])}{wall}{cells}; created by {shown(data['created_by'])}")
    if data["status"] == "cancelling":
        click.echo("its engine ends what runs, within seconds")
    elif data["engines"]:
        click.echo(f"about {duration(data['eta_s'])} left" if data["eta_s"] else "no telling yet how long it takes")
    if data["n_unsafe"]:
        click.echo(unsafe_line(data["n_unsafe"]))
    if data["open_egress"]:
        click.echo(f"egress is not wholly held: {data['open_egress']}")
    if data["n_with_secrets"]:
        files = f", {data['n_quarantined']} of their files are in quarantine" if data["n_quarantined"] else ""
        click.echo(f"{data['n_with_secrets']} cells wrote secrets that they were given{files}: `evals cell show` says which")
    if data["leaked_sandboxes"]:
        click.echo(leaked_line(data["leaked_sandboxes"]))
    for alarm in data["alarms"]:
        click.echo(alarm_line(alarm["text"]))
    for engine in data["engines"]:
        kind = "persist worker" if engine["kind"] == "persist" else "engine"
        click.echo(f"{kind} {engine['engine'][:8]}, process {engine['pid']}, since {shown(engine['started_at'])}")
    if not data["engines"] and data["n_done"] < data["n_cells"]:
        click.echo(_resume(data))
    if data["open_cells"]:
        rows = [
            [one["cell"], one["state"], one["waits_for"], one["since"], one["deadline_at"], one["attempt"], _line(one["error"])]
            for one in data["open_cells"]
        ]
        table(
            ["open cell", "state", "waits for", "since", "deadline", "attempt", "last error"],
            rows,
            right=["attempt"],
            cut="last error",
        )
    elif data["n_open"]:
        waiting = "; ".join(f"{n} wait for {what}" for what, n in data["waiting"].items())
        click.echo(f"{waiting} (each: --cells)")
        for item in data["errors"]:
            click.echo(f"  {item['cell']}: {harmless(item['error'])}")


def _resume(data: dict[str, Any]) -> str:
    from eval_pipeline.analysis.standing import WORKER

    rerun = f"evals experiment rerun {data['experiment']} --failed"
    log = f"; its log: {data['engine_log']}" if data["engine_log"] else ""
    if data["waiting"] and set(data["waiting"]) == {WORKER}:
        return "its agents have ended, and their outputs wait for: evals worker persist"
    if data["engine_died_at"] is not None:
        return (
            f"THE ENGINE DIED at {shown(data['engine_died_at'])}, with cells open. What is done stays; go on with: {rerun}{log}"
        )
    if (blocked := data["blocked"]) is not None:
        where = " in its file" if blocked["in_file"] else ""
        return f"its budget is used up: {blocked['said']}. {blocked['remedy']}{where}, and run it again: {data['run_command']}"
    go_on = rerun if data["states"].get(CellState.FAILED) else data["run_command"]
    return f"nobody works on it; go on with: {go_on}{log.replace('its log', 'the log of its last engine')}"


def _line(text: str | None) -> str | None:
    return text.splitlines()[0][:160] if text else None
