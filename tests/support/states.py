"""Bundles with a state, made with tar itself: what an application's dump leaves, or what a hostile one would."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eval_pipeline.domain.world import SnapshotEntry, SnapshotManifest

EMPTY = SnapshotManifest(entries=())


def jsonl(*rows: Any) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def state_bundle(
    path: Path,
    files: Mapping[str, bytes],
    links: Mapping[str, str] | None = None,
    extra: Sequence[tarfile.TarInfo] = (),
    skipped: Mapping[str, str] | None = None,
) -> Path:
    """files and links: path in the state -> content, or where it leads."""
    with tarfile.open(path, "w:gz", compresslevel=1, format=tarfile.GNU_FORMAT) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(f"out/state/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(f"out/state/{name}")
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)
        for info in extra:
            archive.addfile(info)
        if skipped is not None:
            told = json.dumps(skipped).encode()
            info = tarfile.TarInfo("skipped.json")
            info.size = len(told)
            archive.addfile(info, io.BytesIO(told))
    return path


def snapshot(folder: Path, files: Mapping[str, bytes]) -> SnapshotManifest:
    """Written below `folder`."""
    entries: dict[str, SnapshotEntry] = {}
    for name, content in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        for parent in Path(name).parents[:-1]:
            entries[str(parent)] = SnapshotEntry(path=str(parent), type="dir")
        entries[name] = SnapshotEntry(path=name, type="file", size=len(content), sha256=hashlib.sha256(content).hexdigest())
    return SnapshotManifest(entries=tuple(entries[name] for name in sorted(entries)))
