from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_ENDS_WITHIN_S = 30.0


def groups_named(pattern: str) -> list[Path]:
    """Control groups by a shell pattern; `find`, because others come and go meanwhile."""
    command = ["find", "/sys/fs/cgroup", "-type", "d", "-name", pattern]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return [Path(line) for line in done.stdout.splitlines()]


@contextmanager
def short_dir() -> Generator[Path]:
    """Short enough for a socket, and other users can traverse it: pytest's own tmp_path is neither."""
    folder = Path(tempfile.mkdtemp(prefix="evt-", dir="/tmp"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        _remove(folder, time.monotonic() + _ENDS_WITHIN_S)


def _remove(folder: Path, until: float) -> None:
    """Engines and servers that are about to end may still write there."""
    while True:
        try:
            for parent, folders, _ in os.walk(folder):
                for name in folders:
                    path = Path(parent, name)
                    if not path.is_symlink():
                        path.chmod(stat.S_IMODE(path.stat().st_mode) | stat.S_IRWXU)
            shutil.rmtree(folder)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
        else:
            return
