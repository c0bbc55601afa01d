from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import click

from eval_pipeline.cli.experiment_archive import archive, restore
from eval_pipeline.cli.experiment_run import lock_file, rerun, run
from eval_pipeline.cli.experiment_status import status
from eval_pipeline.cli.output import counted, emit, harmless, json_option, table, with_settings
from eval_pipeline.settings import Settings

if TYPE_CHECKING:
    from eval_pipeline.analysis.tables import ScoredCell
    from eval_pipeline.runner.estimate import ModelEstimate, SandboxEstimate
    from eval_pipeline.runner.planning import JudgeEstimate, Plan


@click.group()
def command() -> None:
    """Experiments: cases x arms x trials, locked before anything runs."""


command.add_command(run)
command.add_command(rerun)
command.add_command(archive)
command.add_command(restore)
command.add_command(status)


@command.command("plan")
@click.argument("file")
@click.option("--fresh", is_flag=True, help="Plan a new experiment even when an older one of this file could be resumed.")
@click.option("--reuse/--no-reuse", default=True, help="Whether results of other experiments count for equal cells.")
@json_option
@with_settings
def plan_command(settings: Settings, file: str, fresh: bool, reuse: bool, as_json: bool) -> None:
    """What `run` would do: cells, what is done already, limits, notes. Spends nothing."""
    from eval_pipeline.runner.planning import moved_text, plan
    from eval_pipeline.runner.rates import current_rates
    from eval_pipeline.store.records import open_records
    from eval_pipeline.vault.delivery import Secrets

    locked = lock_file(settings, file)
    with open_records(settings) as records:
        rates = asyncio.run(current_rates(settings, locked.run.backend))
        planned = plan(locked, records, Secrets(settings, records), fresh=fresh, reuse=reuse, rates=rates)
    data = {
        "experiment": planned.run.experiment_id,
        "resumes": planned.resumes is not None,
        "moved": planned.moved,
        "cases": [case.name for case in planned.run.cases],
        "arms": [{"arm": arm.name, "commit": arm.commit, "tree": arm.tree, "config": arm.config} for arm in planned.run.arms],
        "trials": planned.run.trials,
        "n_cells": planned.n_cells,
        "n_reused": planned.n_done + len(planned.adopted),
        "n_done": planned.n_done,
        "adopted": planned.adopted,
        "n_new": planned.n_cells - planned.n_done - len(planned.adopted),
        "judge": asdict(planned.judge),
        "n_judge_criteria": planned.n_judge_criteria,
        "max_cost_usd": planned.max_cost_usd,
        "models": asdict(planned.models),
        "sandboxes": asdict(planned.sandboxes),
        "budget_usd": locked.spec.budget.cost_usd if locked.spec.budget else None,
        "budget": locked.spec.budget.model_dump() if locked.spec.budget else None,
        "notes": planned.notes,
    }

    def people() -> None:
        verb = "resumes" if planned.resumes else "new"
        cases = counted(len(planned.run.cases), "case", "cases")
        arms, trials = counted(len(planned.run.arms), "arm", "arms"), counted(planned.run.trials, "trial", "trials")
        click.echo(f"{planned.run.experiment_id} ({verb}): {cases} x {arms} x {trials}")
        cells = counted(planned.n_cells, "cell", "cells")
        click.echo(f"{cells}: {data['n_new']} to run, {planned.n_done} done already{_adopted(planned.adopted)}")
        for arm, now in zip(planned.run.arms, locked.run.arms, strict=True):
            moved = (
                "" if planned.resumes is None or arm.tree == now.tree else f" (MOVED since: now {(now.commit or now.tree)[:12]})"
            )
            click.echo(f"  arm {arm.name}: {arm.ref} = {(arm.commit or arm.tree)[:12]}{moved}{_settings(arm.config)}")
        click.echo(f"{_most_line(planned)}; budget {_budget(data['budget_usd'])}")
        click.echo(_models_line(planned.models))
        click.echo(_sandboxes_line(planned.sandboxes, data["n_new"]))
        if planned.judge.n_calls:
            click.echo(_judge_line(planned.judge))
        for line in [*filter(None, [moved_text(planned, file)]), *planned.notes]:
            click.echo(f"note: {line}")

    emit(data, as_json, people)


def _adopted(adopted: Mapping[str, str]) -> str:
    sources = sorted({key.partition("/")[0] for key in adopted.values()})
    return f", {len(adopted)} adopted from equal cells of {', '.join(sources)}" if adopted else ""


def _most_line(planned: Plan) -> str:
    if planned.max_cost_usd is not None:
        return f"models cost at most {planned.max_cost_usd:.4f} USD by the cases' limits"
    names = [case.name for case in planned.run.cases if case.limits.cost_usd is None]
    have = counted(len(names), "case has", "cases have")
    return f"models cost at most: unknown: {have} no limit of cost ({', '.join(names[:3])}{', ...' if names[3:] else ''})"


def _budget(usd: float | None) -> str:
    return "none" if usd is None else f"{usd:g} USD"


def _judge_line(guess: JudgeEstimate) -> str:
    calls = counted(guess.n_calls, "call", "calls")
    if guess.cost_usd is None:
        return f"judge: at most {calls}; what they cost is not known yet"
    return f"judge: at most {calls}, {guess.cost_usd:.4f} USD by the mean of {counted(guess.n_measured, 'earlier one', 'earlier ones')}"


def _models_line(guess: ModelEstimate) -> str:
    if guess.cost_usd is None:
        return "what models will cost is not known: there are no earlier cells, and cases without a limits.cost_usd"
    about = "at most" if guess.at_most else "about"
    return f"models are expected to cost {about} {guess.cost_usd:.4f} USD: {guess.source}"


