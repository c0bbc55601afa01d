"""`evals` in processes that are forked from one that has imported it: their own in all but the second that imports take.

An engine that the command starts is forked likewise. What else starts afresh (workers, sandboxes) is started by those two, as ever.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support import forked_engine

TESTS = Path(__file__).resolve().parents[1]
# Commands import these when they run
STARTS_ENGINES = {"run", "rerun", "score"}
LATE = ("cli.launch", "store.records", "analysis.leaderboard", "analysis.load_tables", "analysis.power", "runner.planning")


def evals(args: Sequence[str], env: Mapping[str, str], cwd: Path, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Without a standard input. Raises subprocess.TimeoutExpired when it is not done in time; it is killed then."""
    order = json.dumps({"args": list(args), "env": dict(env), "cwd": str(cwd)}) + "\n"
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err, _connected() as server:
        socket.send_fds(server, [b"\n"], [out.fileno(), err.fileno()])
        server.sendall(order.encode())
        with server.makefile() as told:
            pid = int(told.readline())
            server.settimeout(timeout_s)
            try:
                code = int(told.readline())
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(["evals", *args], timeout_s) from None
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(["evals", *args], code, out.read(), err.read())


def _connected() -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(_server())
    return connection


@functools.cache
def _server() -> bytes:
    """The abstract name of this process's server, which ends with it: its standard input is held here."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("")
        listener.listen(16)
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)])}
        command = [sys.executable, "-m", "support.forked_cli", str(listener.fileno())]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, env=env, pass_fds=[listener.fileno()])
        atexit.register(server.communicate)
        return listener.getsockname()


def _serve(listener: socket.socket) -> dict[str, Any]:
    """Returns in a new process for each order, as the process that carries it out."""
    while True:
        if 0 in select.select([listener, 0], [], [])[0]:
            os._exit(0)
        connection, _ = listener.accept()
        if os.fork() == 0:
            break
        connection.close()
        _reap()
    _, (out, err), _, _ = socket.recv_fds(connection, 1, 2)
    order = json.loads(connection.makefile().readline())
    if pid := os.fork():
        connection.sendall(f"{pid}\n".encode())
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        connection.sendall(f"{code}\n".encode())
        os._exit(0)
    connection.close()
    listener.close()
    for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (err, 2)):
        os.dup2(source, target)
        os.close(source)
    return order


def _reap() -> None:
    while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        os.waitpid(-1, os.WNOHANG)


def _main() -> None:
    code = 1

    def end() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    # As the first, so that it runs last: the interpreter would take all apart that was imported, object by object
    atexit.register(end)
    from eval_pipeline.cli.main import NOUNS, main

    for name in (*(f"cli.{module}" for module, _ in NOUNS.values()), *LATE):
        importlib.import_module(f"eval_pipeline.{name}")
    forked_engine.preload()
    gc.freeze()  # no collection touches what all share
    order = _serve(socket.socket(fileno=int(sys.argv[1])))
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    sys.argv = ["evals", *order["args"]]
    do = main
    if STARTS_ENGINES & set(order["args"]) and forked_engine.engine_in_waiting():
        do = forked_engine.run
    try:
        do()
    except SystemExit as ended:
        assert isinstance(ended.code, int)
        code = ended.code


if __name__ == "__main__":
    _main()
