"""The verbs that start work: run and rerun."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from eval_pipeline.cli.experiment_report import Asked, Watched, report
from eval_pipeline.cli.output import counted, dry_run_option, examples, json_option, note, starts_sandboxes, with_settings
from eval_pipeline.domain.cell import CellState
from eval_pipeline.settings import Settings

if TYPE_CHECKING:
    from eval_pipeline.cli.launch import Launched
    from eval_pipeline.specs.lock import Locked
    from eval_pipeline.store.ledger import ExperimentRow
    from eval_pipeline.store.records import Records


@click.command(
    "run",
    epilog=examples(
        "evals experiment run demo --dry-run",
        "evals experiment run demo --wait --timeout 600",
        "evals experiment run demo --fresh --wait   # the refs as they are now",
    ),
)
@click.argument("file")
@click.option("--wait/--no-wait", default=False, help="Watch until it is done. Ctrl-C cancels, a second one detaches.")
@click.option("--timeout", "timeout_s", type=float, help="Stop watching after so many seconds; the run goes on.")
@click.option(
    "--fresh", is_flag=True, help="When a ref has moved since, start a new experiment instead of resuming the locked one."
)
@click.option("--reuse/--no-reuse", default=True, help="Whether results of other experiments count for equal cells.")
@click.option("--yes", is_flag=True, help="Don't ask, however much it may cost.")
@dry_run_option
@json_option
@with_settings
@starts_sandboxes
def run(
    settings: Settings,
    file: str,
    wait: bool,
    timeout_s: float | None,
    fresh: bool,
    reuse: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Lock the file and run what is not done yet. The same file again resumes."""
    from eval_pipeline.cli.launch import engine_ahead, launch, require_isolation

    locked = lock_file(settings, file)
    if locked.run.backend == "local":
        require_isolation(settings)
    with ExitStack() as stack:
        ahead = None if dry_run else stack.enter_context(engine_ahead(settings, locked.run.experiment_id))

        from eval_pipeline.cli.budget import confirm  # what follows is imported while the engine imports
        from eval_pipeline.cli.experiment_dry import dry_plan, show_dry
        from eval_pipeline.host import login
        from eval_pipeline.runner.planning import commit, moved_text, plan
        from eval_pipeline.store.records import open_records
        from eval_pipeline.vault.delivery import Secrets

        records = stack.enter_context(open_records(settings))
        if dry_run:
            show_dry(*dry_plan(settings, records, locked, file=file, fresh=fresh, reuse=reuse, yes=yes), as_json)
            return 0
        planned = plan(locked, records, Secrets(settings, records), fresh=fresh, reuse=reuse)
        confirm(records, locked, planned, yes=yes)
        experiment = commit(locked, planned, records, settings.user or login())
        asked = Asked(file=file, wait=wait, resumed=planned.resumes is not None, moved=moved_text(planned, file))
        if asked.moved:
            note(f"{asked.moved} (a new experiment of {len(locked.run.cell_keys())} cells)")
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
            taken = counted(
                len(planned.adopted), "cell takes its result from an equal cell", "cells take their results from equal cells"
            )
            note(f"{taken} of other experiments; --no-reuse runs them")
        rescored = planned.resumes is not None and planned.resumes.score.digest != locked.score.digest
        if rescored:
            note("the rubric, the policy or a price has changed: its cells are judged again, none is run again")
        if planned.n_done == planned.n_cells and not rescored:
            return report(settings, records, experiment, as_json, asked)
        launched = launch(settings, experiment, ahead=ahead)
        return _follow(settings, records, experiment, launched, asked, timeout_s, as_json)


