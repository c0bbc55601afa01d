"""The verbs that start work: run and rerun."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eval_pipeline.cli.output import Failure, emit, json_option, note, shown, starts_sandboxes, with_settings
from eval_pipeline.domain.cell import CellState
from eval_pipeline.settings import Settings

if TYPE_CHECKING:
    from eval_pipeline.cli.launch import Launched
    from eval_pipeline.store.ledger import ExperimentRow
    from eval_pipeline.store.records import Records


@click.command("run")
@click.argument("file")
@click.option("--wait/--no-wait", default=False, help="Watch until it is done. Ctrl-C cancels, a second one detaches.")
@click.option("--timeout", "timeout_s", type=float, help="Stop watching after so many seconds; the run goes on.")
@click.option(
    "--fresh", is_flag=True, help="When a ref has moved since, start a new experiment instead of resuming the locked one."
)
@click.option("--reuse/--no-reuse", default=True, help="Whether results of other experiments count for equal cells.")
@click.option("--yes", is_flag=True, help="Don't ask, however much it may cost.")
@json_option
@with_settings
@starts_sandboxes
def run(
    settings: Settings, file: str, wait: bool, timeout_s: float | None, fresh: bool, reuse: bool, yes: bool, as_json: bool
) -> int:
    """Lock the file and run what is not done yet. The same file again resumes."""
    from eval_pipeline.cli.budget import confirm
    from eval_pipeline.cli.launch import launch, require_isolation
    from eval_pipeline.host import login
    from eval_pipeline.runner.planning import commit, plan
    from eval_pipeline.store.records import open_records
    from eval_pipeline.vault.delivery import Secrets

    locked = lock_file(settings, file)
    if locked.run.backend == "local":
        require_isolation(settings)
    with open_records(settings) as records:
        planned = plan(locked, records, Secrets(settings, records), fresh=fresh, reuse=reuse)
        confirm(records, locked, planned, yes=yes)
        experiment = commit(locked, planned, records, settings.user or login())
        for line in planned.moved:
            note(f"{line}: resuming the locked one; --fresh starts a new experiment of {len(locked.run.cell_keys())} cells")
        for line in planned.notes:
            note(f"note: {line}")
        if fresh and planned.resumes is not None:
            note(
                "--fresh changes nothing: no ref has moved, so this is the same experiment; to run its cells again: "
                f"evals experiment rerun {planned.resumes.id} --failed, or --cell KEY --discard REASON"
            )
        if planned.resumes is not None:
            note(f"resuming {experiment.id}: {planned.n_done} of {planned.n_cells} cells are done already")
        if planned.adopted:
            note(f"{len(planned.adopted)} cells take the results of equal cells of other experiments; --no-reuse runs them")
        rescored = planned.resumes is not None and planned.resumes.score.digest != locked.score.digest
        if rescored:
            note("the rubric, the policy or a price has changed: its cells are judged again, none is run again")
        if planned.n_done == planned.n_cells and not rescored:
            return _report(settings, records, experiment, as_json, resumed=True)
        launched = launch(settings, experiment)
        return _follow(settings, records, experiment, launched, wait, timeout_s, as_json, resumed=planned.resumes is not None)


@click.command("rerun")
@click.argument("name")
@click.option("--failed", is_flag=True, help="The cells that have no valid result.")
@click.option("--cell", "keys", multiple=True, help="This cell; may be given again.")
@click.option("--discard", metavar="REASON", help="Run valid cells again too; counted on the leaderboard.")
@click.option("--wait/--no-wait", default=False)
@click.option("--timeout", "timeout_s", type=float)
@json_option
@with_settings
@starts_sandboxes
def rerun(
    settings: Settings,
    name: str,
    failed: bool,
    keys: tuple[str, ...],
    discard: str | None,
    wait: bool,
    timeout_s: float | None,
    as_json: bool,
) -> int:
    """Run the failed cells again, or the named ones. A valid cell is not run again unless it is discarded."""
    from eval_pipeline.cli.launch import launch, require_isolation
    from eval_pipeline.errors import SpecError
    from eval_pipeline.store.records import open_records

    if failed == bool(keys):
        raise SpecError("say which cells: --failed, or --cell KEY", hint=f"`evals experiment cells {name}` lists them")
    if failed and discard is not None:
        raise SpecError("--discard is about valid results and --failed about cells without one", hint="name them: --cell KEY")
    with open_records(settings) as records:
        experiment = records.ledger.experiment(name)
        if experiment.run.backend == "local":
            require_isolation(settings)
        done = set(records.views.keys(experiment.id, [CellState.DONE]))
        chosen = _chosen(records, experiment, keys) if keys else [k for k in records.views.keys(experiment.id) if k not in done]
        done = done.intersection(chosen)
        if done and discard is not None:
            note(f"{records.ledger.discard(sorted(done), discard)} valid results are discarded: {discard}")
        elif done:
            note(f"{len(done)} of the cells have a valid result and are not run again; --discard REASON does it")
        open_keys = chosen if discard is not None else [key for key in chosen if key not in done]
        records.ledger.clear_cancel(experiment.id)
        records.ledger.restore(experiment.id)
        if not open_keys:
            note("nothing to run")
            return _report(settings, records, experiment, as_json, resumed=True)
        launched = launch(settings, experiment, open_keys)
        return _follow(settings, records, experiment, launched, wait, timeout_s, as_json, resumed=True, keys=open_keys)


def _chosen(records: Records, experiment: ExperimentRow, keys: tuple[str, ...]) -> list[str]:
    from eval_pipeline.errors import NotFound

    known = set(records.views.keys(experiment.id))
    found = {key: _whole(key, experiment) for key in keys}
    for key, whole in found.items():
        if whole not in known:
            other = whole.partition("/")[0]
            if key.count("/") == 3 and other != experiment.id:
                raise NotFound(
                    f"{key} is a cell of {other!r}, not of {experiment.id}", hint=f"evals experiment rerun {other} --cell {key}"
                )
            raise NotFound(f"{experiment.id} has no cell {key!r}", hint=f"`evals experiment cells {experiment.id}` lists them")
    return list(found.values())


def _whole(key: str, experiment: ExperimentRow) -> str:
    """Without the experiment, or with its name in place of its id, the key is this one's."""
    first, _, rest = key.partition("/")
    if key.count("/") == 2:
        return f"{experiment.id}/{key}"
    return f"{experiment.id}/{rest}" if first == experiment.name else key


