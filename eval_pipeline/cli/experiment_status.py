"""How an experiment stands, and why what is open is open."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from eval_pipeline.cli.output import emit, harmless, json_option, leaked_line, shown, table, unsafe_line, with_settings
from eval_pipeline.settings import Settings

if TYPE_CHECKING:
    from eval_pipeline.analysis.standing import Waiting
    from eval_pipeline.store.ledger import ExperimentRow
    from eval_pipeline.store.records import Records

FEW = 20


@click.command("status")
@click.argument("name")
@click.option("--watch", is_flag=True, help="Follow it until nobody works on it any more.")
@click.option("--cells", "all_cells", is_flag=True, help=f"What each open cell waits for, also when they are more than {FEW}.")
@json_option
@with_settings
def status(settings: Settings, name: str, watch: bool, all_cells: bool, as_json: bool) -> None:
    """Expected against actual cells, spend, who works on it, how long it takes, and what each open cell waits for."""
    from eval_pipeline.cli.launch import WATCH_POLL_S, is_worked_on
    from eval_pipeline.cli.progress import Progress
    from eval_pipeline.store.records import open_records

    with open_records(settings) as records:
        row = records.ledger.experiment(name)
        if watch:
            with Progress(records, row) as progress:
                progress.update()
                while is_worked_on(settings, records, row.id):
                    time.sleep(WATCH_POLL_S)
                    progress.update()
            row = records.ledger.experiment(row.id)
        data = standing(records, row, all_cells)
    emit(data, as_json, lambda: _show(data))


def standing(records: Records, row: ExperimentRow, all_cells: bool) -> dict[str, Any]:
    from eval_pipeline.analysis.load import load_table
    from eval_pipeline.analysis.standing import alarms, died_at, eta_s, explain
    from eval_pipeline.analysis.tables import count_failures
    from eval_pipeline.cli.progress import status_of
    from eval_pipeline.store.standing import open_cells, pace

    tally = records.views.tallies(row.id)[row.id]
    waiting = open_cells(records.database, row.id)
    every = records.views.cells(row.id)
    explained = [explain(cell) for cell in waiting]
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
        "leaked_sandboxes": records.views.leaked(),
        "created_by": row.created_by,
        "budget_usd": row.budget_usd,
        "budget_cells": row.budget_cells,
        "begun_cells": row.begun_cells,
        "budget_wall_s": row.budget_wall_s,
        "worked_s": records.spending.worked_s(row.id),
        "committed_usd": row.committed_usd,
        "eta_s": eta_s(pace(records.database, row.id)),
        "engine_died_at": died_at(waiting),
        "alarms": [{**asdict(alarm), "text": str(alarm)} for alarm in alarms(records.database, row.id)],
        "engines": [
            {"engine": engine.id, "kind": engine.kind, "pid": engine.pid, "started_at": engine.started_at}
            for engine in records.leases.engines_of(row.id)
        ],
        "open_cells": [asdict(one) for one in (explained if all_cells or len(explained) <= FEW else [])],
        "n_open": len(explained),
        "waiting": _counted(explained),
        "errors": [{"cell": one.cell, "error": one.error} for one in explained if one.error][:FEW],
    }


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
    if data["engines"]:
        click.echo(f"about {duration(data['eta_s'])} left" if data["eta_s"] else "no telling yet how long it takes")
    if data["n_unsafe"]:
        click.echo(unsafe_line(data["n_unsafe"]))
    if data["open_egress"]:
        click.echo(f"egress is not wholly held: {data['open_egress']}")
    if data["leaked_sandboxes"]:
        click.echo(leaked_line(data["leaked_sandboxes"]))
    for alarm in data["alarms"]:
        click.echo(click.style(f"!! {harmless(alarm['text'])}", fg="red", bold=True))
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
        table(["open cell", "state", "waits for", "since", "deadline", "attempt", "last error"], rows, right=["attempt"])
    elif data["n_open"]:
        waiting = "; ".join(f"{n} wait for {what}" for what, n in data["waiting"].items())
        click.echo(f"{waiting} (each: --cells)")
        for item in data["errors"]:
            click.echo(f"  {item['cell']}: {harmless(item['error'])}")


def _resume(data: dict[str, Any]) -> str:
    from eval_pipeline.analysis.standing import WORKER

    go_on = f"evals experiment rerun {data['experiment']} --failed"
    if data["waiting"] and set(data["waiting"]) == {WORKER}:
        return "its agents have ended, and their outputs wait for: evals worker persist"
    if data["engine_died_at"] is None:
        return f"nobody works on it; go on with: {go_on}"
    return f"THE ENGINE DIED at {shown(data['engine_died_at'])}, with cells open. What is done stays; go on with: {go_on}"


def _line(text: str | None) -> str | None:
    return text.splitlines()[0][:160] if text else None
