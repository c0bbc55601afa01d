from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


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
        for parent, folders, _ in os.walk(folder):
            for name in folders:
                path = Path(parent, name)
                if not path.is_symlink():
                    path.chmod(stat.S_IMODE(path.stat().st_mode) | stat.S_IRWXU)
        shutil.rmtree(folder)