def _follow(
    settings: Settings,
    records: Records,
    experiment: ExperimentRow,
    launched: Launched,
    wait: bool,
    timeout_s: float | None,
    as_json: bool,
    *,
    resumed: bool,
    keys: Sequence[str] = (),
) -> int:
    """keys: the cells that were asked for; empty means all of them."""
    from eval_pipeline.cli.launch import Watch

    note(f"{experiment.id}: engine started, process {launched.process.pid}; its log: {launched.log}")
    if not wait:
        note(f"watch: evals experiment status {experiment.id} --watch")
        return _report(settings, records, experiment, as_json, resumed=resumed)
    ended = Watch(settings, records, experiment, launched, timeout_s).run()
    return _report(
        settings, records, experiment, as_json, resumed=resumed, waited=True, ended=ended, log=str(launched.log), keys=keys
    )


def _report(
    settings: Settings,
    records: Records,
    experiment: ExperimentRow,
    as_json: bool,
    *,
    resumed: bool,
    waited: bool = False,
    ended: bool = True,
    log: str | None = None,
    keys: Sequence[str] = (),
) -> int:
    """Print the counts. The exit code is 0 unless somebody waited: then 1 when cells have no valid result, 3 for want of budget.

    keys: only these cells decide the exit code; empty means all.
    """
    from eval_pipeline.analysis.load import load_table
    from eval_pipeline.analysis.standing import alarms, expected
    from eval_pipeline.analysis.tables import count_failures
    from eval_pipeline.cli.progress import failures_line, loud, outcomes_line

    row = records.ledger.experiment(experiment.id)
    tally = records.views.tallies(row.id)[row.id]
    n_failed = tally.states.get(CellState.FAILED, 0)
    data = {
        "experiment": row.id,
        "n_cells": row.n_cells,
        "n_ok": tally.n_done,
        "n_failed": n_failed,
        "n_open": row.n_cells - tally.n_done - n_failed,
        "resumed": resumed,
        "failures": count_failures(load_table(records, row)),
    }
    n_wanted = len(keys) or row.n_cells
    n_missing = (
        n_wanted - len(set(records.views.keys(row.id, [CellState.DONE])).intersection(keys)) if keys else n_wanted - tally.n_done
    )
    missing = f"{n_missing} of {n_wanted} cells have no valid result"
    failure = _failure(settings, records, row, missing, ended, log) if waited and n_missing else None

    def people() -> None:
        line = expected(tally.n_done, row.n_cells, tally.states)
        click.echo(f"{row.id}: {line}; outcomes: {outcomes_line(tally.outcomes)}; failed: {failures_line(data['failures'])}")

    if waited:
        for alarm in alarms(records.database, row.id):
            loud(str(alarm))
    emit(data, as_json, people, failure)
    return 0 if failure is None else 3 if failure.code == "budget_exceeded" else 1


