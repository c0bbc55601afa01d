"""Files of a few lines, whole. A sandbox has dozens of them, and a text stream asks the kernel three times as often for each."""

from __future__ import annotations

import os
from pathlib import Path

from eval_pipeline.sandbox.local.safefs import write_all

_CHUNK_BYTES = 1 << 16


def read(path: str | Path) -> str:
    """Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        chunks: list[bytes] = []
        while chunk := os.read(fd, _CHUNK_BYTES):
            chunks.append(chunk)
    finally:
        os.close(fd)
    return b"".join(chunks).decode()


def write(path: str | Path, text: str) -> None:
    """Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        write_all(fd, text.encode())
    finally:
        os.close(fd)
