"""Snapshots: a world's four parts, packed once and restored read-only.

In the snapshot a part has a fixed name, whatever its path in the world's folder: the directories `documents`, `database` and
`blobs`, and the file `permissions.yaml`. Nothing outside the parts is read.

The archive is a tar: the manifest as `manifest.json`, then the entries in its order. It is not compressed: documents mostly are
already, and equal worlds must give equal bytes, which a compressor does not promise between its versions.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tarfile
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, cast

from pydantic import ValidationError

from eval_pipeline.domain.world import SNAPSHOT_FORMAT, SnapshotEntry, SnapshotManifest, WorldSpec, colliding_names
from eval_pipeline.errors import SpecError, StoreError
from eval_pipeline.store.artifacts import Artifact, ArtifactStore, describe, storage_errors, verified
from eval_pipeline.store.durable_files import COPY_BYTES, sync_directory
from eval_pipeline.store.world_files import WorldFile, changed, list_world, opened

MANIFEST_NAME = "manifest.json"


@dataclass(frozen=True)
class Snapshot:
    """archive: the stored tar; with it alone `load_snapshot` gives the rest."""

    digest: str
    manifest: SnapshotManifest
    archive: Artifact


def scan_world(folder: Path, spec: WorldSpec) -> SnapshotManifest:
    """Read every file of the world's parts. Raises SpecError, with the file and the remedy, for what can't be a snapshot."""
    with storage_errors(f"the world {spec.id!r} can't be read"):
        return _manifest(folder, list_world(folder, spec))


def pack_world(folder: Path, spec: WorldSpec, store: ArtifactStore, scratch: Path | None = None) -> Snapshot:
    """Store the world's archive, unless the store has it. scratch: where the archive is built; None: the temporary directory.

    Raises SpecError as `scan_world` does, and when the world changes meanwhile.
    """
    files = list_world(folder, spec)
    manifest = _manifest(folder, files)
    with (
        storage_errors(f"the world {spec.id!r} can't be packed"),
        tempfile.TemporaryDirectory(prefix="evals-pack-", dir=scratch) as temporary,
    ):
        archive = Path(temporary) / "world.tar"
        with archive.open("wb") as sink:
            _write_archive(sink, files, manifest)
        if [file.identity for file in list_world(folder, spec)] != [file.identity for file in files]:
            raise changed(folder)
        return Snapshot(manifest.digest, manifest, store.put_file(archive))


def load_snapshot(archive: Artifact, store: ArtifactStore) -> Snapshot:
    """Raises StoreError when the archive is damaged or was made by a newer version."""
    with store.open(archive.digest) as stream, _reading(archive), _tar(stream) as tar:
        manifest = _read_manifest(tar)
    return Snapshot(manifest.digest, manifest, archive)


def restore(snapshot: Snapshot, store: ArtifactStore, dest_root: Path) -> Path:
    """The read-only directory `dest_root/<digest>`, unpacked and verified unless it is there already.

    Any number of processes may ask at once: one unpacks. Raises StoreError when the archive is not what the snapshot says.
    """
    dest = dest_root / snapshot.digest
    with storage_errors(f"the snapshot {snapshot.digest} can't be restored in {dest_root}"):
        if dest.is_dir():
            return dest
        dest_root.mkdir(mode=0o711, parents=True, exist_ok=True)
        with _locked(dest_root / f".{snapshot.digest}.lock"):
            if not dest.is_dir():
                _restore(snapshot, store, dest)
    return dest


def remove_tree(folder: Path) -> None:
    """Remove what `restore` made: its directories are read-only."""
    if folder.exists():
        for parent, _, _ in os.walk(folder):
            Path(parent).chmod(0o700)
        shutil.rmtree(folder)


def _manifest(folder: Path, files: list[WorldFile]) -> SnapshotManifest:
    if files and not any(file.is_file for file in files):  # a world without any part is one without documents, and fine
        raise SpecError(
            "the world holds no file", where=str(folder), hint="name its documents, database, permissions or blobs in world.yaml"
        )
    for one, other in colliding_names(file.name for file in files):
        hint = "rename one: some file systems take them for the same file"
        raise SpecError(f"{one!r} and {other!r} differ only in case or in Unicode form", where=str(folder), hint=hint)
    return SnapshotManifest(entries=tuple(_entry(file) for file in files))


def _entry(file: WorldFile) -> SnapshotEntry:
    if not file.is_file:
        return SnapshotEntry(path=file.name, type="dir")
    with opened(file) as source:
        content = describe(source)
    return SnapshotEntry(path=file.name, type="file", executable=file.executable, size=content.size_bytes, sha256=content.digest)


def _write_archive(sink: BinaryIO, files: list[WorldFile], manifest: SnapshotManifest) -> None:
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8") as tar:
        text = manifest.model_dump_json().encode()
        tar.addfile(_member(SnapshotEntry(path=MANIFEST_NAME, type="file", size=len(text))), BytesIO(text))
        for file, entry in zip(files, manifest.entries, strict=True):
            if entry.type == "dir":
                tar.addfile(_member(entry))
            else:
                _add_file(tar, file, entry)


def _add_file(tar: tarfile.TarFile, file: WorldFile, entry: SnapshotEntry) -> None:
    with opened(file) as source:
        try:
            tar.addfile(_member(entry), verified(source, _content(entry)))
        except StoreError:
            raise changed(file.path) from None


def _content(entry: SnapshotEntry) -> Artifact:
    return Artifact(entry.sha256, entry.size)


def _member(entry: SnapshotEntry) -> tarfile.TarInfo:
    member = tarfile.TarInfo(entry.path)  # mtime, owner and group stay 0
    member.type = tarfile.DIRTYPE if entry.type == "dir" else tarfile.REGTYPE
    member.size = entry.size
    member.mode = 0o755 if entry.executable or entry.type == "dir" else 0o644
    return member


def _restore(snapshot: Snapshot, store: ArtifactStore, dest: Path) -> None:
    unfinished = dest.with_name(f".{snapshot.digest}.unfinished")
    remove_tree(unfinished)  # a killed process left it: we hold the lock
    unfinished.mkdir()
    try:
        with store.open(snapshot.archive.digest) as stream, _reading(snapshot.archive):
            with _tar(stream) as tar:
                manifest = _read_manifest(tar)
                if manifest.digest != snapshot.digest:
                    raise StoreError(
                        f"the archive {snapshot.archive.digest} holds the snapshot {manifest.digest}, not {snapshot.digest}"
                    )
                _unpack(tar, manifest, unfinished)
            while stream.read(COPY_BYTES):  # the archive is verified with its last bytes
                pass
        _seal(unfinished)
        unfinished.rename(dest)
        sync_directory(dest.parent)
    except BaseException:
        remove_tree(unfinished)
        raise


def _unpack(tar: tarfile.TarFile, manifest: SnapshotManifest, folder: Path) -> None:
    """Only what the manifest names is written, in its order; a member's own name or kind is compared, never followed."""
    for entry in manifest.entries:
        member = tar.next()
        if member is None or (member.name, member.type, member.size) != (entry.path, _member(entry).type, entry.size):
            raise StoreError(f"the archive has {member.name if member else 'no more'!r} where the manifest has {entry.path!r}")
        target = folder / _relative(entry.path)
        if entry.type == "dir":
            target.mkdir()
        else:
            _write_file(cast(IO[bytes], tar.extractfile(member)), entry, target)
    if tar.next() is not None:
        raise StoreError("the archive holds more than the manifest names")


