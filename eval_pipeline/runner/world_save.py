"""What an app holds, written back as the world's source: compared first, and each folder seen whole or not at all."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from eval_pipeline.domain.app import AppManifest
from eval_pipeline.domain.world import MadeWith, SnapshotManifest, WorldSpec
from eval_pipeline.domain.world_diff import FileFacts, WorldDiff
from eval_pipeline.environment.lifecycle import dump_state
from eval_pipeline.errors import SpecError, StoreError
from eval_pipeline.sandbox.base import Sandbox
from eval_pipeline.scoring.world_diff import PERMISSION_NAMES, diff_states
from eval_pipeline.scoring.world_state import State, bundle_state
from eval_pipeline.specs import git
from eval_pipeline.specs.library import Library, World
from eval_pipeline.specs.world_yaml import edited
from eval_pipeline.store.snapshots import remove_tree, scan_world
from eval_pipeline.store.world_files import list_world

FOLDERS = ("documents", "database", "blobs")


@dataclass(frozen=True, kw_only=True)
class Dumped:
    """What the app holds now (`after`) against the world on disk. disk_digest: of that."""

    after: State
    diff: WorldDiff
    disk_digest: str
    made_with: MadeWith


async def dump(
    sandbox: Sandbox,
    world: World,
    manifest: AppManifest,
    commit: str | None,
    world_dir: Path,
    snapshot: SnapshotManifest,
    scratch: Path,
) -> Dumped:
    """world_dir, snapshot: that the app was started on. scratch: an empty folder. Raises SpecError, BuildError with the app's words."""
    if manifest.dump is None:
        raise SpecError(
            f"{manifest.name} has no `dump`, so nobody can say what it holds",
            hint="write a command that puts the state below /out/state, and name it in the manifest",
        )
    await dump_state(sandbox, manifest, f"save.{secrets.token_hex(4)}")
    bundle = scratch / "bundle.tar"
    await sandbox.collect(bundle)
    after = bundle_state(bundle, world_dir, snapshot, scratch / "after")
    disk = scan_world(world.folder, world.spec)
    diff = diff_states(_on_disk(world, disk), after)
    made_with = MadeWith(app=manifest.name, commit=commit, schema_version=manifest.schema_version)
    return Dumped(after=after, diff=diff, disk_digest=disk.digest, made_with=made_with)


def _on_disk(world: World, manifest: SnapshotManifest) -> State:
    places = {file.name: file.path for file in list_world(world.folder, world.spec)}
    facts = {entry.path: FileFacts(size=entry.size, sha256=entry.sha256) for entry in manifest.entries if entry.type == "file"}
    return State(files=facts, fetch=lambda wanted: {path: places[path] for path in wanted})


def doubts(world: World, opened_digest: str, disk_digest: str) -> list[str]:
    """Why overwriting the world's source might lose something."""
    found: list[str] = []
    if disk_digest != opened_digest:
        found.append("it has changed on disk since it was opened")
    state = git.uncommitted(world.folder)
    if state is None:
        found.append("no git repository has it, so what is overwritten can't be had back")
    elif state:
        found.append(f"it has uncommitted changes: {', '.join(state[:5])}{' ...' if len(state) > 5 else ''}")
    return found


def require_comparable(dumped: Dumped) -> None:
    if dumped.diff.n_problems:
        said = "\n".join(f"{one.side}: {one.where or 'the state'} {one.what}" for one in dumped.diff.problems.entries[:20])
        raise SpecError(
            f"the dump can't be compared with the world, so nothing is written:\n{said}", hint="correct the app's `dump`"
        )


def save(world: World, dumped: Dumped) -> None:
    """Into the world's own folder: what differs is replaced, each part at once; the rest keeps its bytes. Raises StoreError."""
    changes: dict[str, Any] = {}
    for part in FOLDERS:
        path = _path(world.spec, part)
        if _differs(dumped.diff, part):
            _replace_folder(world.folder / path, partial(_write_part, part=part, world=world, dumped=dumped))
            changes |= {} if part in world.spec.parts() else {part: path}
    if dumped.diff.permissions.changed:
        path = world.spec.permissions or PERMISSION_NAMES[1]
        source = next(name for name in PERMISSION_NAMES if name in dumped.after.files)
        _replace_file(world.folder / path, _content(dumped, source).read_bytes())
        changes |= {"permissions": path}
    changes |= {"schema_version": None, "made_with": dumped.made_with.model_dump(exclude_none=True)}
    written = world.folder / "world.yaml"
    _replace_file(written, edited(written.read_text(), changes).encode())


def require_free(library: Library, name: str) -> Path:
    """The folder of a new world. Raises SpecError where one is there."""
    target = library.root / "worlds" / name
    if target.exists():
        raise SpecError(f"{library.shown(target)} is there already", hint="take another name, or save without --into")
    return target


def save_as(library: Library, world: World, dumped: Dumped, name: str) -> None:
    """As a new world, with the old one's cases. There is nothing, or all of it."""
    target = require_free(library, name)
    unfinished = target.with_name(f".{name}.{secrets.token_hex(4)}")
    try:
        shutil.copytree(world.folder, unfinished, symlinks=True)
        file = unfinished / "world.yaml"
        file.write_text(edited(file.read_text(), {"id": name}))
        save(World(world.spec, unfinished), dumped)
        unfinished.rename(target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _path(spec: WorldSpec, part: str) -> str:
    return spec.parts().get(part, f"{part}/")


def _differs(diff: WorldDiff, part: str) -> bool:
    return bool({"documents": diff.documents, "database": diff.rows, "blobs": diff.blobs}[part].counts.total)


def _write_part(target: Path, *, part: str, world: World, dumped: Dumped) -> None:
    old = world.folder / _path(world.spec, part)
    changed = _changed_tables(dumped.diff) if part == "database" else None
    paths = [path for path in dumped.after.files if path.startswith(f"{part}/")]
    places = dumped.after.fetch(paths)
    for path in paths:
        relative = path.removeprefix(f"{part}/")
        if path not in places:
            raise StoreError(f"{path} is too large to be taken out of the dump")
        copy = target / relative
        copy.parent.mkdir(parents=True, exist_ok=True)
        same = changed is not None and relative.removesuffix(".jsonl") not in changed and (old / relative).is_file()
        shutil.copyfile(old / relative if same else places[path], copy)
        if (old / relative).is_file():
            shutil.copymode(old / relative, copy)


def _changed_tables(diff: WorldDiff) -> set[str] | None:
    """Names of the tables whose rows differ: the others keep the bytes a person wrote. None: not all of them are known."""
    return None if diff.rows.n_more else {entry.table for entry in diff.rows.entries}


def _content(dumped: Dumped, path: str) -> Path:
    found: Mapping[str, Path] = dumped.after.fetch([path])
    if path not in found:
        raise StoreError(f"{path} is too large to be taken out of the dump")
    return found[path]


def _replace_folder(target: Path, write: Callable[[Path], None]) -> None:
    """Built beside and renamed; what stood there goes last."""
    mark = secrets.token_hex(4)
    new, old = target.with_name(f".{target.name}.{mark}.new"), target.with_name(f".{target.name}.{mark}.old")
    new.mkdir(parents=True)
    try:
        write(new)
        if target.exists():
            target.rename(old)
        new.rename(target)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    remove_tree(old)


def _replace_file(target: Path, content: bytes) -> None:
    new = target.with_name(f".{target.name}.{secrets.token_hex(4)}.new")
    new.write_bytes(content)
    if target.exists():
        shutil.copymode(target, new)
    new.rename(target)
