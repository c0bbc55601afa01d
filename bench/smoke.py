"""Small versions of the benches, as ratios, against the committed ones: `make bench-smoke`.

    python bench/smoke.py [--write]

Prints a table on standard error and one JSON line. Each ratio is of CPU times of the same run, so a slower or a busy machine moves it
little; it ends with 1 only when one is more than the baseline's `factor` times as high, or could not be had. --write: what was measured becomes the baseline.

    cell_over_floor        one more cell, through everything, over a bare sandbox with one command
    run_over_dagster       an experiment's fixed share (40 cells without what they cost each) over `import dagster`
    resume_over_dagster    a run with nothing to do over `import dagster`
    leaderboard_over_help, list_over_help   two read verbs over `evals --help`
    help_over_python       `evals --help` over an empty Python program
    persist_over_floor     a transcript into the store over one SHA-256, one compression and one durable write of it
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from moves import FAILING, moves, table

HERE = Path(__file__).parent
BASELINE = HERE / "baseline.json"
FEW, MORE = 40, 240


def measured(script: str, *options: str) -> dict[str, Any]:
    print(f"{script} {' '.join(options)}", file=sys.stderr)
    done = subprocess.run([sys.executable, str(HERE / script), *options], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def ratios(commands: dict[str, Any], cells: dict[str, Any], persisted: dict[str, Any]) -> dict[str, float]:
    cell_s = (cells["cpu_ms_per_cell"] * cells["cells"] / 1e3 - commands["run_cpu_s"]) / (cells["cells"] - commands["cells"])
    found = {
        "cell_over_floor": cell_s * 1e3 / cells["floor_ms_per_cell"],
        "run_over_dagster": (commands["run_cpu_s"] - cell_s * commands["cells"]) / commands["import_dagster_cpu_s"],
        "resume_over_dagster": commands["resume_cpu_s"] / commands["import_dagster_cpu_s"],
        "leaderboard_over_help": commands["leaderboard_cpu_s"] / commands["help_cpu_s"],
        "list_over_help": commands["list_cpu_s"] / commands["help_cpu_s"],
        "help_over_python": commands["help_cpu_s"] / commands["python_cpu_s"],
        "persist_over_floor": persisted["cpu_s"] / persisted["floor_cpu_s"],
    }
    # A difference of two noisy measures may come out below zero: then nothing was measured
    return {name: round(value, 3) for name, value in found.items() if value > 0}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    baseline = json.loads(BASELINE.read_text())
    now = ratios(
        measured("commands.py", "--cells", str(FEW), "--repeat", "3"),
        measured("cells.py", "--cells", str(MORE)),
        measured("persist.py", "--mib", "128", "--backend", "local")["local"],
    )
    found = moves(baseline["ratios"], now, baseline["factor"])
    print(table(found), file=sys.stderr)
    print(json.dumps({"factor": baseline["factor"], "moves": [asdict(one) for one in found]}))
    if asked.write:
        BASELINE.write_text(json.dumps({**baseline, "ratios": now}, indent=2) + "\n")
        return 0
    return 1 if any(one.verdict in FAILING for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
