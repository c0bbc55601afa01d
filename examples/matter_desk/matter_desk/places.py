"""Where the desk keeps its things and where it answers."""

from __future__ import annotations

import os
from pathlib import Path

APP = Path(__file__).resolve().parent.parent
HOST = "127.0.0.1"


def data_dir() -> Path:
    return Path(os.environ.get("MATTER_DESK_DATA") or "/srv/matter_desk")


def port() -> int:
    """The document service's."""
    return int(os.environ.get("MATTER_DESK_PORT") or 8400)


def cluster() -> Path:
    return data_dir() / "postgres"


def blob_dir() -> Path:
    return data_dir() / "blobs"


def run_dir() -> Path:
    """Sockets, the supervisor's lock, the key of the sessions: what lives no longer than the services."""
    return data_dir() / "run"


def make_run_dir() -> Path:
    run_dir().mkdir(mode=0o700, parents=True, exist_ok=True)
    return run_dir()


def write_private(path: Path, content: bytes) -> None:
    """Whole or not at all, and for this user alone."""
    fresh = path.with_name(path.name + ".new")
    fresh.touch(0o600)
    fresh.write_bytes(content)
    fresh.rename(path)