def _failure(settings: Settings, records: Records, row: ExperimentRow, missing: str, ended: bool, log: str | None) -> Failure:
    from eval_pipeline.analysis.standing import died_at
    from eval_pipeline.store.standing import open_cells

    if not ended:
        return Failure("unfinished", f"{missing} yet; the run goes on", f"evals experiment status {row.id} --watch")
    died = died_at(open_cells(records.database, row.id))
    if died is not None:
        said = f"{missing}: the engine died at {shown(died)}. What is done stays"
        return Failure("engine_died", said, f"go on with: evals experiment rerun {row.id} --failed; its log: {log}")
    if row.cancel_requested_at is not None:
        return Failure("cancelled", f"{missing}: it was cancelled", "run the file again to go on")
    if (out := _out_of_budget(settings, records, row)) is not None:
        return Failure("budget_exceeded", f"{missing}: {out[0]}", f"{out[1]} and run it again: it goes on")
    return Failure("cells_failed", missing, f"evals experiment status {row.id} says why; log: {log}")


def _out_of_budget(settings: Settings, records: Records, row: ExperimentRow) -> tuple[str, str] | None:
    """Why the next open cell can't begin, and what to do; None when it can, as far as budgets go."""
    if not records.views.keys(row.id, [CellState.OPEN]):
        return None
    if row.budget_cells is not None and row.begun_cells >= row.budget_cells:
        return f"{row.begun_cells} cells were begun, and its budget is {row.budget_cells}", "raise budget.cells in the file"
    if row.budget_wall_s is not None and (worked_s := records.spending.worked_s(row.id)) >= row.budget_wall_s:
        spent = f"it was worked on for {worked_s:.0f} s, and its budget is {row.budget_wall_s:.0f} s"
        return spent, "raise budget.wall_s in the file"
    needed, month = _next_reservation(settings, records, row), records.spending.month()
    if row.budget_usd is not None and row.committed_usd + needed > row.budget_usd:
        return f"{row.committed_usd:f} of {row.budget_usd:f} USD are spent or reserved", "raise budget.cost_usd in the file"
    if month.monthly_cap_usd is not None and month.committed_usd + needed > month.monthly_cap_usd:
        spent = f"{month.committed_usd:f} of {month.monthly_cap_usd:f} USD of this installation's month are spent or reserved"
        return spent, "raise `evals budget --monthly-cap USD`"
    return None


def _next_reservation(settings: Settings, records: Records, row: ExperimentRow) -> Decimal:
    """Of the first open cell, in USD; there is one."""
    from eval_pipeline.domain.budget import reservation_usd, sandbox_terms
    from eval_pipeline.domain.ids import CellKey
    from eval_pipeline.runner.rates import current_rates

    key = CellKey.parse(records.views.keys(row.id, [CellState.OPEN])[0])
    limits, resources = row.run.case(key.case_name).limits, row.run.arm(key.arm).manifest.resources
    per_s = records.views.sandbox_usd_per_s(row.id, key.arm)
    if per_s is None and (rates := asyncio.run(current_rates(settings, row.run.backend))) is not None:
        per_s = rates.usd_per_s(resources.cpu, resources.memory_mib)
    held = sandbox_terms(limits, per_s, None).reserve_usd
    return held + reservation_usd(limits, row.budget_usd, row.n_cells, held)


def lock_file(settings: Settings, file: str) -> Any:
    from eval_pipeline.sandbox import modal_plan
    from eval_pipeline.specs.library import Library
    from eval_pipeline.specs.lock import lock_experiment

    library = Library(settings.worlds_dir)
    locked = lock_experiment(library, Path(library.experiment_path(file)))
    if locked.run.backend == "modal":
        for arm in locked.run.arms:
            modal_plan.check_engine(f"arm {arm.name!r}", arm.manifest.compose is not None, settings.modal.runtime)
    return locked
