"""Artifacts: immutable bytes named by their SHA-256, in a local directory or in S3.

Nothing half-written is ever visible, whenever a process dies. Concurrent puts of the same content are fine. Every read is
verified: a stream raises StoreError with its last bytes, `fetch` leaves nothing behind.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol, cast

from eval_pipeline.errors import SpecError, StoreError
from eval_pipeline.settings import Settings
from eval_pipeline.store.durable_files import COPY_BYTES, link_atomically, sync_directory, write_atomically

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

ABANDONED_AFTER_S = 24 * 3600

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Artifact:
    """digest: SHA-256 of the content, 64 hex digits."""

    digest: str
    size_bytes: int


@dataclass(frozen=True)
class Stored:
    """age_s: since it was put last."""

    digest: str
    size_bytes: int
    age_s: float


class ArtifactStore(Protocol):
    """What is put again counts as new, so that nobody removes it before it is referred to.

    Every method raises StoreError when the store can't be written, read or verified, or has no such artifact."""

    def put_file(self, path: Path) -> Artifact:
        """Also StoreError when the file changes meanwhile."""
        ...

    def take_file(self, path: Path) -> Artifact:
        """A file that nobody writes to any more: it may become the store's own, read-only."""
        ...

    def put_bytes(self, data: bytes) -> Artifact: ...

    def open(self, digest: str) -> BinaryIO:
        """A stream that can't seek."""
        ...

    def fetch(self, digest: str, dest: Path) -> None:
        """Write the artifact to the file `dest`, replacing it."""
        ...

    def exists(self, digest: str) -> bool: ...

    def url(self, digest: str) -> str:
        """For people to find it; it need not be there."""
        ...

    def listing(self) -> Iterator[Stored]: ...

    def remove(self, digest: str, older_than_s: float) -> bool:
        """False when it is not there, or was put again within that time."""
        ...

    def claim(self, installation: str) -> set[str]:
        """Note that this installation keeps artifacts here; returns all that ever did."""
        ...


def open_store(settings: Settings) -> ArtifactStore:
    """Raises SpecError when `artifacts_url` is neither `s3://bucket[/prefix]` nor `file:///directory`."""
    if settings.artifacts_url is None:
        return LocalArtifacts(settings.state_dir / "artifacts")
    scheme, _, place = settings.artifacts_url.partition("://")
    bucket, _, prefix = place.partition("/")
    if scheme == "file" and place.startswith("/"):
        return LocalArtifacts(Path(place))
    if scheme != "s3" or not bucket:
        hint = "write s3://bucket, s3://bucket/prefix, or file:///directory for one that several machines share"
        raise SpecError(f"EVALS_ARTIFACTS_URL is {settings.artifacts_url!r}", hint=hint)
    from eval_pipeline.store.artifacts_s3 import S3Artifacts  # boto3 takes a quarter second to import

    return S3Artifacts(bucket, prefix)


def open_quarantine(settings: Settings) -> ArtifactStore:
    """Beside the artifacts, and never among them: what must not be read by chance."""
    if settings.artifacts_url is None:
        folder = settings.state_dir / "quarantine"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return LocalArtifacts(folder)
    return open_store(replace(settings, artifacts_url=f"{settings.artifacts_url.rstrip('/')}/quarantine"))


def publish_pages(folder: Path, url: str) -> str:
    """Upload the HTML files below `folder` to `s3://bucket[/prefix]`; returns the address of its `index.html`.

    Raises SpecError for any other address, and StoreError.
    """
    scheme, _, place = url.partition("://")
    bucket, _, prefix = place.partition("/")
    if scheme != "s3" or not bucket:
        raise SpecError(f"pages can't be published to {url!r}", hint="write s3://bucket or s3://bucket/prefix")
    from eval_pipeline.store.artifacts_s3 import upload_pages  # boto3 takes a quarter second to import

    return upload_pages(folder, bucket, prefix)


