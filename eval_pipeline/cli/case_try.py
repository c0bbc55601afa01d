"""One cell, now: what somebody who writes a case wants to see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from eval_pipeline.cli.output import Failure, emit, json_option, note, starts_sandboxes, with_settings
from eval_pipeline.settings import Settings

if TYPE_CHECKING:
    from eval_pipeline.cli.experiment_report import Watched
    from eval_pipeline.runner.planning import Plan
    from eval_pipeline.specs.lock import Locked
    from eval_pipeline.store.ledger import ExperimentRow
    from eval_pipeline.store.records import Records

_AGAIN = "tried again"


@click.command(
    "try",
    epilog="""\b
Examples:
  evals case try harbour-spa.consents --arm demo:base
  evals case try harbour-spa.consents --arm demo:base --config top_k=8 --ref WORKTREE
  evals case try harbour-spa.consents --arm demo:base --again

After a change of the rubric the stored answer is judged anew; no agent runs.""",
)
@click.argument("name", metavar="WORLD.CASE")
@click.option("--arm", metavar="EXPERIMENT:ARM|FILE", help="The arm to try it with, or a file with `ref` and `config`.")
@click.option("--ref", metavar="REF|WORKTREE", help="The app at this revision; the arm's, or its branch, when it is not given.")
@click.option(
    "--config", "pairs", multiple=True, metavar="KEY=VALUE", help="Over the arm's config; VALUE as in YAML. May be given again."
)
@click.option("--judge", metavar="PROVIDER:MODEL", help="Who decides criteria without a check.")
@click.option("--backend", type=click.Choice(["local", "modal"]), help="Where it runs; local when it is not given.")
@click.option("--again", is_flag=True, help="Run it also when there is a valid result, which is discarded.")
@click.option("--dry-run", is_flag=True, help="Say what would run and what it may cost.")
@click.option("--timeout", "timeout_s", type=float, help="Stop watching after so many seconds; the run goes on.")
@click.option("--yes", is_flag=True, help="Don't ask, however much it may cost.")
@json_option
@with_settings
@starts_sandboxes
def try_case(
    settings: Settings,
    name: str,
    pairs: tuple[str, ...],
    again: bool,
    dry_run: bool,
    timeout_s: float | None,
    yes: bool,
    as_json: bool,
    **asked: str | None,
) -> int:
    """Run one cell of a case, wait for it, and show the answer, the verdicts and the cost.

    A valid result is never run twice: the same command again shows it, judged by the rubric as it is now.
    """
    from eval_pipeline.cli.experiment_run import refuse_engine
    from eval_pipeline.runner.planning import plan
    from eval_pipeline.specs.case_try import TryRequest, lock_try
    from eval_pipeline.specs.library import Library
    from eval_pipeline.store.records import open_records
    from eval_pipeline.vault.delivery import Secrets

    locked = lock_try(Library(settings.worlds_dir), TryRequest(case=name, config=dict(_pair(one) for one in pairs), **asked))
    refuse_engine(settings, locked)
    with open_records(settings) as records:
        planned = plan(locked, records, Secrets(settings, records), fresh=True, reuse=not again)
        for line in planned.notes:
            note(f"note: {line}")
        if dry_run:
            return _show_plan(planned, again, as_json)
        experiment, watched = _run(settings, records, locked, planned, again=again, yes=yes, timeout_s=timeout_s)
        return _show(settings, records, experiment, watched, as_json)


def _pair(text: str) -> tuple[str, Any]:
    from eval_pipeline.errors import SpecError
    from eval_pipeline.specs.yaml_file import YamlFile

    key, equals, value = text.partition("=")
    if not equals or not key:
        raise SpecError(f"--config {text!r} is not KEY=VALUE", hint="for example --config top_k=8")
    return key, YamlFile.from_bytes(value.encode(), f"--config {key}").data


def _show_plan(planned: Plan, again: bool, as_json: bool) -> int:
    data = {
        "experiment": planned.run.experiment_id,
        "cell": str(planned.run.cell_keys()[0]),
        "runs": again or not (planned.n_done or planned.adopted),
        "max_cost_usd": planned.max_cost_usd,
        "dry_run": True,
    }
    most = (
        "of unknown cost: the case has no limits.cost_usd"
        if planned.max_cost_usd is None
        else f"for at most {planned.max_cost_usd:g} USD"
    )
    said = f"would run, {most}" if data["runs"] else "has a valid result: nothing would run"
    emit(data, as_json, lambda: click.echo(f"{data['cell']} {said}"))
    return 0


def _run(
    settings: Settings, records: Records, locked: Locked, planned: Plan, *, again: bool, yes: bool, timeout_s: float | None
) -> tuple[ExperimentRow, Watched | None]:
    """None: there was nothing to run and nothing to judge."""
    from eval_pipeline.cli.budget import confirm
    from eval_pipeline.cli.experiment_report import Watched
    from eval_pipeline.cli.launch import Watch, launch, require_isolation
    from eval_pipeline.host import login
    from eval_pipeline.runner.planning import commit

    require_isolation(settings, locked.run.backend)
    confirm(records, locked, planned, yes=yes)
    experiment = commit(locked, planned, records, settings.user or login())
    (key,) = [str(one) for one in experiment.run.cell_keys()]
    there = bool(planned.n_done or planned.adopted)
    if there and again:
        records.ledger.discard([key], _AGAIN)
    same = planned.resumes is not None and planned.resumes.score.digest == locked.score.digest
    if planned.n_done and same and not again:
        note("it has a valid result, which is shown; --again discards it and runs it again")
        return experiment, None
    if there and not again:
        note("no agent runs: a valid result is there, and is judged by the rubric as it is now; --again discards it")
    records.ledger.clear_cancel(experiment.id)
    launched = launch(settings, experiment)
    ended = Watch(settings, records, experiment, launched, timeout_s).run()
    return experiment, Watched(ended=ended, launched=launched)


def _show(settings: Settings, records: Records, experiment: ExperimentRow, watched: Watched | None, as_json: bool) -> int:
    from eval_pipeline.cli.cell import cell_data, show_cell
    from eval_pipeline.cli.experiment_report import Asked, why_missing

    key = str(experiment.run.cell_keys()[0])
    row = records.ledger.experiment(experiment.id)
    failure: Failure | None = None
    done = records.views.tallies(row.id)[row.id].n_done
    if watched is not None and not done:
        failure = why_missing(settings, records, row, "the cell has no valid result", watched, Asked(resumed=False))
    found = cell_data(settings, key)
    emit(found.data, as_json, lambda: show_cell(found), failure)
    return 0 if failure is None else 3 if failure.code == "budget_exceeded" else 1
