from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eval_pipeline.cli.output import Failure, dry_run_option, emit, examples, json_option, note, starts_sandboxes, with_settings
from eval_pipeline.settings import Settings

if TYPE_CHECKING:
    from eval_pipeline.analysis.gate import Gate
    from eval_pipeline.specs.gate import GateRequest
    from eval_pipeline.specs.lock import Locked
    from eval_pipeline.store.ledger import ExperimentRow
    from eval_pipeline.store.records import Records


@click.command(
    epilog=examples(
        "evals gate --base main --head WORKTREE --margin 0.05 --dataset demo --dry-run",
        "evals gate --base main --head HEAD --margin 0.05 --experiment demo --markdown gate.md",
    )
)
@click.option("--base", required=True, metavar="REF", help="What must not get worse.")
@click.option("--head", required=True, metavar="REF|WORKTREE", help="What is to pass.")
@click.option("--margin", required=True, type=float, help="So much worse, in score points, is still no worse.")
@click.option("--dataset", help="The cases; the template's when it is not given.")
@click.option("--app", help="The one that app.yaml describes when it is not given.")
@click.option("--config", metavar="JSON", help="The config of both arms.")
@click.option("--trials", type=click.IntRange(min=1), help="Of each case; the template's, or 1.")
@click.option("--alpha", type=click.FloatRange(0, 0.5, min_open=True), default=0.05, show_default=True, help="One-sided.")
@click.option("--budget", "budget_usd", type=click.FloatRange(min=0, min_open=True), metavar="USD", help="What the run may cost.")
@click.option("--experiment", "template", metavar="FILE", help="A template: what no flag says is as there.")
@click.option("--arm", help="The template's arm whose config both take; its baseline, or its only one, when it is not given.")
@click.option("--markdown", type=click.Path(dir_okay=False, path_type=Path), help="Write the result there, for a comment.")
@click.option("--junit", type=click.Path(dir_okay=False, path_type=Path), help="Write the result there as JUnit XML.")
@click.option("--timeout", "timeout_s", type=float, help="Stop watching after so many seconds; the run goes on.")
@click.option("--yes", is_flag=True, help="Don't ask, however much it may cost.")
@dry_run_option
@json_option
@with_settings
@starts_sandboxes
def command(
    settings: Settings,
    margin: float,
    alpha: float,
    markdown: Path | None,
    junit: Path | None,
    timeout_s: float | None,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    **flags: Any,
) -> int:
    """May head replace base? Runs both on the same cases and passes head when it is shown to be no worse by more than the margin.

    Exit codes: 0 it passes, 1 that is not shown, 2 a mistake in what was asked, 3 the budget is used up. The same command again
    resumes: what has a valid result, in any experiment, is not run again.
    """
    from eval_pipeline.cli.gate_report import gate_lines, junit_xml, markdown_text
    from eval_pipeline.specs.gate import GateRequest

    if dry_run:
        return _dry_run(settings, GateRequest(**flags), margin, alpha, as_json, yes=yes)
    gate, failure = _gate(settings, GateRequest(**flags), margin, alpha, timeout_s, yes=yes)
    for path, text in ((markdown, markdown_text), (junit, junit_xml)):
        if path is not None:
            _write(path, text(gate))
    if failure is None and not gate.passed:
        show = f"evals compare {gate.experiment} base head" if gate.experiment else None
        failure = Failure(gate.decision, f"head does not pass: {'; '.join(gate.why)}", show)
    emit(gate.as_data(), as_json, lambda: click.echo("\n".join(gate_lines(gate))), failure)
    return 3 if failure is not None and failure.code == "budget_exceeded" else 0 if gate.passed else 1


def _write(path: Path, text: str) -> None:
    from eval_pipeline.errors import SpecError

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SpecError(f"{path} can't be written: {error.strerror}", hint="name a file in a folder that is there") from None


def _gate(
    settings: Settings, asked: GateRequest, margin: float, alpha: float, timeout_s: float | None, *, yes: bool
) -> tuple[Gate, Failure | None]:
    """The failure says why cells are missing; None when all have a valid result."""
    from eval_pipeline.analysis.comparable import side
    from eval_pipeline.analysis.compare import compare
    from eval_pipeline.analysis.gate import Gate, Revision, decide
    from eval_pipeline.analysis.load import load_table
    from eval_pipeline.cli.experiment_run import refuse_engine
    from eval_pipeline.cli.launch import require_isolation
    from eval_pipeline.specs.gate import BASE, HEAD, lock_gate
    from eval_pipeline.specs.library import Library
    from eval_pipeline.store.records import open_records

    locked = lock_gate(Library(settings.worlds_dir), asked)
    refuse_engine(settings, locked)
    left, right = (Revision(ref=arm.ref, commit=arm.commit, tree=arm.tree) for arm in locked.run.arms)
    if _identical(locked):
        return Gate(base=left, head=right, margin=margin, alpha=alpha, decision="identical"), None
    _refuse_vain(locked, margin, alpha)
    if locked.run.backend == "local":
        require_isolation(settings)
    with open_records(settings) as records:
        row, failure = _run(settings, records, locked, timeout_s, yes=yes)
        table = load_table(records, row)
    found = compare(side(row, table, BASE), side(row, table, HEAD), margin=margin, alpha=alpha)
    decision, why = decide(found)
    if failure is not None and decision == "non_inferior":
        decision, why = "undecided", [failure.message]
    gate = Gate(
        base=left, head=right, margin=margin, alpha=alpha, decision=decision, why=why, experiment=row.id, comparison=found
    )
    return gate, failure


