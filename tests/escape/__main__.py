"""`python -m tests.escape [--backend local|modal]`: what an agent that wants out tries, and how each of it ended, as a table."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from escape.escape_all import on_local, on_modal
from escape.escape_table import Row, Verdict, last_line, table
from support.modal_loopback import loopback_modal
from support.places import short_dir


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.escape", description=__doc__)
    parser.add_argument("--backend", choices=["local", "modal"], action="append")
    backends: list[str] = parser.parse_args().backend or ["local", "modal"]
    if os.getuid() != 0 and "modal" in backends:
        print("the loopback Modal serves as root alone: modal is left out", file=sys.stderr)
        backends.remove("modal")
    rows: list[Row] = []
    if "local" in backends:
        with short_dir() as folder:
            rows += on_local(folder)
    if "modal" in backends:
        with short_dir() as folder, short_dir() as served, loopback_modal(served) as server:
            os.environ.update(server.env)
            rows += on_modal(folder, server)
    print(table(rows))
    print(f"{sum(row.verdict is Verdict.NOT_SHOWN for row in rows)} attempts are not shown here and count for nothing")
    print(last_line(rows, backends))
    return 1 if any(row.verdict is Verdict.OUT for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
