"""The engine that a forked command starts, forked as well: its own process in all but the seconds that imports take."""

from __future__ import annotations

import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
from typing import Any, ClassVar

ENGINE = "eval_pipeline.defs.launcher"
# What an engine imports until its experiment is done, most of it late
USED = (
    "alembic.command",
    "dagster._core.execution.execute_in_process",
    "dagster._core.storage.local_compute_log_manager",
    "dagster._daemon.controller",
    "dagster_postgres",
    "eval_pipeline.analysis.board_text",
    "eval_pipeline.analysis.forest",
    "eval_pipeline.analysis.load",
    "eval_pipeline.analysis.load_calibration",
    "eval_pipeline.defs.experiment_runs",
    "eval_pipeline.sandbox.local.backend",
    "eval_pipeline.store.liveness",
    "eval_pipeline.vault.held",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "pandas",
    "pyarrow.parquet",
    "upath.implementations.local",
)


def preload() -> None:
    for name in USED:
        importlib.import_module(name)


class _Popen(subprocess.Popen[Any]):
    """Gives the first engine that is started to the process that waits for it, and starts anything else as ever."""

    waiting: ClassVar[tuple[int, socket.socket] | None] = None

    def _execute_child(self, args: Any, *how: Any) -> None:
        if _Popen.waiting is None or list(args[1:3]) != ["-m", ENGINE]:
            super()._execute_child(args, *how)  # pyright: ignore[reportAttributeAccessIssue]
            return
        self.pid, told = _Popen.waiting
        _Popen.waiting = None
        ends = how[9:15]  # of the pipes to its standard streams: its own is every other one
        with told:
            socket.send_fds(told, [b"\n"], [ends[0], ends[3], ends[5]])
            told.sendall(json.dumps({"argv": args[3:], "env": dict(os.environ)}).encode())
        self._child_created = True
        self._close_pipe_fds(*ends)  # pyright: ignore[reportAttributeAccessIssue]


def engine_in_waiting() -> bool:
    """Forks. False in this process, whose first engine is the other one; that returns True when it is to be one, or ends with this."""
    told, teller = socket.socketpair()
    if pid := os.fork():
        told.close()
        _Popen.waiting = (pid, teller)
        subprocess.Popen = _Popen
        return False
    teller.close()
    data, streams, _, _ = socket.recv_fds(told, 1, 3)
    if not data:
        os._exit(0)
    with told, told.makefile() as order:
        given = json.load(order)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.setsid()
    os.environ.clear()
    os.environ.update(given["env"])
    sys.argv = [ENGINE, *given["argv"]]
    return True


def run() -> None:
    """Raises SystemExit, as the program does."""
    del sys.modules[ENGINE]  # the command line had a word of it
    runpy.run_module(ENGINE, run_name="__main__", alter_sys=True)
