"""Writing a report, timed: 2000 cells drawn by a fixed seed, each with a stored bundle, and one with a long transcript.

    python bench/report.py [--cases 100] [--arms 4] [--trials 5] [--events 40] [--long-mb 10] [--into DIR] [--chromium]

Prints one JSON line: cpu_s and wall_s of the writing, peak_rss_mib of the process, the size on disk; with --chromium (Debian's, and
selenium) also open_s, how long the first page and that of the long transcript take until they are loaded. cpu_s is what stays
comparable on a busy machine.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import resource
import sys
import tarfile
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.boards import drawn, told

from eval_pipeline.analysis.leaderboard import leaderboard
from eval_pipeline.analysis.report import write_pages
from eval_pipeline.analysis.report_tables import Data
from eval_pipeline.store.artifacts import LocalArtifacts

ANSWER = "The notice period is 60 days; see documents/lease.md, clause 7.2. " * 20


def bundle(n: int, n_events: int) -> bytes:
    event = {"type": "tool_result", "name": "read_document", "elapsed_s": 1.5, "content": f"cell {n}: " + ANSWER}
    members = {
        "out/result.json": json.dumps({"status": "ok", "answer": f"{ANSWER} {n}"}).encode(),
        "out/transcript.jsonl": (json.dumps(event) + "\n").encode() * n_events,
        "out/files/memo.md": f"# Memo {n}\n\n{ANSWER}".encode(),
    }
    sink = io.BytesIO()
    with gzip.GzipFile(fileobj=sink, mode="wb", compresslevel=1) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return sink.getvalue()


def stored(cell: Any, store: LocalArtifacts, n: int, n_events: int) -> Any:
    counted = replace(cell.counted, bundle=store.put_bytes(bundle(n, n_events)).digest)
    return replace(cell, counted=counted)


def opened(folder: Path, names: list[str], profile: Path) -> dict[str, float]:
    from ui.browser import chromium

    with chromium(profile) as browser:
        took: dict[str, float] = {}
        for name in names:
            started = time.monotonic()
            browser.open((folder / name).as_uri())
            took[name] = round(time.monotonic() - started, 2)
    return took


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("cases", 100), ("arms", 4), ("trials", 5), ("events", 40), ("long-mb", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--into", type=Path)
    parser.add_argument("--chromium", action="store_true")
    asked = parser.parse_args()
    arms = {f"arm-{n}": 0.4 + 0.1 * n for n in range(asked.arms)}
    experiment, cells = told(drawn(asked.cases, asked.trials, arms, max(2, asked.cases // 5)), "arm-0")
    with tempfile.TemporaryDirectory() as scratch:
        store = LocalArtifacts(Path(scratch) / "artifacts")
        n_long = asked.long_mb * 10**6 // (len(ANSWER) + 100)
        kept = [stored(cell, store, n, asked.events if n else n_long) for n, cell in enumerate(cells)]
        folder = (asked.into or Path(scratch) / "report").absolute()
        wall, cpu = time.monotonic(), time.process_time()
        report = write_pages(Data.of(experiment, leaderboard(experiment, kept), kept), store, folder)
        found: dict[str, Any] = {
            "cells": report.n_cells,
            "pages": report.n_pages + 1,
            "wall_s": round(time.monotonic() - wall, 1),
            "cpu_s": round(time.process_time() - cpu, 1),
            "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            "size_mb": round(report.size_bytes / 10**6, 1),
            "index_kb": report.index.stat().st_size // 1000,
        }
        if asked.chromium:
            first = kept[0].key
            names = ["index.html", f"cells/{first.world}.{first.case}.{first.arm}.0.html"]
            found["open_s"] = opened(folder, names, Path(scratch) / "profile")
        print(json.dumps(found))


if __name__ == "__main__":
    main()
