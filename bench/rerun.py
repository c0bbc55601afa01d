"""What a rerun of some cells costs beside the cells themselves.

    python bench/rerun.py [--cells 400] [--again 100] [--repeat 3]

Prints one JSON line. An experiment of no-op cells is run; then `evals experiment rerun --cell KEY ... --discard REASON --wait` runs some of
them again, which is the way of failed ones too, with results to set aside before. cells_s: what as many cells took within the first run,
from its first agent's start to its last result. overhead_s: the median rerun's wall time beyond that. *_cpu_s as in commands.py.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from pathlib import Path

from cells import Cpu, make_project
from commands import EVALS, flat, timed

from eval_pipeline.settings import Settings
from eval_pipeline.store.records import open_records


def first_run(settings: Settings, experiment: str) -> tuple[list[str], float]:
    """Its cells, and the seconds between its first agent's start and its last result."""
    with open_records(settings) as records:
        cells = records.views.cells(records.ledger.experiment(experiment).id)
    attempts = [cell.counted for cell in cells if cell.counted is not None]
    begun = [attempt.agent_started_at for attempt in attempts if attempt.agent_started_at is not None]
    ended = [attempt.ended_at for attempt in attempts if attempt.ended_at is not None]
    return [str(cell.key) for cell in cells], (max(ended) - min(begun)).total_seconds()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=400)
    parser.add_argument("--again", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=3)
    asked = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="evb-", dir="/tmp"))
    root.chmod(0o711)
    make_project(root, asked.cells)
    settings = Settings(state_dir=root / "state", worlds_dir=root / "worlds_src")
    env = {**os.environ, "EVALS_STATE_DIR": str(settings.state_dir), "EVALS_WORLDS_DIR": str(settings.worlds_dir)}
    cpu = Cpu()
    try:
        run = timed(cpu, [*EVALS, "experiment", "run", "noop", "--wait"], 1, env=env, cwd=root)
        keys, took_s = first_run(settings, "noop")
        named = [part for key in keys[:: max(1, len(keys) // asked.again)][: asked.again] for part in ("--cell", key)]
        command = [*EVALS, "experiment", "rerun", "noop", *named, "--discard", "bench", "--wait"]
        again = timed(cpu, command, asked.repeat, env=env, cwd=root)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    cells_s = took_s / len(keys) * asked.again
    found = {"cells": len(keys), **flat("run", run), "again": asked.again, **flat("rerun", again), "cells_s": round(cells_s, 2)}
    print(json.dumps({**found, "overhead_s": round(again["s"] - cells_s, 2)}))


if __name__ == "__main__":
    main()
