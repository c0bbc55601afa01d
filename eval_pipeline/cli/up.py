from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

import click

from eval_pipeline.cli.output import emit, json_option, note, starts_sandboxes, with_settings
from eval_pipeline.settings import Settings

_CHECK_EVERY_S = 30.0
_GRACE_S = 45.0
_STOP_S = 20.0


@click.command()
@click.option("--port", type=int, default=3000, show_default=True, help="Of the Dagster UI, on 127.0.0.1 only.")
@json_option
@with_settings
@starts_sandboxes
def command(settings: Settings, port: int, as_json: bool) -> int:
    """Start Postgres and the Dagster UI with its daemon; Ctrl-C stops both.

    Engines that `evals experiment run` started go on; runs that were launched in the UI go on at the next `evals up`.
    """
    from eval_pipeline.defs.home import prepare_home
    from eval_pipeline.errors import SpecError
    from eval_pipeline.store.postgres import embedded_server, restart_if_down, server_status
    from eval_pipeline.store.records import open_records

    if _taken(port):
        raise SpecError(f"port {port} of 127.0.0.1 is taken", hint="name another one: evals up --port 3001")
    stopping = _signals()
    with alone(settings, port), embedded_server(settings) as url, open_records(settings):
        environment, n_starts, again = prepare_home(settings, url), 0, True
        while again:
            process, n_starts = _start(environment, settings, port), n_starts + 1
            say = partial(_say_url, port, as_json and n_starts == 1)
            try:
                again = _supervise(process, port, say, lambda: restart_if_down(settings), stopping)
            finally:
                _stop(process)
    shared = server_status(settings).running
    note("stopped: Dagster has ended; Postgres goes on, others use it" if shared else "stopped: Dagster and Postgres have ended")
    return 0 if stopping else 1


@contextmanager
def alone(settings: Settings, port: int) -> Generator[None]:
    """Two daemons over one Dagster would launch everything twice. The lock goes with this process, however it ends."""
    from eval_pipeline.errors import SpecError
    from eval_pipeline.host import own_state_dir

    own_state_dir(settings.state_dir)
    with (settings.state_dir / "up.lock").open("a+") as lock:
        lock.seek(0)
        try:
            flock(lock, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            hint = "stop that one first (Ctrl-C there), or take a state directory of your own: EVALS_STATE_DIR"
            raise SpecError(f"`evals up` is running already for {settings.state_dir}: {lock.read().strip()}", hint=hint) from None
        lock.truncate(0)
        lock.write(f"process {os.getpid()}, http://127.0.0.1:{port}\n")
        lock.flush()
        yield


def _start(environment: dict[str, str], settings: Settings, port: int) -> subprocess.Popen[bytes]:
    log = settings.state_dir / "logs" / "dagster.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "dagster", "dev", "-m", "eval_pipeline.definitions", "-h", "127.0.0.1", "-p", str(port)]
    note(f"starting Dagster; its log: {log}")
    with log.open("ab") as sink:
        return subprocess.Popen(
            command,
            env=environment,
            cwd=settings.dagster_home,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )


def _signals() -> list[int]:
    """From now on these end nothing by themselves; the list tells which of them came."""
    asked: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: asked.append(number))
    return asked


def _supervise(
    process: subprocess.Popen[bytes], port: int, say_url: Callable[[float, int], None], revive: Any, stopping: list[int]
) -> bool:
    """Until the end. True when the server of its code ended, which nothing else starts again: Dagster is to be started anew."""
    started, ready, next_check = time.monotonic(), False, 0.0
    said: set[str] = set()
    while process.poll() is None and not stopping:
        time.sleep(0.5)
        if ready and not _serves_code(process.pid) and process.poll() is None:
            note("Dagster's code server is gone: starting Dagster again")
            return True
        if not ready and _answers(port):
            ready, next_check = True, time.monotonic() + _GRACE_S
            say_url(time.monotonic() - started, process.pid)
        if ready and time.monotonic() > next_check:
            next_check = time.monotonic() + _CHECK_EVERY_S
            revive()
            problems = set(_problems(port))
            for problem in sorted(problems - said):
                note(f"warning: {problem}")
            said = problems
    if not stopping:
        note(f"Dagster ended by itself with code {process.returncode}; its log tells why")
    return False


def _say_url(port: int, as_json: bool, after_s: float, pid: int) -> None:
    """as_json: only of the first start, because there is one envelope."""
    url = f"http://127.0.0.1:{port}"
    note(f"the Dagster UI is at {url} ({after_s:.0f} s), for this machine alone: it asks nobody who they are. Ctrl-C stops it.")
    emit({"url": url, "pid": pid}, as_json, lambda: None)


def _serves_code(session: int) -> bool:
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            # Bytes: of this machine's processes one may be an agent's, whose name need not be text
            fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
            if int(fields[3]) == session and fields[0] != b"Z" and b"\0api\0grpc\0" in (folder / "cmdline").read_bytes():
                return True
    return False


_QUERY = """{ instance { daemonHealth { allDaemonStatuses { daemonType required healthy } } }
 workspaceOrError { ... on Workspace { locationEntries { name locationOrLoadError {
   ... on PythonError { message }
   ... on RepositoryLocation { repositories { sensors { name sensorState { status } } schedules { name scheduleState { status } } } } } } } } }"""


def _problems(port: int) -> list[str]:
    """What is off: a daemon without a heartbeat, a sensor or schedule that is stopped, code that does not load."""
    import json

    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/graphql", json.dumps({"query": _QUERY}).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            data: Any = json.load(answer)["data"]
    except (OSError, HTTPException, ValueError, KeyError) as error:
        return [f"the Dagster UI does not answer: {error}"]
    daemons = data["instance"]["daemonHealth"]["allDaemonStatuses"]
    problems = [f"the daemon {d['daemonType']} has no heartbeat" for d in daemons if d["required"] and not d["healthy"]]
    for entry in data["workspaceOrError"].get("locationEntries", []):
        location = entry["locationOrLoadError"] or {}
        if "message" in location:
            problems.append(f"the code location {entry['name']} does not load: {location['message'].splitlines()[0]}")
        for repository in location.get("repositories", []):
            problems += [
                f"the sensor {s['name']} is stopped" for s in repository["sensors"] if s["sensorState"]["status"] != "RUNNING"
            ]
            problems += [
                f"the schedule {s['name']} is stopped"
                for s in repository["schedules"]
                if s["scheduleState"]["status"] != "RUNNING"
            ]
    return problems


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/server_info", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Dagster's whole session ends, whatever of it is still there."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False
