"""Files that a stranger wrote, read within bounds: bytes, entries, and what unpacks to more than it should."""

from __future__ import annotations

import hashlib
import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from eval_pipeline.errors import SpecError

MIB = 1024 * 1024
MAX_JSON = 256 * MIB
MAX_UNPACKED = 16 * 1024 * MIB
MAX_ENTRIES = 200_000
MAX_NAME = 500

Model = TypeVar("Model", bound=BaseModel)


def parsed(data: bytes, model: type[Model], where: str, hint: str | None = None) -> Model:
    """Unknown keys are left alone; nothing in the error is the file's own text. Raises SpecError."""
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        at = ".".join(str(part)[:40] for part in first["loc"])
        raise SpecError(f"can't be read: {f'{at}: ' if at else ''}{first['msg']}"[:300], where=where, hint=hint) from None


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """A regular file, itself or what it links to. Raises SpecError."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SpecError("is no file", where=str(path))
            yield file
    except OSError as error:
        raise SpecError(
            f"can't be read: {error.strerror or error}", where=str(path), hint="name a file of it that is there and can be read"
        ) from None


def whole(path: Path, most: int = MAX_JSON) -> bytes:
    """Raises SpecError for what is larger."""
    with opened(path) as file:
        return at_most(file, path, most)


def at_most(file: BufferedReader, path: Path, most: int = MAX_JSON) -> bytes:
    """What is left of it. Raises SpecError for more."""
    data = file.read(most + 1)
    if len(data) > most:
        raise SpecError(f"is larger than {most // MIB} MiB", where=str(path))
    return data


@contextmanager
def held(path: Path) -> Iterator[tuple[BufferedReader, str]]:
    """The file and the SHA-256 of its bytes. Raises SpecError when they are others at the end: what was read between is of neither."""
    with opened(path) as file:
        sha256 = _sha256(file)
        yield file, sha256
        if _sha256(file) != sha256:
            hint = "import it when nobody writes to it, or a copy of it"
            raise SpecError("was written to while it was read", where=str(path), hint=hint)


def _sha256(file: BufferedReader) -> str:
    file.seek(0)
    found = hashlib.file_digest(file, "sha256").hexdigest()
    file.seek(0)
    return found


def flat_scores(scores: dict[str, Any], where: str) -> dict[str, bool | int | float | str | None]:
    """Name -> value; of a dict or list `NAME.KEY` -> value. What is not finite, or holds more than one level, is left out."""
    found: dict[str, Any] = {}
    for name, value in scores.items():
        parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
        for key, one in [(name, value)] if parts is None else [(f"{name}.{part}", one) for part, one in parts]:
            if isinstance(one, bool | int | str) or (isinstance(one, float) and math.isfinite(one)):
                found[key] = one
    if len(found) > 1000:
        raise SpecError(f"has {len(found)} scores, 1000 are read", where=where)
    return found


def name_of(value: int | str, what: str, where: str) -> str:
    """Raises SpecError for one that is empty or too long."""
    text = str(value)
    if not text.strip() or len(text) > MAX_NAME:
        raise SpecError(f"{what} is empty or longer than {MAX_NAME} characters", where=where)
    return text
