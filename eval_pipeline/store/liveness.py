"""Whether an engine's process still lives, as the kernel knows it: a lock file that ends with its holder."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from eval_pipeline.host import host_identity
from eval_pipeline.settings import Settings
from eval_pipeline.store.leases import Leases

log = logging.getLogger(__name__)


def engines_dir(settings: Settings) -> Path:
    return settings.state_dir / "engines"


@contextmanager
def alive(folder: Path, engine_id: str) -> Generator[None]:
    """Hold a lock that the kernel frees when this process ends, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{engine_id}.lock"
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


@contextmanager
def driving(settings: Settings, experiment: str) -> Generator[None]:
    """This process drives the experiment, from before its engine is in the ledger until after it: see `died_driving`."""
    for path in _drivers(settings, experiment):
        if not is_held(path):
            path.unlink(missing_ok=True)
    with alive(engines_dir(settings), f"drive-{experiment}-{os.getpid()}"):
        yield


def died_driving(settings: Settings, experiment: str) -> bool:
    """Whether the process that drove it last from here ended without a word. False while another one drives it."""
    found = _drivers(settings, experiment)
    return bool(found) and not any(is_held(path) for path in found)


def _drivers(settings: Settings, experiment: str) -> list[Path]:
    return list(engines_dir(settings).glob(f"drive-{experiment}-*.lock"))


def end_dead_engines(leases: Leases, settings: Settings) -> None:
    """End the leases of this place's engines whose process is gone, so that nobody waits for them to run out."""
    folder = engines_dir(settings)
    for engine in leases.living(host_identity(settings.state_dir).place):
        if not is_held(folder / f"{engine.id}.lock"):
            log.info("engine %s (pid %s) is gone; its cells are taken over", engine.id, engine.pid)
            leases.close_engine(engine.id)


def is_held(path: Path) -> bool:
    """Whether a living process holds the lock file; False also when there is none."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