class LocalArtifacts:
    """`<directory>/<2 hex>/<digest>`; unfinished files are under `<directory>/tmp`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._durable: set[Path] = set()  # of the 256 directories, those that stay, as far as this process knows

    def put_file(self, path: Path) -> Artifact:
        with storage_errors(f"{path} can't be stored in {self._directory}"), path.open("rb") as source:
            return self._put(source)

    def take_file(self, path: Path) -> Artifact:
        with storage_errors(f"{path} can't be stored in {self._directory}"), path.open("rb") as source:
            return self._put(source, path)

    def put_bytes(self, data: bytes) -> Artifact:
        with storage_errors(f"an artifact can't be stored in {self._directory}"):
            return self._put(io.BytesIO(data))

    def _put(self, source: BinaryIO, own: Path | None = None) -> Artifact:
        artifact = describe(source)
        target = self._path(artifact.digest)
        if _size(target) == artifact.size_bytes and _refreshed(target):
            return artifact
        unfinished = self._directory / "tmp"
        unfinished.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(exist_ok=True)
        _sweep(unfinished)
        if own is None or not link_atomically(own, target, unfinished):
            write_atomically(verified(source, artifact), target, unfinished)
        if target.parent not in self._durable:
            sync_directory(target.parent.parent)
            self._durable.add(target.parent)
        return artifact

    def open(self, digest: str) -> BinaryIO:
        with storage_errors(f"artifact {digest} can't be read from {self._directory}"):
            try:
                source = self._path(digest).open("rb")
            except FileNotFoundError:
                raise missing(digest, str(self._directory)) from None
            return verified(source, Artifact(digest, os.fstat(source.fileno()).st_size))

    def fetch(self, digest: str, dest: Path) -> None:
        with self.open(digest) as source:
            fetch_to(source, dest)

    def exists(self, digest: str) -> bool:
        return self._path(digest).is_file()

    def url(self, digest: str) -> str:
        return self._path(digest).absolute().as_uri()

    def listing(self) -> Iterator[Stored]:
        with storage_errors(f"{self._directory} can't be listed"):
            for left in (self._directory / "tmp").glob("removed-*"):  # its collector was killed
                with suppress(FileNotFoundError):
                    left.rename(self._path(left.name.removeprefix("removed-")))
            for path in self._directory.glob("[0-9a-f][0-9a-f]/*"):
                with suppress(FileNotFoundError):
                    if _DIGEST.fullmatch(path.name):
                        status = path.stat()
                        yield Stored(path.name, status.st_size, time.time() - status.st_mtime)

    def remove(self, digest: str, older_than_s: float) -> bool:
        """Taken out of sight first: whoever puts it from then on writes it anew, and who has put it before has made it young."""
        target, aside = self._path(digest), self._directory / "tmp" / f"removed-{digest}"
        with storage_errors(f"artifact {digest} can't be removed from {self._directory}"):
            aside.parent.mkdir(exist_ok=True)
            try:
                if time.time() - target.stat().st_mtime < older_than_s:
                    return False
                target.rename(aside)
            except FileNotFoundError:
                return False
            if time.time() - aside.stat().st_mtime < older_than_s:
                aside.rename(target)
                return False
            aside.unlink(missing_ok=True)
            return True

    def claim(self, installation: str) -> set[str]:
        owners = self._directory / "owners"
        with storage_errors(f"{owners} can't be written"):
            owners.mkdir(parents=True, exist_ok=True)
            (owners / installation).touch()
            return {path.name for path in owners.iterdir()}

    def _path(self, digest: str) -> Path:
        return self._directory / check_digest(digest)[:2] / digest


def check_digest(digest: str) -> str:
    """Return `digest`, or raise StoreError: it becomes a path."""
    if not _DIGEST.fullmatch(digest):
        raise StoreError(f"{digest!r} is not an artifact: 64 hex digits")
    return digest


def missing(digest: str, place: str) -> StoreError:
    return StoreError(f"artifact {digest} is not in {place}", hint="is EVALS_ARTIFACTS_URL the store it was written to?")


def describe(source: BinaryIO) -> Artifact:
    """Read to the end and rewind."""
    digest = hashlib.sha256()
    while chunk := source.read(COPY_BYTES):
        digest.update(chunk)
    size = source.tell()
    source.seek(0)
    return Artifact(digest.hexdigest(), size)


class _Verifying(io.RawIOBase):
    def __init__(self, source: BinaryIO, expected: Artifact) -> None:
        self._source = source
        self._expected = expected
        self._hash = hashlib.sha256()
        self._seen = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer)
        data = self._source.read(len(view))
        view[: len(data)] = data
        self._hash.update(data)
        self._seen += len(data)
        # Checked together with the last bytes: a reader may never ask for the end of the file.
        if not data or self._seen >= self._expected.size_bytes:
            self._check()
        return len(data)

    def _check(self) -> None:
        if self._seen != self._expected.size_bytes or self._hash.hexdigest() != self._expected.digest:
            raise StoreError(
                f"artifact {self._expected.digest}: {self._seen} bytes with the digest {self._hash.hexdigest()} were read",
                hint="the file changed while it was read, or the stored copy is damaged: remove it and store it again",
            )

    def close(self) -> None:
        self._source.close()
        super().close()


def verified(source: BinaryIO, expected: Artifact) -> BinaryIO:
    """A stream over `source` that raises StoreError instead of ending when the content is not `expected`."""
    return cast(BinaryIO, io.BufferedReader(_Verifying(source, expected), COPY_BYTES))


def fetch_to(source: BinaryIO, dest: Path) -> None:
    with storage_errors(f"{dest} can't be written"):
        write_atomically(source, dest, dest.parent)


def _refreshed(target: Path) -> bool:
    """False when it was removed this moment."""
    try:
        os.utime(target)
    except FileNotFoundError:
        return False
    return True


def _sweep(folder: Path) -> None:
    """Remove what killed processes left."""
    oldest = time.time() - ABANDONED_AFTER_S
    for path in folder.iterdir():
        try:
            if path.stat().st_mtime < oldest:
                path.unlink()
        except FileNotFoundError:
            pass


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


@contextmanager
def storage_errors(what: str) -> Generator[None]:
    """Turn an OSError into a StoreError that begins with `what`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreError(
                f"{what}: the disk is full", hint="free some space, or move the state with EVALS_STATE_DIR"
            ) from error
        raise StoreError(f"{what}: {error}") from error
