"""Where the gateway of a state directory keeps its socket, registrations and evidence."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from fcntl import LOCK_NB, LOCK_SH, flock
from pathlib import Path

from eval_pipeline.errors import SpecError
from eval_pipeline.host import own_state_dir

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise SpecError(f"{name!r} is no sandbox name")
    return name


@dataclass(frozen=True)
class Paths:
    folder: Path

    @classmethod
    def of(cls, state_dir: Path) -> Paths:
        """Made when absent, for us alone."""
        folder = own_state_dir(state_dir).absolute() / "gateway"
        for path in (folder, folder / "evidence", folder / "registry", folder / "models"):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o700)
        return cls(folder)

    @property
    def socket(self) -> Path:
        return self.folder / "control"

    @property
    def lock(self) -> Path:
        return self.folder / "lock"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def registry(self) -> Path:
        return self.folder / "registry"

    def registration_of(self, name: str) -> Path:
        return self.registry / f"{check_name(name)}.json"

    def evidence_of(self, name: str) -> Path:
        return self.folder / "evidence" / f"{check_name(name)}.jsonl"

    def model_access_of(self, name: str) -> Path:
        return self.folder / "models" / f"{check_name(name)}.json"

    def model_log_of(self, name: str) -> Path:
        return self.folder / "models" / f"{check_name(name)}.jsonl"

    @contextmanager
    def short(self) -> Generator[str]:
        """A path to the folder of few characters: a socket's name has 107 at most, a state directory may be deeper."""
        fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{fd}"
        finally:
            os.close(fd)

    def running(self) -> bool:
        """Whether a gateway holds the lock."""
        try:
            fd = os.open(self.lock, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            flock(fd, LOCK_SH | LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False
