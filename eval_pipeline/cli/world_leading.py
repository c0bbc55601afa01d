"""Who on this machine leads an open world's ports here: one process by default, which others find."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path

from eval_pipeline.settings import Settings


@contextmanager
def registered(settings: Settings, backend: str, sandbox: str, addresses: dict[str, str]) -> Generator[None]:
    """While it lasts others read here where the ports are; nothing happens when another process is registered already."""
    path = _file(settings, backend, sandbox)
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if _free(fd):
            os.ftruncate(fd, 0)
            os.write(fd, json.dumps(addresses).encode())
        yield
    finally:
        os.close(fd)


def led_already(settings: Settings, backend: str, sandbox: str) -> dict[str, str]:
    """Port inside to address, of the process that is registered and lives; empty when there is none."""
    try:
        fd = os.open(_file(settings, backend, sandbox), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return {}
    try:
        if _free(fd):
            return {}
        text = os.read(fd, 1 << 16)
    finally:
        os.close(fd)
    return json.loads(text) if text else {}


def _free(fd: int) -> bool:
    """Its holder's end gives the lock back, however it ended."""
    try:
        flock(fd, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _file(settings: Settings, backend: str, sandbox: str) -> Path:
    return settings.state_dir / "ports" / f"{backend}-{sandbox}.json"
