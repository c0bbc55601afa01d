"""`python -m tests.chaos [--backend local|modal] SEED...` or `--rounds N [--from SEED]`: play rounds again, or more of them."""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from chaos.chaos_play import play
from chaos.chaos_stage import stage
from support.modal_loopback import loopback_modal
from support.places import short_dir


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--backend", choices=["local", "modal"], default="local")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("seeds", nargs="*", type=int)
    options = parser.parse_args()
    seeds = options.seeds or range(options.first, options.first + (options.rounds or 5))
    with ExitStack() as stack:
        server = None
        if options.backend == "modal":
            server = stack.enter_context(loopback_modal(stack.enter_context(short_dir())))
            os.environ.update(server.env)
        root = stack.enter_context(short_dir())
        logs = root / "logs"
        logs.mkdir()
        began = time.monotonic()
        total = play(stack.enter_context(stage(options.backend, root, server)), seeds, logs, story=True)
        print(f"{time.monotonic() - began:.0f} s", *total.why, sep="\n")
        print(total.line)
    return 1 if total.why else 0


if __name__ == "__main__":
    sys.exit(main())
