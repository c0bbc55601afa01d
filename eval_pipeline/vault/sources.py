"""Where secrets come from. A source reads only the names it is asked for, and no error of it holds a value."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
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

    def changed_at(self, name: str) -> datetime | None:
        """When the value that was read last came to be; None: the source does not know."""
        ...


@dataclass(frozen=True, kw_only=True)
class Found:
    """source: its kind. changed_at: None where the source does not know."""

    value: str = field(repr=False)
    source: str
    changed_at: datetime | None = None


class PartlyRead(SpecError):
    """Some names could not be read, for a reason that says nothing about the others. found: these."""

    def __init__(self, message: str, found: dict[str, str], hint: str) -> None:
        super().__init__(message, hint=hint)
        self.found = found


class EnvFile:
    """`NAME=value` lines in dotenv syntax: quotes, comments, `export`; no variable is filled in. A missing file holds nothing."""

    kind = "file"

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def where(self) -> str:
        return f"the file {self._path}" + ("" if os.path.lexists(self._path) else " (there is none)")

    def changed_at(self, name: str) -> None:
        return None

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

    def changed_at(self, name: str) -> None:
        return None

    def read(self, names: Collection[str]) -> dict[str, str]:
        return {name: value for name in names if (value := self._environ.get(name))}


def sources_of(settings: Settings, environ: Mapping[str, str] | None = None) -> list[SecretSource]:
    """In the order they are asked: the first one that holds a name gives its value. Raises SpecError for settings that make no sense."""
    file, *rest = local_sources(settings, environ)
    if not settings.secrets_aws:
        return [file, *rest]
    from eval_pipeline.vault.sources_aws import AwsSecrets  # boto3 takes a quarter second to import

    return [file, AwsSecrets(settings.secrets_aws), *rest]


def local_sources(settings: Settings, environ: Mapping[str, str] | None = None) -> list[SecretSource]:
    """For what this installation needs itself, and no app declares."""
    return [EnvFile(settings.secrets_file), ProcessEnvironment(environ)]


def read_secrets(sources: Sequence[SecretSource], names: Collection[str]) -> dict[str, Found]:
    """Those that are held somewhere. Raises SpecError when a source can't be read, be it in part."""
    found, problem = read_what_can_be(sources, names)
    if problem is not None:
        raise problem
    return found


def read_what_can_be(sources: Sequence[SecretSource], names: Collection[str]) -> tuple[dict[str, Found], SpecError | None]:
    """And why some of a source's names could not be read. Raises SpecError when a source can't be read at all."""
    found: dict[str, Found] = {}
    problem: PartlyRead | None = None
    for source in sources:
        left = set(names) - set(found)
        try:
            read = source.read(left) if left else {}
        except PartlyRead as error:
            read, problem = error.found, error
        found |= {
            name: Found(value=value, source=source.kind, changed_at=source.changed_at(name)) for name, value in read.items()
        }
    return found, problem


def _line(binding: Binding) -> int:
    """Of its first character: the parser counts from the blank lines before it."""
    text = binding.original.string
    return binding.original.line + text[: len(text) - len(text.lstrip())].count("\n")


def _shown(key: str) -> str:
    """A broken line's beginning could be a value: only what looks like a name is repeated."""
    return key if key.isidentifier() and key.isascii() and len(key) <= 64 else "its name"
