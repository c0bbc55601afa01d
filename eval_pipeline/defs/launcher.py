"""The detached engine process: `python -m eval_pipeline.defs.launcher EXPERIMENT [--when-told] [--only-score] [--unsafe-no-isolation]`.

Cell keys are on its standard input; none means all. Its exit code is 0 when every cell has a valid result. --when-told: the word
`begin` stands before them, and without it nothing is begun: whoever started the process ahead has thought better of it, or is gone.

Everything is imported late: each of its worker processes imports this module again (multiprocessing does so with the main one).
"""

import gc
import sys

BEGIN = "begin"


def main(argv: list[str]) -> int:
    gc.disable()  # until all is imported: a sixth of the time that it takes, and none of it is garbage
    import logging
    import os
    from contextlib import ExitStack
    from dataclasses import replace

    from eval_pipeline.defs.experiment_runs import run_experiment
    from eval_pipeline.defs.home import prepare_home
    from eval_pipeline.sandbox.local import hostlayer
    from eval_pipeline.settings import load_settings
    from eval_pipeline.store.liveness import driving
    from eval_pipeline.store.postgres import embedded_server
    from eval_pipeline.store.records import open_records
    from eval_pipeline.vault.held import log_redacted

    gc.freeze()
    gc.enable()
    logging.getLogger("alembic").setLevel(logging.WARNING)
    name, *flags = argv
    told = sys.stdin.read().split()
    if "--when-told" in flags and told[:1] != [BEGIN]:
        return 0
    keys = told[1:] if "--when-told" in flags else told
    settings = load_settings()
    log_redacted(settings.state_dir)
    if "--unsafe-no-isolation" in flags:
        settings = replace(settings, unsafe_no_isolation=True)
    only_score = "--only-score" in flags
    with ExitStack() as stack:
        os.environ.update(prepare_home(settings, stack.enter_context(embedded_server(settings))))
        stack.enter_context(driving(settings, name))
        records = stack.enter_context(open_records(settings, patience_s=120.0))
        experiment = records.ledger.experiment(name)
        on_bare_host = any(arm.manifest.image.requirements is None for arm in experiment.run.arms)
        if experiment.run.backend == "local" and on_bare_host and not only_score:
            stack.enter_context(hostlayer.built_ahead(settings.state_dir))
        return run_experiment(settings, records, experiment, keys, only_score=only_score)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