def _relative(path: str) -> PurePosixPath:
    relative = PurePosixPath(path)
    if relative.is_absolute() or not relative.parts or ".." in relative.parts or "\0" in path:
        raise StoreError(f"the manifest names {path!r}, which is no place inside a snapshot")
    return relative


def _write_file(source: IO[bytes], entry: SnapshotEntry, target: Path) -> None:
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as sink:
        shutil.copyfileobj(verified(cast(BinaryIO, source), _content(entry)), sink, COPY_BYTES)
        sink.flush()
        os.fchmod(handle, 0o555 if entry.executable else 0o444)
        os.fsync(handle)


def _seal(folder: Path) -> None:
    for parent, _, _ in os.walk(folder, topdown=False):
        sync_directory(Path(parent))
        Path(parent).chmod(0o555)


def _tar(stream: BinaryIO) -> tarfile.TarFile:
    return tarfile.open(fileobj=stream, mode="r|", bufsize=COPY_BYTES, encoding="utf-8", errors="strict")


def _read_manifest(tar: tarfile.TarFile) -> SnapshotManifest:
    member = tar.next()
    source = tar.extractfile(member) if member is not None and member.isreg() and member.name == MANIFEST_NAME else None
    if source is None:
        raise StoreError(f"the archive does not begin with {MANIFEST_NAME}")
    manifest = SnapshotManifest.model_validate_json(source.read())
    if manifest.format != SNAPSHOT_FORMAT:
        raise StoreError(
            f"the snapshot has format {manifest.format}, this version reads {SNAPSHOT_FORMAT}", hint="pack the world again"
        )
    return manifest


@contextmanager
def _reading(archive: Artifact) -> Generator[None]:
    try:
        yield
    except (tarfile.TarError, ValidationError, UnicodeDecodeError) as error:
        raise StoreError(f"the artifact {archive.digest} is not a snapshot's archive: {error}") from error


@contextmanager
def _locked(path: Path) -> Generator[None]:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
