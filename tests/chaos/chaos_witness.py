"""What agents say of themselves to nobody but the test: a line when they start and one when they have answered.

The line goes through a FIFO that the test puts beside the restored world, which is bound into every sandbox. The kernel writes it whole
or not at all, no part of the product sees it, and it is said before the agent does anything else.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

NAME = "mark"
_BYE = b"bye"


@dataclass(frozen=True)
class Mark:
    """One line. cell: what the agent knows of its cell; run: a uuid it made up when it started."""

    at: float
    what: str
    cell: str
    run: str


class Witness:
    def __init__(self) -> None:
        self._marks: list[Mark] = []
        self._open: list[tuple[int, threading.Thread]] = []

    def attach(self, folder: Path) -> None:
        path = folder / NAME
        mode = folder.stat().st_mode & 0o7777
        folder.chmod(mode | 0o700)
        os.mkfifo(path)
        path.chmod(0o666)
        folder.chmod(mode)
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)  # held for writing too: no agent's end is the end of the file
        reader = threading.Thread(target=self._listen, args=(fd,), daemon=True)
        reader.start()
        self._open.append((fd, reader))

    def _listen(self, fd: int) -> None:
        rest = b""
        while True:
            *lines, rest = (rest + os.read(fd, 65536)).split(b"\n")
            if _BYE in lines:
                return
            self._marks += [Mark(time.time(), *line.decode().split(" ")) for line in lines]

    def marks(self, prefix: str) -> list[Mark]:
        return [mark for mark in list(self._marks) if mark.cell.startswith(prefix)]

    def close(self) -> None:
        for fd, reader in self._open:
            os.write(fd, _BYE + b"\n")
            reader.join()
            os.close(fd)