def _identical(locked: Locked) -> bool:
    base, head = locked.run.arms
    return (base.tree, base.manifest) == (head.tree, head.manifest)


def _dry_run(settings: Settings, asked: GateRequest, margin: float, alpha: float, as_json: bool, *, yes: bool) -> int:
    from eval_pipeline.cli.experiment_dry import dry_plan, show_dry
    from eval_pipeline.cli.experiment_run import refuse_engine
    from eval_pipeline.cli.launch import require_isolation
    from eval_pipeline.specs.gate import lock_gate
    from eval_pipeline.specs.library import Library
    from eval_pipeline.store.records import open_records

    locked = lock_gate(Library(settings.worlds_dir), asked)
    refuse_engine(settings, locked)
    if _identical(locked):
        said = "base and head are the same tree: it passes, and nothing would run"
        show_dry({"decision": "identical", "open_cells": [], "starts_engine": False, "dry_run": True}, [said], as_json)
        return 0
    _refuse_vain(locked, margin, alpha)
    require_isolation(settings, locked.run.backend)
    with open_records(settings) as records:
        data, lines = dry_plan(settings, records, locked, fresh=True, yes=yes)
    show_dry({"decision": None} | data, lines, as_json)
    return 0


def _refuse_vain(locked: Locked, margin: float, alpha: float) -> None:
    """Raises SpecError for a run that could tell nothing, before anything is spent."""
    from eval_pipeline.analysis.gate import passes_unchanged, worlds_to_pass
    from eval_pipeline.analysis.stats import score_range
    from eval_pipeline.errors import SpecError

    span = score_range(locked.score.policy, [case.rubric for case in locked.score.cases.values()])
    if not 0.0 < margin <= span[1] - span[0]:
        raise SpecError(
            f"--margin {margin:g} does not lie above 0 and within the range of scores, which is {span[1] - span[0]:g}"
        )
    unchanged = passes_unchanged({case.name: case.world for case in locked.run.cases}, margin, alpha, span)
    if unchanged is None:
        worlds = ", ".join(locked.run.worlds)
        raise SpecError(
            f"all cases are of one world ({worlds}), and nothing is known of another: no verdict is possible",
            hint="add cases of other worlds to the dataset",
        )
    if not unchanged:
        least = worlds_to_pass(margin, alpha, span)
        note(
            f"note: with so few worlds a head that differs in fewer than 6 cases can't be shown to be within {margin:g}: "
            f"that takes {least or 'thousands of'} worlds (or cases, each of a world of its own), or a larger margin"
        )


def _run(
    settings: Settings, records: Records, locked: Locked, timeout_s: float | None, *, yes: bool
) -> tuple[ExperimentRow, Failure | None]:
    """Run what has no valid result, as `experiment run --wait` does."""
    from eval_pipeline.cli.budget import confirm
    from eval_pipeline.cli.experiment_report import Asked, Watched, why_missing
    from eval_pipeline.cli.launch import Watch, launch
    from eval_pipeline.host import login
    from eval_pipeline.runner.planning import commit, plan
    from eval_pipeline.vault.delivery import Secrets

    # The refs as they are now: a gate judges no older head
    planned = plan(locked, records, Secrets(settings, records), fresh=True)
    confirm(records, locked, planned, yes=yes)
    row = commit(locked, planned, records, settings.user or login())
    for line in planned.notes:
        note(f"note: {line}")
    n_known = planned.n_done + len(planned.adopted)
    note(f"{row.id}: {planned.n_cells} cells, {n_known} have a valid result already")
    rescored = planned.resumes is not None and planned.resumes.score.digest != locked.score.digest
    if planned.n_done == planned.n_cells and not rescored:
        return row, None
    launched = launch(settings, row)
    ended = Watch(settings, records, row, launched, timeout_s).run()
    n_missing = row.n_cells - records.views.tallies(row.id)[row.id].n_done
    if not n_missing:
        return row, None
    missing = f"{n_missing} of {row.n_cells} cells have no valid result"
    row, watched = records.ledger.experiment(row.id), Watched(ended=ended, launched=launched)
    failure = why_missing(settings, records, row, missing, watched, Asked(resumed=True))
    first = "raise --budget (or the month's cap: evals budget); then " if failure.code == "budget_exceeded" else ""
    hint = f"{first}the same command goes on; evals experiment status {row.id} says what is missing"
    return row, Failure(failure.code, failure.message, hint)
