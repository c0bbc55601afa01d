"""A collected bundle without the secrets that its sandbox knew: texts are redacted, deliverables that hold one are put aside.

Runs in a worker process, in a stream: a bundle is whatever an agent left, and may be large.
"""

from __future__ import annotations

import os
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import SpooledTemporaryFile, TemporaryFile
from typing import IO

from eval_pipeline.scoring.bundle_tar import CHUNK_BYTES, bundle_members, compress, compressing
from eval_pipeline.vault.containers import MAGIC, TooMuch, Unpacker
from eval_pipeline.vault.redaction import Redactor

FILES = "out/files/"
MAX_ASIDE = 1000
_MEMORY = 16 << 20


@dataclass(frozen=True, kw_only=True)
class RedactionTask:
    """path: of the bundle as it was collected, a plain tar; it is removed when anything is found. sealed: a file that is to be stored, without any secret. aside: a directory for what is put aside."""

    path: Path
    sealed: Path
    aside: Path
    redactor: Redactor


@dataclass(frozen=True, kw_only=True)
class PutAside:
    """file: its name in the bundle, redacted. path: where it lies now. why: in words, without any value."""

    file: str
    path: Path
    size_bytes: int
    why: str


@dataclass(frozen=True, kw_only=True)
class Redacted:
    """replaced: how often each secret was, by name; in names of files, too. n_left_out: what would be put aside, but is kept nowhere."""

    replaced: Counter[str] = field(default_factory=Counter[str])
    put_aside: list[PutAside] = field(default_factory=list[PutAside])
    n_left_out: int = 0


@dataclass
class _Found:
    """In one member. why: it must be put aside; None: its texts are redacted in place."""

    secrets: Counter[str]
    why: str | None = None


def redact_bundle(task: RedactionTask) -> Redacted:
    """Raises tarfile.TarError, OSError or TypeError when the bundle itself is broken.

    Most bundles hold nothing, and their tar stays what it is.
    """
    looked = _look(task.path, task.redactor) if task.redactor else ()
    found = {n: one for n, one in enumerate(looked) if one is not None}
    redacted = Redacted()
    with task.sealed.open("wb") as raw:
        if not found:
            compress(task.path, raw)
            return redacted
        n_left_out = _rewrite(task, found, raw, redacted)
    task.path.unlink()
    return replace(redacted, n_left_out=n_left_out)


def _look(path: Path, redactor: Redactor) -> Iterator[_Found | None]:
    unpacker = Unpacker(redactor)
    for member, stream in bundle_members(path):
        found = redactor.count([os.fsencode(member.name), b"\n", os.fsencode(member.linkname)])
        yield _looked_at(member, stream, redactor, unpacker, found) if stream is not None else _Found(found) if found else None


def _looked_at(
    member: tarfile.TarInfo, stream: IO[bytes], redactor: Redactor, unpacker: Unpacker, named: Counter[str]
) -> _Found | None:
    head = stream.read(len(MAGIC))
    if head != MAGIC:
        inside = redactor.count(_chunks(stream, head))
        why = _why(inside) if inside and member.name.startswith(FILES) else None
    else:
        with SpooledTemporaryFile[bytes](max_size=_MEMORY) as copy:
            inside = redactor.count(_kept(_chunks(stream, head), copy))
            copy.seek(0)
            try:
                inside += unpacker.count(copy)
                why = _why(inside) if inside else None
            except TooMuch as error:
                why = f"it could not be looked through for secrets: {error}"
    return _Found(named + inside, why) if named or inside or why else None


def _why(found: Counter[str]) -> str:
    return f"it holds the value of {', '.join(sorted(found))}"


def _rewrite(task: RedactionTask, found: dict[int, _Found], raw: IO[bytes], redacted: Redacted) -> int:
    """How many files were left out."""
    names = Counter[str]()
    n_left_out = 0
    with (
        compressing(raw) as packed,
        tarfile.TarFile(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape") as tar,
    ):
        for n, (member, stream) in enumerate(bundle_members(task.path)):
            hit = found.get(n)
            member.name = _free(os.fsdecode(task.redactor.bytes(os.fsencode(member.name))), names)
            member.linkname = os.fsdecode(task.redactor.bytes(os.fsencode(member.linkname)))
            if hit is not None and hit.why is not None and stream is not None:
                if (number := len(redacted.put_aside)) < MAX_ASIDE:
                    redacted.put_aside.append(_put_aside(task.aside / str(number), member, stream, hit.why))
                else:
                    n_left_out += 1
                continue
            if hit is None or stream is None:
                tar.addfile(member, stream)
            else:
                _add_redacted(tar, member, stream, task.redactor)
            redacted.replaced.update(hit.secrets if hit is not None else {})
            tar.members.clear()  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue] - it remembers every member
    return n_left_out


def _free(name: str, taken: Counter[str]) -> str:
    """Two names may differ in their secrets alone."""
    taken[name] += 1
    return name if taken[name] == 1 else _free(f"{name}.{taken[name]}", taken)


def _put_aside(path: Path, member: tarfile.TarInfo, stream: IO[bytes], why: str) -> PutAside:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with path.open("wb") as copy:
        for chunk in _chunks(stream):
            copy.write(chunk)
    name = member.name.removeprefix("out/").encode("utf-8", "backslashreplace").decode()
    return PutAside(file=name, path=path, size_bytes=member.size, why=why)


def _add_redacted(tar: tarfile.TarFile, member: tarfile.TarInfo, stream: IO[bytes], redactor: Redactor) -> None:
    """Its length is known only when it is redacted, and a header comes first."""
    with TemporaryFile() as copy:
        for chunk in redactor.stream(_chunks(stream)):
            copy.write(chunk)
        member.size = copy.tell()
        copy.seek(0)
        tar.addfile(member, copy)


def _chunks(stream: IO[bytes], head: bytes = b"") -> Iterator[bytes]:
    if head:
        yield head
    while chunk := stream.read(CHUNK_BYTES):
        yield chunk


def _kept(chunks: Iterator[bytes], copy: IO[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        copy.write(chunk)
        yield chunk
