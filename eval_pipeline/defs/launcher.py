"""The detached engine process: `python -m eval_pipeline.defs.launcher EXPERIMENT [--unsafe-no-isolation] [--only-score]`.

Cell keys are on its standard input; none means all. Its exit code is 0 when every cell has a valid result.

Everything is imported late: each of its worker processes imports this module again (multiprocessing does so with the main one).
"""

import gc
import sys


def main(argv: list[str]) -> int:
    gc.disable()  # until all is imported: a sixth of the time that it takes, and none of it is garbage
    import logging
    import os
    from dataclasses import replace

    from eval_pipeline.defs.home import prepare_home
    from eval_pipeline.settings import load_settings
    from eval_pipeline.store.liveness import driving
    from eval_pipeline.store.postgres import embedded_server
    from eval_pipeline.vault.held import log_redacted

    logging.getLogger("alembic").setLevel(logging.WARNING)
    experiment, *flags = argv
    keys = sys.stdin.read().split()
    settings = load_settings()
    log_redacted(settings.state_dir)
    if "--unsafe-no-isolation" in flags:
        settings = replace(settings, unsafe_no_isolation=True)
    with embedded_server(settings) as url:
        os.environ.update(prepare_home(settings, url))
        with driving(settings, experiment):
            from eval_pipeline.defs.experiment_runs import run_experiment

            gc.freeze()
            gc.enable()
            return run_experiment(settings, experiment, keys, only_score="--only-score" in flags)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
