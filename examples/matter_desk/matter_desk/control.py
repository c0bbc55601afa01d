"""Asking and stopping the services. Few imports: these commands run in every cell.

The lock on run/up is held as long as the supervisor lives; the file holds its pid.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import sys
import time

from matter_desk.places import HOST, port, run_dir

READY_WAIT_S = 10.0
DOWN_WAIT_S = 45.0


def ready() -> int:
    """0 once the document service answers, and Postgres through it."""
    deadline = time.monotonic() + READY_WAIT_S
    while problem := _problem():
        if time.monotonic() > deadline:
            print(f"not ready after {READY_WAIT_S:.0f} s: {problem}", file=sys.stderr)
            return 1
        time.sleep(0.01)
    return 0


def _problem() -> str:
    """Empty when all is well. A socket, because an HTTP library costs more than the question."""
    try:
        with socket.create_connection((HOST, port()), timeout=READY_WAIT_S) as connection:
            connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            first = connection.makefile("rb").readline()
    except OSError as error:
        return str(error)
    return "" if b" 200 " in first else f"the document service says {first!r}"


def down() -> int:
    """0 once the supervisor, and with it every service, has ended; also when nothing was up."""
    try:
        lock = os.open(run_dir() / "up", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    if locks(lock):
        return 0
    try:
        process = os.pidfd_open(int(os.read(lock, 20)))
        signal.pidfd_send_signal(process, signal.SIGTERM)
    except ProcessLookupError:
        return 0
    if not select.select([process], [], [], DOWN_WAIT_S)[0]:
        print("the services did not stop", file=sys.stderr)
        return 1
    return 0


def locks(lock: int) -> bool:
    """Whether the lock could be had."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
