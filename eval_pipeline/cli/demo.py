from __future__ import annotations

import time
from contextlib import ExitStack

import click

from eval_pipeline.cli.output import Failure, emit, json_option, note, starts_sandboxes, with_settings
from eval_pipeline.settings import Settings


@click.command()
@click.option("--timeout", "timeout_s", type=float, help="Stop watching after so many seconds; the run goes on.")
@json_option
@with_settings
@starts_sandboxes
def command(settings: Settings, timeout_s: float | None, as_json: bool) -> int:
    """Run the demo experiment, print its leaderboard, and say how to go on. Run again, it resumes."""
    from eval_pipeline.cli.launch import Watch, engine_ahead, launch, require_isolation
    from eval_pipeline.specs.library import Library
    from eval_pipeline.specs.lock import lock_experiment

    started = time.monotonic()
    require_isolation(settings)
    library = Library(settings.worlds_dir)
    locked = lock_experiment(library, library.experiment_path("demo"))
    with ExitStack() as stack:
        ahead = stack.enter_context(engine_ahead(settings, locked.run.experiment_id))

        from eval_pipeline.runner.planning import commit, plan  # what follows is imported while the engine imports
        from eval_pipeline.store.records import open_records
        from eval_pipeline.vault.delivery import Secrets

        records = stack.enter_context(open_records(settings))
        planned = plan(locked, records, Secrets(settings, records), fresh=False)
        experiment = commit(locked, planned, records)
        for line in planned.moved:
            note(f"{line}: resuming the locked one")
        if planned.n_done == planned.n_cells:
            note(f"{experiment.id}: all {planned.n_cells} cells are done already; nothing is run again")
        else:
            n_cases, n_arms = len(planned.run.cases), len(planned.run.arms)
            verb = "resuming" if planned.resumes else "running"
            note(
                f"{verb} {experiment.id}: {n_cases} cases x {n_arms} arms x {planned.run.trials} trials, {planned.n_done} cells done"
            )
            launched = launch(settings, experiment, ahead=ahead)
            Watch(settings, records, experiment, launched, timeout_s).run()

        from eval_pipeline.analysis.load import load_leaderboard
        from eval_pipeline.cli.leaderboard import show

        board = load_leaderboard(records, experiment)
    missing = f"{board.n_open} of {planned.n_cells} cells have no valid result"
    failure = Failure("cells_failed", missing, f"evals experiment status {experiment.id} says why") if board.n_open else None
    emit(board.as_data(), as_json, lambda: show(board), failure)
    note(f"\ntook {time.monotonic() - started:.1f} s. Look closer:")
    note(f"  .venv/bin/evals experiment cells {experiment.id}")
    note(f"  .venv/bin/evals cell show {planned.run.cell_keys()[0]}")
    note(f"  .venv/bin/evals report {experiment.id}")
    note("  .venv/bin/evals up        the Dagster UI at http://127.0.0.1:3000 (Ctrl-C stops it)")
    return 0 if board.n_open == 0 else 1
