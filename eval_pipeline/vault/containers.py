"""Secrets inside of files that are zip archives: DOCX, XLSX, plain zips, and those in these. What is unpacked is bounded."""

from __future__ import annotations

import lzma
import re
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from tempfile import SpooledTemporaryFile
from typing import IO

from eval_pipeline.vault.redaction import Redactor

MAX_UNPACKED_BYTES = 256 << 20
MAX_BUNDLE_BYTES = 1 << 30
MAX_ENTRIES = 10_000
MAX_DEPTH = 3
MAGIC = b"PK\x03\x04"
_CHUNK = 1 << 20
_TAG_MAX = 1 << 16
_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    RuntimeError,
    EOFError,
    OSError,
    ValueError,
    OverflowError,
)
_TAG = re.compile(rb"<[^<>]*>")


class TooMuch(Exception):
    """The archive can't be looked through to its end within the bounds."""


class Unpacker:
    """For one bundle: what it may unpack is counted over all archives in a file, and over all files."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._left_bundle_bytes = MAX_BUNDLE_BYTES
        self._left_bytes = self._left_entries = 0

    def count(self, file: IO[bytes]) -> Counter[str]:
        """How often each secret stands in it. A file that is no zip archive, or a broken one, holds nothing. Raises TooMuch."""
        self._left_bytes, self._left_entries = MAX_UNPACKED_BYTES, MAX_ENTRIES
        try:
            return self._archive(file, 1)
        except MemoryError:
            raise TooMuch("its list of entries is too large") from None

    def _archive(self, file: IO[bytes], depth: int) -> Counter[str]:
        found = Counter[str]()
        try:
            with zipfile.ZipFile(file) as archive:
                for entry in archive.infolist():
                    self._left_entries -= 1
                    if self._left_entries < 0:
                        raise TooMuch(f"it holds more than {MAX_ENTRIES} entries")
                    found += self._redactor.count([entry.filename.encode("utf-8", "surrogatepass"), b"\n", entry.comment])
                    if not entry.is_dir():
                        found += self._entry(archive, entry, depth)
                found += self._redactor.count([archive.comment])
        except _BROKEN:
            return found
        return found

    def _entry(self, archive: zipfile.ZipFile, entry: zipfile.ZipInfo, depth: int) -> Counter[str]:
        found = Counter[str]()
        with SpooledTemporaryFile[bytes](max_size=8 * _CHUNK) as copy:
            try:
                with archive.open(entry) as stream:
                    for chunk in self._unpacked(stream):
                        copy.write(chunk)
            except _BROKEN:
                pass  # encrypted, or broken: as far as it goes
            copy.seek(0)
            found += self._redactor.count(_chunks(copy))
            copy.seek(0)
            head = copy.read(len(MAGIC))
            copy.seek(0)
            if head == MAGIC:
                if depth >= MAX_DEPTH:
                    raise TooMuch(f"archives stand in archives, more than {MAX_DEPTH} deep")
                return found + self._archive(copy, depth + 1)
            if entry.filename.endswith((".xml", ".rels", ".html")):  # a word may be cut into several elements
                found += self._redactor.count(_without_tags(_chunks(copy)))
        return found

    def _unpacked(self, stream: IO[bytes]) -> Iterator[bytes]:
        while chunk := stream.read(_CHUNK):
            self._left_bytes -= len(chunk)
            self._left_bundle_bytes -= len(chunk)
            if self._left_bytes < 0:
                raise TooMuch(f"unpacked it is larger than {MAX_UNPACKED_BYTES >> 20} MiB")
            if self._left_bundle_bytes < 0:
                raise TooMuch(f"unpacked all archives of the output are larger than {MAX_BUNDLE_BYTES >> 20} MiB")
            yield chunk


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk


def _without_tags(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """What begins like a tag and does not end for long is text."""
    held = b""
    for chunk in chunks:
        held += chunk
        opened = held.rfind(b"<")
        whole = len(held) if opened < 0 or len(held) - opened > _TAG_MAX or b">" in held[opened:] else opened
        yield _TAG.sub(b"", held[:whole])
        held = held[whole:]
    yield held
