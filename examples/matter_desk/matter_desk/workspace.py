"""The folder of the shell: copies of exactly the documents that the user may read, and what commands leave there.

Commands may have put anything in the place of a folder or file, so nothing here follows a link.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from matter_desk.client import Desk

DELIVERED = "files"
TIMEOUT_S = 60.0
SHOWN_BYTES = 16_000
MAX_DELIVERED_BYTES = 32 * 2**20


class Workspace:
    """deliver_to: where regular files below `files/` are copied after each command."""

    def __init__(self, desk: Desk, deliver_to: Path) -> None:
        self._desk, self._deliver_to = desk, deliver_to
        self._home = Path(tempfile.mkdtemp(prefix="desk-"))
        self._folder = self._home / "work"
        for folder in (self._folder, self._folder / DELIVERED, self._folder / "tmp"):
            folder.mkdir()
        self._there: dict[str, str] = {}

    def close(self) -> None:
        shutil.rmtree(self._home, ignore_errors=True)

    def run(self, command: str) -> dict[str, Any]:
        """exit_code is 124 when the time was over. output: stdout and stderr as they came, its end when it is long."""
        self._refresh()
        with tempfile.TemporaryFile(dir=self._home) as output:
            done = subprocess.run(
                [sys.executable, "-m", "matter_desk.shell", str(self._folder), str(TIMEOUT_S), command],
                env=self._environment(),
                cwd=Path(__file__).parent.parent,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                check=False,
            )
            size = output.seek(0, os.SEEK_END)
            output.seek(max(0, size - SHOWN_BYTES))
            shown = output.read().decode(errors="replace")
        cut = f"[{size - SHOWN_BYTES} bytes before this are left out]\n" if size > SHOWN_BYTES else ""
        return {"exit_code": done.returncode, "output": cut + shown} | self._deliver()

    def _environment(self) -> dict[str, str]:
        """Nothing of ours: no key, no proxy."""
        temporary = str(self._folder / "tmp")
        return {"PATH": os.environ["PATH"], "HOME": str(self._folder), "TMPDIR": temporary, "LANG": "C.UTF-8"}

    def _refresh(self) -> None:
        """Write the documents that are new or have another version."""
        for document in self._desk.documents():
            path, version = document["path"], document["version"]
            if self._there.get(path) != version:
                _write(self._folder, path, self._desk.content(path))
                self._there[path] = version

    def _deliver(self) -> dict[str, Any]:
        top = self._folder / DELIVERED
        told: dict[str, list[str]] = {"delivered": [], "not_delivered": []}
        walked = os.walk(top) if stat.S_ISDIR(top.lstat().st_mode) else ()  # it enters no link but the first
        for path in sorted(Path(folder, name) for folder, _, names in walked for name in names):
            relative = path.relative_to(top)
            kind = "delivered" if self._copy(path, self._deliver_to / relative) else "not_delivered"
            told[kind].append(relative.as_posix().encode("utf-8", "replace").decode())
        return {kind: names for kind, names in told.items() if names}

    def _copy(self, source: Path, target: Path) -> bool:
        try:
            found = source.lstat()
            if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_DELIVERED_BYTES:
                return False
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target, follow_symlinks=False)
        except OSError:
            return False
        return True


def _write(root: Path, path: str, data: bytes) -> None:
    """A fresh file, in folders of ours: what a command put in the way is removed."""
    *folders, name = path.split("/")
    here = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for folder in folders:
            here = _enter(here, folder)
        _remove(here, name)
        target = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=here)
        with os.fdopen(target, "wb") as sink:
            sink.write(data)
    finally:
        os.close(here)


def _enter(parent: int, name: str) -> int:
    try:
        if not stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
            _remove(parent, name)
            os.mkdir(name, dir_fd=parent)
    except FileNotFoundError:
        os.mkdir(name, dir_fd=parent)
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    finally:
        os.close(parent)


def _remove(parent: int, name: str) -> None:
    try:
        if stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
            shutil.rmtree(name, dir_fd=parent)
        else:
            os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        pass
