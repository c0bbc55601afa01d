"""The members of an output bundle, one after the other. No link is followed, whatever a member says it is.

A bundle is a tar: plain where a sandbox has just been collected, with zstd as it is stored, with gzip as it once was.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, cast

from backports import zstd

MEMBER_MAX_BYTES = 2**40
CHUNK_BYTES = 1 << 18
_LEVEL = 1
"""What is faster stores a quarter to a third more; a smaller window does, too, where an agent reads the same files again."""
_WINDOW_MAX = 23
_MAX_READS_AT_END = 100
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


def bundle_members(bundle: Path | BinaryIO) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
    """Each with its content if it is a regular file, to be read before the next. In memory stands one member, however many there are.

    bundle: its path, or a stream that need not seek. Raises tarfile.TarError, OSError or TypeError when the bundle itself is broken.
    """
    with _archive(bundle) as archive:
        for member in archive:
            # A tar file remembers every member, and there may be very many
            archive.members.clear()  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]
            if not 0 <= member.size <= MEMBER_MAX_BYTES:
                raise tarfile.ReadError(f"{member.name!r} claims {member.size} bytes")  # tarfile would skip them, for ever
            yield member, archive.extractfile(member) if member.isreg() else None


def work_bytes(bundle: Path | BinaryIO) -> int:
    """How much an agent handed in: its result with the answer, and its files. Raises as `bundle_members`."""
    members = ((member.name.removeprefix("./"), member.size) for member, _ in bundle_members(bundle))
    return sum(size for name, size in members if name == "out/result.json" or name.startswith("out/files/"))


@contextmanager
def compressing(dest: IO[bytes]) -> Generator[IO[bytes]]:
    """What is written to it arrives in `dest` as bundles are stored. Equal writes give equal bytes."""
    options: dict[int, int] = {zstd.CompressionParameter.compression_level: _LEVEL, zstd.CompressionParameter.checksum_flag: 1}
    with zstd.ZstdFile(dest, "wb", options=options) as packed:
        yield cast(IO[bytes], packed)


def compress(tar: Path, dest: IO[bytes]) -> None:
    """The plain tar as bundles are stored."""
    with tar.open("rb", buffering=0) as source, compressing(dest) as packed:
        shutil.copyfileobj(source, packed, CHUNK_BYTES)


@contextmanager
def _archive(bundle: Path | BinaryIO) -> Generator[tarfile.TarFile]:
    mode: Literal["r:", "r|", "r|gz"] = "r|"
    size = CHUNK_BYTES
    with ExitStack() as opened:
        source = opened.enter_context(_File(bundle)) if isinstance(bundle, Path) else bundle
        head = source.read(len(_ZSTD))
        stream: _Begun | _Unpacked = _Begun(head, source)
        if head == _ZSTD:
            stream = _Unpacked(stream)
        elif head.startswith(_GZIP):
            mode, size = "r|gz", tarfile.RECORDSIZE  # all that it holds comes out of it at once
        elif isinstance(source, _File) and source.seekable():
            source.seek(0)
            mode = "r:"
        names: Any = {"encoding": "utf-8", "errors": "surrogateescape"}
        tar: Any = source if mode == "r:" else _Ending(stream)
        yield opened.enter_context(tarfile.open(fileobj=tar, mode=mode, bufsize=size, **names))


class _File(io.FileIO):
    """Room is made for what is there, whatever a header claims."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._size = max(os.fstat(self.fileno()).st_size, CHUNK_BYTES)

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(self._size if size is None or size < 0 else min(size, self._size))


class _Begun:
    """A stream whose first bytes were read."""

    def __init__(self, head: bytes, rest: BinaryIO | io.FileIO) -> None:
        self._head, self._rest = head, rest

    def read(self, size: int) -> bytes:
        head, self._head = self._head[:size], self._head[size:]
        return head + self._rest.read(size - len(head))


class _Unpacked:
    """What tarfile needs of a stream. A broken one is a broken tar."""

    def __init__(self, packed: _Begun) -> None:
        self._packed = packed
        self._zstd = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_MAX})

    def read(self, size: int) -> bytes:
        try:
            while not self._zstd.eof:
                more = self._packed.read(CHUNK_BYTES) if self._zstd.needs_input else b""
                if self._zstd.needs_input and not more:
                    raise tarfile.ReadError("it ends within its compressed data")
                if data := self._zstd.decompress(more, size):
                    return data
        except zstd.ZstdError as error:
            raise tarfile.ReadError(f"it can't be decompressed: {error}") from error
        return b""


class _Ending:
    """A stream that has an end: tarfile skips what a header claims step by step, however long nothing is there."""

    def __init__(self, stream: _Begun | _Unpacked) -> None:
        self._stream = stream
        self._reads_at_end = 0

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._reads_at_end += not data
        if self._reads_at_end > _MAX_READS_AT_END:
            raise tarfile.ReadError("it ends before what a header claims")
        return data
