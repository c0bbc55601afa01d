"""The supervisor: starts the services, stays, and ends with the first of them."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from matter_desk import postgres
from matter_desk.control import locks
from matter_desk.places import APP, make_run_dir, run_dir, write_private

STOP_WAIT_S = 20.0
_SIGNALS = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_PR_SET_PDEATHSIG = 1
_PASSED_ON = ("PATH", "HOME", "LANG", "MATTER_DESK_DATA", "MATTER_DESK_PORT")  # and no secret: a service needs none


class Service(NamedTuple):
    """stop_signal: asks it to end in good order; it is also what it gets when the supervisor dies."""

    name: str
    argv: list[str]
    stop_signal: signal.Signals


def services() -> list[Service]:
    """In the order of their start."""
    return [
        Service("postgres", postgres.server_argv(), signal.SIGINT),  # a fast shutdown: with a checkpoint
        Service("documents", [sys.executable, str(APP / "bin" / "documents")], signal.SIGTERM),
    ]


def up() -> int:
    """Until a service ends: its exit code, 128+n for a signal, 1 where it is 0, for none may end. Until a signal to stop: 0."""
    make_run_dir()
    lock = os.open(run_dir() / "up", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not locks(lock):
        print("the services are up already", file=sys.stderr)
        return 1
    os.truncate(lock, 0)
    os.write(lock, str(os.getpid()).encode())
    write_private(run_dir() / "key", os.urandom(32))  # sessions of earlier services end
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    living = {_start(service): service for service in services()}
    code = _first_end(living)
    for pid, service in reversed(living.copy().items()):
        _stop(living, pid, service)
    return code


def _start(service: Service) -> int:
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    pid = os.fork()
    if pid == 0:
        _become(service, prctl)
    return pid


def _become(service: Service, prctl: Callable[[int, int], int]) -> NoReturn:
    try:
        prctl(_PR_SET_PDEATHSIG, service.stop_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        os.execve(service.argv[0], service.argv, {name: os.environ[name] for name in _PASSED_ON if name in os.environ})
    except OSError as error:
        print(f"{service.name} can't be started: {error}", file=sys.stderr, flush=True)
    os._exit(127)


def _first_end(living: dict[int, Service]) -> int:
    """The code to end with, once there is a reason to; who has ended is no longer in `living`."""
    while (got := signal.sigwait(_SIGNALS)) == signal.SIGCHLD:
        ended = _reap(living)
        if ended is not None:
            return ended
    print(f"stopping: {signal.Signals(got).name}", file=sys.stderr)
    return 0


def _reap(living: dict[int, Service]) -> int | None:
    """Collect the dead; the exit code of the first that is a service."""
    first: int | None = None
    while living:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            break
        service = living.pop(pid, None)
        if service is not None:
            code = os.waitstatus_to_exitcode(status)
            how = f"exit code {code}" if code >= 0 else f"signal {-code} ({signal.Signals(-code).name})"
            print(f"{service.name} (pid {pid}) ended with {how}", file=sys.stderr, flush=True)
            first = first if first is not None else code or 1 if code >= 0 else 128 - code
    return first


def _stop(living: dict[int, Service], pid: int, service: Service) -> None:
    """SIGKILL when it does not end in good order."""
    if pid not in living:
        return
    os.kill(pid, service.stop_signal)
    deadline = time.monotonic() + STOP_WAIT_S
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        left = deadline - time.monotonic()
        if left <= 0:
            print(f"{service.name} (pid {pid}) did not stop: killed", file=sys.stderr, flush=True)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            break
        signal.sigtimedwait({signal.SIGCHLD}, min(left, 1.0))
    del living[pid]
