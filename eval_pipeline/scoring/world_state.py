"""A state in world format: what it holds by digest, and where the bytes are of what must be read.

It comes from an output bundle (`out/state/...`, where a link into /world stands for a file of the snapshot) or from a world's files.
Whatever stands there, nothing is followed out of it; what can't be compared is a problem of the state.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tarfile import TarInfo
from typing import IO, Any, cast

from eval_pipeline.domain.world import SnapshotManifest
from eval_pipeline.domain.world_diff import FileFacts
from eval_pipeline.sandbox.base import OUTPUT_DIR, SKIPPED_NAME, STATE_DIR, world_path
from eval_pipeline.scoring.bundle_tar import bundle_members

FETCH_MAX_BYTES = 256 << 20
MAX_PROBLEMS = 2000
_CHUNK = 1 << 20
_PREFIX = f"{STATE_DIR[1:]}/"  # in a bundle
_SKIPPED_MAX_BYTES = 16 << 20

Fetch = Callable[[Collection[str]], Mapping[str, Path]]


@dataclass
class State:
    """problems: path -> why it, and what is below it, can't be compared; "" for the whole state. fetch: files with the content of
    some of `files`, as far as FETCH_MAX_BYTES go."""

    fetch: Fetch
    files: dict[str, FileFacts] = field(default_factory=dict[str, FileFacts])
    problems: dict[str, str] = field(default_factory=dict[str, str])

    def refuse(self, path: str, why: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.setdefault(path, why)
        else:
            self.problems[""] = "more is wrong than is named here"

    def unknown(self, path: str) -> bool:
        """Whether it, or a directory above it, is a problem."""
        parts = path.split("/")
        return path in self.problems or any("/".join(parts[:n]) in self.problems for n in range(1, len(parts)))


def files_state(places: Mapping[str, Path], manifest: SnapshotManifest) -> State:
    """Of a world's folder or a restored snapshot. places: by path in the manifest, where the file is."""
    facts = {entry.path: FileFacts(size=entry.size, sha256=entry.sha256) for entry in manifest.entries if entry.type == "file"}
    return State(files=facts, fetch=lambda wanted: {path: places[path] for path in wanted})


def bundle_state(bundle: Path, world_dir: Path, manifest: SnapshotManifest, scratch: Path) -> State:
    """Raises tarfile.TarError, OSError or TypeError when the bundle itself is broken."""
    reading = _Reading(bundle, world_dir, manifest, scratch)
    for member, stream in bundle_members(bundle):
        if member.name.startswith(_PREFIX):
            reading.member(member, stream)
        elif member.name == SKIPPED_NAME and stream is not None:
            reading.skipped(stream.read(_SKIPPED_MAX_BYTES))
    if not reading.state.files and not reading.state.problems:
        reading.state.refuse("", f"there is nothing below {STATE_DIR}: the dump left no state")
    return reading.state


class _Reading:
    def __init__(self, bundle: Path, world_dir: Path, manifest: SnapshotManifest, scratch: Path) -> None:
        self._bundle, self._world_dir, self._scratch = bundle, world_dir, scratch
        self._snapshot = {entry.path: entry for entry in manifest.entries}
        self._linked: dict[str, Path] = {}
        self.state = State(fetch=self._fetch)

    def member(self, member: TarInfo, stream: IO[bytes] | None) -> None:
        path = member.name.removeprefix(_PREFIX)
        if any(part in ("", ".", "..") for part in path.split("/")):
            self.state.refuse(path or "", "is no plain path")
        elif path in self.state.files:
            self.state.refuse(path, "stands in the bundle twice")
        elif stream is not None:
            digest = hashlib.file_digest(cast(Any, stream), "sha256").hexdigest()
            self.state.files[path] = FileFacts(size=member.size, sha256=digest)
        elif member.issym():
            self._link(path, member.linkname)
        elif not member.isdir():
            self.state.refuse(path, "is neither a file nor a link into the world")

    def _link(self, path: str, target: str) -> None:
        inside = world_path(target)
        entry = self._snapshot.get(inside or "")
        if inside is None or entry is None:
            self.state.refuse(path, f"is a link to {target!r}, which the world's snapshot does not have")
        elif entry.type != "file":
            self.state.refuse(path, f"is a link to the directory {target!r}; link each of its files")
        else:
            self.state.files[path] = FileFacts(size=entry.size, sha256=entry.sha256)
            self._linked[path] = self._world_dir / inside

    def skipped(self, told: bytes) -> None:
        """What was left out when the bundle was packed: it was there, so it must not look as if it was removed."""
        data = cast(dict[str, str], json.loads(told))
        below = f"{STATE_DIR.removeprefix(OUTPUT_DIR)[1:]}/"
        for path, why in data.items():
            if path.startswith(below) or path == below[:-1]:
                self.state.refuse(path.removeprefix(below[:-1]).strip("/"), f"was not kept: {why}")
            elif path in ("...", "./"):
                self.state.refuse("", f"may lack files: {why}")

    def _fetch(self, wanted: Collection[str]) -> Mapping[str, Path]:
        places = {path: self._linked[path] for path in wanted if path in self._linked}
        missing, left_bytes = set(wanted) - places.keys(), FETCH_MAX_BYTES
        folder = self._scratch
        folder.mkdir(parents=True, exist_ok=True)
        if not missing:
            return places
        for member, stream in bundle_members(self._bundle):
            path = member.name.removeprefix(_PREFIX)
            if stream is None or path == member.name or path not in missing or member.size > left_bytes:
                continue
            left_bytes -= member.size
            places[path] = folder / hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()
            with places[path].open("wb") as sink:
                shutil.copyfileobj(stream, sink, _CHUNK)
        return places