@click.command(
    "rerun",
    epilog=examples(
        "evals experiment rerun demo --failed --wait",
        "evals experiment rerun demo --cell harbour-spa.consents/base/0 --discard 'wrong setup' --dry-run",
    ),
)
@click.argument("name")
@click.option("--failed", is_flag=True, help="The cells that have no valid result.")
@click.option("--cell", "keys", multiple=True, help="This cell; may be given again.")
@click.option("--discard", metavar="REASON", help="Run valid cells again too; counted on the leaderboard.")
@click.option("--wait/--no-wait", default=False, help="Watch until it is done. Ctrl-C cancels, a second one detaches.")
@click.option("--timeout", "timeout_s", type=float, help="Stop watching after so many seconds; the run goes on.")
@dry_run_option
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
    dry_run: bool,
    as_json: bool,
) -> int:
    """Run the failed cells again, or the named ones. A valid cell is not run again unless it is discarded."""
    from eval_pipeline.cli.experiment_dry import dry_rerun
    from eval_pipeline.cli.launch import launch, require_isolation
    from eval_pipeline.errors import SpecError
    from eval_pipeline.store.records import read_records

    if failed == bool(keys):
        raise SpecError("say which cells: --failed, or --cell KEY", hint=f"`evals experiment cells {name}` lists them")
    if failed and discard is not None:
        raise SpecError("--discard is about valid results and --failed about cells without one", hint="name them: --cell KEY")
    with read_records(settings) as records:
        experiment = records.ledger.experiment(name)
        if experiment.run.backend == "local":
            require_isolation(settings)
        done = set(records.views.keys(experiment.id, [CellState.DONE]))
        chosen = _chosen(records, experiment, keys) if keys else [k for k in records.views.keys(experiment.id) if k not in done]
        done = done.intersection(chosen)
        open_keys = chosen if discard is not None else [key for key in chosen if key not in done]
        if dry_run:
            return dry_rerun(settings, records, experiment, open_keys, sorted(done.intersection(open_keys)), as_json)
        if done and discard is not None:
            takers = records.reuse.takers(sorted(done))
            n_discarded = records.ledger.discard(sorted(done), discard)
            note(f"{counted(n_discarded, 'valid result is', 'valid results are')} discarded: {discard}")
            if takers:
                shown = ", ".join(takers[:20]) + (f" and {len(takers) - 20} more" if len(takers) > 20 else "")
                note(
                    f"{counted(len(takers), 'cell', 'cells')} of other experiments took them over and go on to count them: {shown}"
                )
        elif done:
            they = (
                "1 of the cells has a valid result and is"
                if len(done) == 1
                else f"{len(done)} of the cells have a valid result and are"
            )
            note(f"{they} not run again; --discard REASON does it")
        records.ledger.clear_cancel(experiment.id)
        records.ledger.restore(experiment.id)
        if not open_keys:
            note("nothing to run")
            return report(settings, records, experiment, as_json, Asked(resumed=True))
        launched = launch(settings, experiment, open_keys)
        asked = Asked(wait=wait, resumed=True, keys=tuple(open_keys))
        return _follow(settings, records, experiment, launched, asked, timeout_s, as_json)


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
    asked: Asked,
    timeout_s: float | None,
    as_json: bool,
) -> int:
    from eval_pipeline.cli.launch import Watch

    note(f"{experiment.id}: engine started, process {launched.process.pid}; its log: {launched.log}")
    if not asked.wait:
        note(f"watch: evals experiment status {experiment.id} --watch")
        return report(settings, records, experiment, as_json, asked)
    ended = Watch(settings, records, experiment, launched, timeout_s).run()
    return report(settings, records, experiment, as_json, asked, Watched(ended=ended, launched=launched))


def lock_file(settings: Settings, file: str) -> Locked:
    from eval_pipeline.specs.library import Library
    from eval_pipeline.specs.lock import lock_experiment

    library = Library(settings.worlds_dir)
    locked = lock_experiment(library, library.experiment_path(file))
    refuse_engine(settings, locked)
    return locked


def refuse_engine(settings: Settings, locked: Locked) -> None:
    """Raises SpecError where an arm needs a container engine that the backend, as it is set up, has not."""
    from eval_pipeline.sandbox import modal_plan

    if locked.run.backend == "modal":
        for arm in locked.run.arms:
            modal_plan.check_engine(f"arm {arm.name!r}", arm.manifest.compose is not None, settings.modal.runtime)
