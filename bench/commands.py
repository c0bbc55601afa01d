"""What people wait for at the command line: the first screen, a read verb, the first agent, and a resume with nothing to do.

    python bench/commands.py [--cells 2000] [--repeat 5]

Prints one JSON line; each time is a median. *_cpu_s of whole process trees, from a control group of its own or, where none can be made, from
/proc/stat, and then the machine must be quiet. import_dagster_*: what Python needs for `import dagster` alone, in the same run.
first_agent_s: from the start of `evals experiment run` on a state directory that has seen no cell until the first agent runs; on the
way there the experiment is in the ledger (planned_s), and its engine opens the first attempt (first_attempt_s).
resume_*: `evals experiment run --wait` on an experiment whose cells are all done.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cells import Cpu, make_project

from eval_pipeline.settings import Settings
from eval_pipeline.store.records import open_records

EVALS = [sys.executable, "-m", "eval_pipeline.cli"]


def timed(cpu: Cpu, command: Sequence[str], repeat: int, **options: Any) -> dict[str, float]:
    walls: list[float] = []
    used: list[float] = []
    for _ in range(repeat):
        before, started = cpu.used_s(), time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=cpu.enter, **options)
        walls.append(time.monotonic() - started)
        used.append(cpu.used_s() - before)
    return {"s": round(statistics.median(walls), 2), "cpu_s": round(statistics.median(used), 3)}


def flat(name: str, took: dict[str, float]) -> dict[str, float]:
    return {f"{name}_{unit}": value for unit, value in took.items()}


def first_agent(settings: Settings, experiment: str, since: datetime) -> dict[str, float]:
    with open_records(settings) as records:
        row = records.ledger.experiment(experiment)
        attempts = [cell.counted for cell in records.views.cells(row.id) if cell.counted is not None]
    moments = {
        "planned_s": row.created_at,
        "first_attempt_s": min(attempt.created_at for attempt in attempts),
        "first_agent_s": min(attempt.agent_started_at for attempt in attempts if attempt.agent_started_at is not None),
    }
    return {name: round((moment - since).total_seconds(), 2) for name, moment in moments.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=2000)
    parser.add_argument("--repeat", type=int, default=5)
    asked = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="evb-", dir="/tmp"))
    root.chmod(0o711)
    make_project(root, asked.cells)
    settings = Settings(state_dir=root / "state", worlds_dir=root / "worlds_src")
    here = {
        "env": {**os.environ, "EVALS_STATE_DIR": str(settings.state_dir), "EVALS_WORLDS_DIR": str(settings.worlds_dir)},
        "cwd": root,
    }
    cpu = Cpu()
    try:
        subprocess.run([*EVALS, "doctor"], check=True, stdout=subprocess.DEVNULL, **here)  # Postgres' data directory is made once
        found = {
            **flat("python", timed(cpu, [sys.executable, "-c", ""], asked.repeat)),
            **flat("import_dagster", timed(cpu, [sys.executable, "-c", "import dagster"], asked.repeat)),
            **flat("help", timed(cpu, [*EVALS, "--help"], asked.repeat, **here)),
        }
        since = datetime.now(UTC)
        run = [*EVALS, "experiment", "run", "noop", "--wait"]
        all_cells = timed(cpu, run, 1, **here)
        found |= {"cells": asked.cells, **flat("run", all_cells), **first_agent(settings, "noop", since)}
        found |= flat("resume", timed(cpu, run, asked.repeat, **here))
        found |= flat("list", timed(cpu, [*EVALS, "experiment", "list"], asked.repeat, **here))
        found |= flat("leaderboard", timed(cpu, [*EVALS, "leaderboard", "noop"], asked.repeat, **here))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
