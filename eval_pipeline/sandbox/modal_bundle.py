"""The output bundle of a Modal sandbox: listed first, chosen here, then fetched as a tar stream and written anew, trusting none of it."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from eval_pipeline.errors import SandboxError
from eval_pipeline.sandbox.base import SKIPPED_NAME, STATE_DIR, Collected, world_path

MAX_BYTES = 1 << 30
MAX_DEPTH = 64
MAX_ENTRIES = 200_000
MAX_SKIPPED = 1000
_COPY_BYTES = 1 << 18
_STATE = os.fsencode(STATE_DIR.removeprefix("/out/") + "/")
_KINDS = {
    "l": "a symbolic link",
    "p": "a FIFO",
    "s": "a socket",
    "b": "a block device",
    "c": "a character device",
    "X": "could not be opened: Permission denied",
}


@dataclass
class Choice:
    """What of a listing is fetched, in the bundle's order."""

    wanted: list[bytes] = field(default_factory=list[bytes])
    skipped: dict[str, str] = field(default_factory=dict[str, str])
    size_bytes: int = 0

    def skip(self, path: bytes, why: str) -> None:
        if len(self.skipped) < MAX_SKIPPED:
            self.skipped[os.fsdecode(path)] = why
        else:
            self.skipped["..."] = "more was left out than is named here"

    @property
    def names(self) -> bytes:
        return b"".join(b"./" + path + b"\0" for path in self.wanted)


@dataclass(frozen=True)
class _Entry:
    kind: str
    mode: int
    size: int
    path: bytes
    target: bytes = b""


def choose(listing: bytes) -> Choice:
    """From records `kind mode size path`, each ended by a NUL; after a link's comes where it leads. Raises SandboxError for anything else."""
    choice = Choice()
    entries = list(_entries(listing))
    if len(entries) > MAX_ENTRIES:
        choice.skip(b"./", "holds more entries than the bundle has left")
    # The state last: it may be large, and must not cost the transcript
    for entry in sorted(
        entries[:MAX_ENTRIES], key=lambda entry: ((entry.path + b"/").startswith(_STATE), entry.path.split(b"/"))
    ):
        _consider(choice, entry)
    return choice


_RECORD = re.compile(rb"([A-Za-z?]) ([0-7]{1,5}) (\d{1,19}) (.+)", re.DOTALL)


def _entries(listing: bytes) -> Iterator[_Entry]:
    fields = iter(listing.split(b"\0")[:-1])
    for record in fields:
        found = _RECORD.fullmatch(record)
        if found is None:
            raise SandboxError(f"the listing of an output holds {record[:80]!r}, which is no entry of it")
        kind, mode, size, path = found.groups()
        yield _Entry(kind.decode(), int(mode, 8), int(size), path, next(fields, b"") if kind == b"l" else b"")


def _consider(choice: Choice, entry: _Entry) -> None:
    path = entry.path
    if {b"", b".", b".."} & set(path.split(b"/")):
        choice.skip(path, "no plain path")
    elif entry.kind == "d" and path.count(b"/") + 1 >= MAX_DEPTH:
        choice.skip(path, f"deeper than {MAX_DEPTH} directories")
    elif entry.kind == "l" and path.startswith(_STATE):
        if world_path(os.fsdecode(entry.target)) is None:
            choice.skip(path, "a symbolic link that does not lead to a plain path below /world")
        else:
            choice.wanted.append(path)
    elif entry.kind not in "df":
        choice.skip(path, _KINDS.get(entry.kind, "not a regular file"))
    elif choice.size_bytes + entry.size > MAX_BYTES and entry.kind == "f":
        choice.skip(path, f"too large: {entry.size} bytes, the bundle holds {MAX_BYTES}")
    else:
        choice.wanted.append(path)
        choice.size_bytes += entry.size if entry.kind == "f" else 0


def write(dest: Path, choice: Choice, out: IO[bytes], logs: IO[bytes]) -> Collected:
    """The tar `dest`, atomically, from what `tar` sent of /out and of the logs. Equal content gives equal bytes.

    Raises SandboxError for a stream that is no tar, or more than was listed.
    """
    dest.parent.mkdir(parents=True, exist_ok=True)
    partial = dest.with_name(f"{dest.name}.{os.getpid()}.{os.urandom(4).hex()}.partial")
    try:
        with partial.open("wb") as raw:
            collected = _write(raw, choice, out, logs)
        partial.replace(dest)
    finally:
        partial.unlink(missing_ok=True)
    return collected


def _write(raw: IO[bytes], choice: Choice, out: IO[bytes], logs: IO[bytes]) -> Collected:
    n_files = size_bytes = 0
    names: Any = {"encoding": "utf-8", "errors": "surrogateescape"}
    with tarfile.TarFile(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT, copybufsize=_COPY_BYTES, **names) as tar:
        left = dict.fromkeys(choice.wanted)
        for prefix, stream in (("out", out), ("logs", logs)):
            for member, content in _members(stream):
                path = os.fsencode(member.name.removeprefix("./"))
                if path not in left if prefix == "out" else b"/" in path:
                    continue
                left.pop(path, None)
                info = _plain(member, f"{prefix}/{os.fsdecode(path)}")
                tar.addfile(info, content)
                tar.members.clear()  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue] - it remembers every member
                n_files += info.isreg()
                size_bytes += info.size
        for path in left:
            choice.skip(path, "was gone, or could not be opened")
        if choice.skipped:
            told = json.dumps(choice.skipped).encode()
            info = tarfile.TarInfo(SKIPPED_NAME)
            info.size = len(told)
            tar.addfile(info, io.BytesIO(told))
    return Collected(n_files=n_files, size_bytes=size_bytes, skipped=choice.skipped)


def _members(stream: IO[bytes]) -> Iterable[tuple[tarfile.TarInfo, IO[bytes] | None]]:
    stream.seek(0)
    if not stream.read(1):
        return
    stream.seek(0)
    left_bytes = 2 * MAX_BYTES
    try:
        with tarfile.open(fileobj=stream, mode="r|", bufsize=_COPY_BYTES, encoding="utf-8", errors="surrogateescape") as archive:
            for member in archive:
                archive.members.clear()  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]
                left_bytes -= member.size
                # A sparse one claims any size and sends nothing
                if member.size < 0 or left_bytes < 0 or member.issparse():
                    raise SandboxError(f"the output holds {member.name[:200]!r} of {member.size} bytes, which was not listed so")
                if member.isreg() or member.isdir() or (member.issym() and world_path(member.linkname) is not None):
                    yield member, archive.extractfile(member) if member.isreg() else None
    except (tarfile.TarError, ValueError, TypeError, EOFError, OverflowError) as error:
        raise SandboxError(f"the output arrived as no tar: {error}") from error


def _plain(member: tarfile.TarInfo, name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    if member.isdir():
        info.type, info.mode = tarfile.DIRTYPE, 0o755
    elif member.issym():
        info.type, info.linkname = tarfile.SYMTYPE, member.linkname
    else:
        info.size, info.mode = member.size, 0o755 if member.mode & 0o100 else 0o644
    return info
