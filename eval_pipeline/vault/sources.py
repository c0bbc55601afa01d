"""Where secrets come from. A source reads only the names it is asked for, and no error of it holds a value."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from dotenv.parser import Binding, parse_stream

from eval_pipeline.errors import SpecError
from eval_pipeline.settings import Settings

_MAX_BYTES = 1 << 20


class SecretSource(Protocol):
    """kind: what the ledger notes as a version's source. where: for messages, e.g. what was looked at and that it is missing."""

    @property
    def kind(self) -> str: ...

    @property
    def where(self) -> str: ...

    def read(self, names: Collection[str]) -> dict[str, str]:
        """Those of `names` that it holds and that are not empty. Raises SpecError when it can't be read, or not be trusted."""
        ...


class EnvFile:
    """`NAME=value` lines in dotenv syntax: quotes, comments, `export`; no variable is filled in. A missing file holds nothing."""

    kind = "file"

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def where(self) -> str:
        return f"the file {self._path}" + ("" if os.path.lexists(self._path) else " (there is none)")

    def read(self, names: Collection[str]) -> dict[str, str]:
        text = self._text()
        return {} if text is None else {name: value for name, value in self._entries(text).items() if name in names and value}

    def _text(self) -> str | None:
        try:
            handle = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            said = "is a symbolic link" if self._path.is_symlink() else f"can't be opened: {error.strerror}"
            raise self._refused(said, f"put a regular file there, mode 0600, yours: {self._path}") from None
        try:
            self._require_private(os.fstat(handle))
            with open(handle, "rb", closefd=False) as file:
                data = file.read(_MAX_BYTES + 1)
        finally:
            os.close(handle)
        if len(data) > _MAX_BYTES:
            raise self._refused(f"is larger than {_MAX_BYTES >> 20} MiB", "it should hold secrets only, a line each")
        text = data.decode(errors="replace")
        if text.encode() != data:
            line = text[: text.index("\ufffd")].count("\n") + 1
            raise self._refused("is not UTF-8", "write the file again as UTF-8 text", line)
        return text

    def _require_private(self, status: os.stat_result) -> None:
        """Looked at through the open descriptor: nobody can put another file there in between."""
        if not stat.S_ISREG(status.st_mode):
            raise self._refused("is no regular file", "put a regular file there, mode 0600")
        if status.st_uid != os.geteuid():
            hint = f"chown it to the user who runs this (uid {os.geteuid()}), or name another one in EVALS_SECRETS_FILE"
            raise self._refused(f"belongs to uid {status.st_uid}", hint)
        if (mode := stat.S_IMODE(status.st_mode)) & 0o077:
            raise self._refused(f"can be used by others: its mode is {mode:04o}", f"chmod 600 {self._path}")

    def _entries(self, text: str) -> dict[str, str]:
        found: dict[str, str] = {}
        lines: dict[str, int] = {}
        for binding in parse_stream(io.StringIO(text)):
            line = _line(binding)
            if binding.error or (binding.key is not None and binding.value is None):
                hint = "write NAME=value; a value with spaces at its ends, a `#` or line breaks in quotes"
                raise self._refused("this line is no NAME=value", hint, line)
            if binding.key is None:
                continue
            if binding.key in lines:
                raise self._refused(f"{_shown(binding.key)} stands also in line {lines[binding.key]}", "keep one of them", line)
            found[binding.key], lines[binding.key] = binding.value or "", line
        return found

    def _refused(self, said: str, hint: str, line: int | None = None) -> SpecError:
        if line is None:
            return SpecError(f"the file of secrets {self._path} {said}", hint=hint)
        return SpecError(said, where=f"{self._path}:{line}", hint=hint)


class ProcessEnvironment:
    """What is exported in the shell that started this process."""

    kind = "environment"
    where = "the environment of this process"

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = os.environ if environ is None else environ

    def read(self, names: Collection[str]) -> dict[str, str]:
        return {name: value for name in names if (value := self._environ.get(name))}


def sources_of(settings: Settings, environ: Mapping[str, str] | None = None) -> list[SecretSource]:
    """In the order they are asked: the first one that holds a name gives its value."""
    return [EnvFile(settings.secrets_file), ProcessEnvironment(environ)]


def read_secrets(sources: Sequence[SecretSource], names: Collection[str]) -> dict[str, tuple[str, str]]:
    """Name -> (value, kind of its source), for those that are held somewhere."""
    found: dict[str, tuple[str, str]] = {}
    for source in sources:
        left = set(names) - set(found)
        found |= {name: (value, source.kind) for name, value in source.read(left).items()} if left else {}
    return found


def _line(binding: Binding) -> int:
    """Of its first character: the parser counts from the blank lines before it."""
    text = binding.original.string
    return binding.original.line + text[: len(text) - len(text.lstrip())].count("\n")


def _shown(key: str) -> str:
    """A broken line's beginning could be a value: only what looks like a name is repeated."""
    return key if key.isidentifier() and key.isascii() and len(key) <= 64 else "its name"
