"""`python chaos_engine.py EXPERIMENT`: what the detached engine process does, without Dagster's record of it, so that it is up in a second."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from pathlib import Path

import time_machine

from eval_pipeline.domain.cell import CellState
from eval_pipeline.runner.engine import Engine
from eval_pipeline.runner.finish import judge_missing
from eval_pipeline.runner.reaper import reap
from eval_pipeline.runner.services import open_services
from eval_pipeline.settings import load_settings
from eval_pipeline.store.liveness import end_dead_engines
from eval_pipeline.store.records import open_records


def follow(clock: Path) -> None:
    """This process' wall clock is ahead of the machine's by the seconds in the file; the monotonic clock stays."""
    with time_machine.travel(time.time(), tick=True) as traveller:
        while True:
            traveller.move_to(time_machine.escape_hatch.time.time() + int(clock.read_text()))
            threading.Event().wait(0.1)


def main(name: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s")
    if clock := os.environ.get("EVALS_CHAOS_CLOCK"):
        threading.Thread(target=follow, args=(Path(clock),), daemon=True).start()
    settings = load_settings()
    with open_records(settings, patience_s=float(os.environ.get("EVALS_CHAOS_PATIENCE_S", "60"))) as records:
        experiment = records.ledger.experiment(name)
        with open_services(settings, records) as services:
            keys = records.views.keys(name, [state for state in CellState if state is not CellState.DONE])
            if keys:
                asyncio.run(Engine(services, experiment, run_id=None, on_done=lambda _: None).run(keys))
            asyncio.run(judge_missing(services, experiment))
        end_dead_engines(records.leases, settings)
        if not records.leases.living():
            asyncio.run(reap(settings, records, experiment.run.backend))


if __name__ == "__main__":
    main(sys.argv[1])