def _sandboxes_line(guess: SandboxEstimate, n_cells: int) -> str:
    about = "at most about" if guess.at_most else "about"
    each = f"{guess.seconds / n_cells:.0f} s a cell ({guess.seconds_from})" if n_cells else "none to run"
    if guess.cost_usd is None:
        return f"sandboxes: {each}; what they cost is not known"
    return f"sandboxes cost {about} {guess.cost_usd:.4f} USD: {each}, at the rate {guess.rate}: {guess.source}"


def _settings(config: Mapping[str, Any]) -> str:
    """`, model=stand-in, top_k=3`: what is no plain word as JSON."""
    plain = {name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for name, value in config.items()}
    return "".join(f", {name}={harmless(value)}" for name, value in plain.items())


@command.command("list")
@click.option("--all", "everything", is_flag=True, help="The archived ones too.")
@json_option
@with_settings
def list_experiments(settings: Settings, everything: bool, as_json: bool) -> None:
    """All experiments, newest first; archived ones are left out."""
    from eval_pipeline.cli.progress import status_of
    from eval_pipeline.store.records import read_records

    with read_records(settings) as records:
        experiments = records.ledger.experiments(archived=everything)
        tallies = records.views.tallies()  # after: one that is made in between is in both
        rows = [
            {
                "experiment": row.id,
                "name": row.name,
                "status": status_of(row, tallies[row.id]),
                "n_cells": row.n_cells,
                "n_done": tallies[row.id].n_done,
                "created_at": row.created_at,
                "created_by": row.created_by,
                "archived_at": row.archived_at,
            }
            for row in experiments
        ]
    columns = ["experiment", "status", "n_done", "n_cells", "created_at", "created_by", *(["archived_at"] if everything else [])]
    emit(rows, as_json, lambda: table(columns, [[row[c] for c in columns] for row in rows], right=["n_done", "n_cells"]))


@command.command("cells")
@click.argument("name")
@click.option("--state", "states", multiple=True, help="Only cells in this state; may be given again.")
@click.option("--arm", help="Only this arm's cells.")
@json_option
@with_settings
def cells(settings: Settings, name: str, states: tuple[str, ...], arm: str | None, as_json: bool) -> None:
    """Every cell with its score, cost, latency and attempts."""
    from eval_pipeline.analysis.load import load_table
    from eval_pipeline.store.records import read_records

    with read_records(settings) as records:
        found = load_table(records, records.ledger.experiment(name))
    chosen = [cell for cell in found if (not states or cell.state in states) and (arm is None or cell.key.arm == arm)]
    rows = [_cell_row(cell) for cell in chosen]
    columns = ["cell", "state", "outcome", "failure", "score", "cost_usd", "sandbox_usd", "latency_s", "attempts", "error"]
    people = [
        [
            str(c.key),
            c.state,
            c.view.outcome,
            c.failure,
            c.score,
            _money(c.cost_usd),
            _money(c.sandbox_cost_usd),
            c.latency_s,
            len(c.view.attempts) if c.view.adopted_from is None else "adopted",
            _first_line(c.error),
        ]
        for c in chosen
    ]
    emit(rows, as_json, lambda: table(columns, people, right=columns[4:9], cut="error"))


def _money(usd: Decimal | None) -> str | None:
    return None if usd is None else f"{usd:.5f}"


def _cell_row(cell: ScoredCell) -> dict[str, Any]:
    return {
        "cell": str(cell.key),
        "world": cell.key.world,
        "case": cell.key.case_name,
        "arm": cell.key.arm,
        "trial": cell.key.trial,
        "state": cell.state,
        "outcome": cell.view.outcome,
        "failure": cell.failure,
        "error_class": cell.error_class,
        "score": cell.score,
        "passed": cell.passed,
        "n_not_judged": cell.n_not_judged,
        "cost_usd": cell.cost_usd,
        "cost_over_usd": cell.cost_over_usd,
        "sandbox_cost_usd": cell.sandbox_cost_usd,
        "sandbox_s": cell.sandbox_s,
        "sandbox_spent_usd": cell.sandbox_spent_usd,
        "sandbox_spent_s": cell.sandbox_spent_s,
        "latency_s": cell.latency_s,
        "adopted_from": cell.view.adopted_from,
        "attempts": [
            {
                "attempt": attempt.number,
                "sandbox": attempt.sandbox,
                "outcome": attempt.outcome,
                "started_at": attempt.created_at,
                "ended_at": attempt.ended_at,
                "error": attempt.error,
                "sandbox_s": attempt.sandbox_s,
                "sandbox_cost_usd": attempt.sandbox_cost_usd,
            }
            for attempt in cell.view.attempts
        ],
    }


@command.command("cancel")
@click.argument("name")
@json_option
@with_settings
def cancel(settings: Settings, name: str, as_json: bool) -> None:
    """End its sandboxes and open its cells again; what is done stays."""
    from eval_pipeline.store.records import read_records

    with read_records(settings) as records:
        row = records.ledger.experiment(name)
        if records.views.tallies(row.id)[row.id].n_done == row.n_cells:
            emit({"experiment": row.id, "working": False}, as_json, lambda: click.echo(f"{row.id} is done; nothing to cancel"))
            return
        records.ledger.request_cancel(row.id)
        working = bool(records.leases.engines_of(row.id))
    data = {"experiment": row.id, "working": working}
    text = "its engine is ending the sandboxes" if working else "nobody was working on it"
    emit(data, as_json, lambda: click.echo(f"{row.id} is cancelled; {text}. Run its file again to go on."))


def _first_line(text: str | None) -> str:
    line = text.splitlines()[0] if text else ""
    return line if len(line) <= 160 else line[:159] + "…"
