"""world_diff: what an agent changed in the application's state, from the dump of the prepared state and the dump after it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from eval_pipeline.domain.world import SnapshotManifest
from eval_pipeline.domain.world_compare import Rules, compare_permissions, differences, file_changes, read_rules
from eval_pipeline.domain.world_diff import (
    MAX_ENTRIES,
    MAX_PROBLEMS,
    DocumentChanges,
    FileChange,
    FileChanges,
    Kind,
    PartName,
    Permissions,
    Problem,
    Problems,
    RowChange,
    RowChanges,
    Side,
    WorldDiff,
    listed,
    printable,
)
from eval_pipeline.scoring.world_content import Reader
from eval_pipeline.scoring.world_rows import Malformed, index, row_changes
from eval_pipeline.scoring.world_state import State, bundle_state

PERMISSION_NAMES = ("permissions", "permissions.yaml", "permissions.json")
PERMISSIONS_MAX_BYTES, YAML_MAX_BYTES = 4 << 20, 256 << 10
_FOLDERS: dict[str, PartName] = {"documents": "documents", "database": "rows", "blobs": "blobs"}


def world_diff_of(bundle: Path, before: Path, world_dir: Path, manifest: SnapshotManifest) -> WorldDiff:
    """bundle, before: output bundles with `out/state`; links in them stand for files of the snapshot in `world_dir`.

    Memory is bounded; what must be read of the bundles is unpacked next to `bundle` meanwhile. Raises tarfile.TarError, OSError or
    TypeError when a bundle itself is broken; nothing that a dump or an agent wrote raises.
    """
    with tempfile.TemporaryDirectory(dir=bundle.parent) as scratch:
        states = [
            bundle_state(path, world_dir, manifest, Path(scratch) / side)
            for path, side in ((before, "before"), (bundle, "after"))
        ]
        return diff_states(*states)


def diff_states(before: State, after: State) -> WorldDiff:
    return _Diff(before, after).run()


@dataclass
class _Diff:
    before: State
    after: State
    problems: list[Problem] = field(default_factory=list[Problem])

    def run(self) -> WorldDiff:
        self._told()
        if any("" in state.problems and not state.files for state in (self.before, self.after)):
            return WorldDiff(problems=self._problems())  # one of them is missing as a whole
        changed = self._changed()
        parts: dict[str, dict[str, Kind]] = {"documents": {}, "rows": {}, "blobs": {}, "permissions": {}}
        for path, kind in changed.items():
            parts[part_of(path)].setdefault(path, kind)
        detailed = list(parts["documents"])[:MAX_ENTRIES]
        wanted = [*parts["rows"], *parts["permissions"], *detailed]
        old = self.before.fetch([path for path in wanted if path in self.before.files])
        new = self.after.fetch([path for path in wanted if path in self.after.files])
        diff = {
            "rows": self._rows(parts["rows"], old, new),
            "permissions": self._permissions(old, new),
            "documents": self._documents(parts["documents"], old, new),
            "blobs": listed(FileChanges, self._files(parts["blobs"]), parts["blobs"].values(), len(parts["blobs"])),
        }
        return WorldDiff(**diff, problems=self._problems())

    def _told(self) -> None:
        for side, state in self._sides():
            for path, why in sorted(state.problems.items()):
                self._problem(part_of(path) if path else "state", side, path, why)
            for path in sorted(state.files):
                if part_of(path) == "state":
                    self._problem("state", side, path, "has no place in world format")
                elif part_of(path) == "rows" and not path.endswith(".jsonl"):
                    self._problem("rows", side, path, "is not a table: database/<table>.jsonl")

    def _sides(self) -> Iterator[tuple[Side, State]]:
        yield "before", self.before
        yield "after", self.after

    def _problem(self, part: PartName, side: Side, where: str, what: str) -> None:
        self.problems.append(Problem(part=part, side=side, where=printable(where)[:1000], what=printable(what)[:1000]))

    def _problems(self) -> Problems:
        kept = tuple(self.problems[:MAX_PROBLEMS])
        return Problems(entries=kept, n_more=len(self.problems) - len(kept))

    def _changed(self) -> dict[str, Kind]:
        """What differs and is known on both sides."""
        return {
            path: kind
            for path, kind in differences(self.before.files, self.after.files)
            if not (self.before.unknown(path) or self.after.unknown(path) or part_of(path) == "state")
        }

    def _files(self, paths: Mapping[str, Kind]) -> list[FileChange]:
        return file_changes(list(paths.items())[:MAX_ENTRIES], self.before.files, self.after.files)

    def _documents(self, paths: Mapping[str, Kind], old: Mapping[str, Path], new: Mapping[str, Path]) -> DocumentChanges:
        reader = Reader()
        detailed = [
            reader.detail(change, path, old.get(path), new.get(path))
            for path, change in zip(paths, self._files(paths), strict=False)
        ]
        return listed(DocumentChanges, detailed, paths.values(), len(paths))

    def _rows(self, paths: Mapping[str, Kind], old: Mapping[str, Path], new: Mapping[str, Path]) -> RowChanges:
        changes: list[RowChange] = []
        kinds: list[Kind] = []
        for path in (path for path in paths if path.endswith(".jsonl")):
            tables = [self._table(side, state, path, got) for (side, state), got in zip(self._sides(), (old, new), strict=True)]
            if tables[0] is None or tables[1] is None:
                continue
            name = path.removeprefix("database/").removesuffix(".jsonl")
            found = row_changes(name, tables[0], tables[1], MAX_ENTRIES - len(changes))
            changes += found.changes
            kinds += found.kinds
        return listed(RowChanges, changes, kinds, len(kinds))

    def _table(self, side: Side, state: State, path: str, got: Mapping[str, Path]) -> Any:
        if path in state.files and path not in got:
            self._problem("rows", side, path, f"is too large to be compared: {state.files[path].size:,} bytes")
            return None
        try:
            return index(got.get(path))
        except Malformed as error:
            self._problem("rows", side, path if error.line is None else f"{path}:{error.line}", str(error))
            return None

    def _permissions(self, old: Mapping[str, Path], new: Mapping[str, Path]) -> Permissions:
        names = [self._permissions_name(side, state) for side, state in self._sides()]
        if names[0] is None or names[1] is None or self._same(names[0], names[1]):
            return Permissions()
        rules = [self._rules("before", names[0], old), self._rules("after", names[1], new)]
        if rules[0] is None or rules[1] is None:
            return Permissions()
        paths = [path for path in self.before.files | self.after.files if part_of(path) in ("documents", "blobs")]
        try:
            return compare_permissions(rules[0], rules[1], paths)
        except ValueError as error:
            self._problem("permissions", "after", names[1], str(error))
            return Permissions()

    def _same(self, old: str, new: str) -> bool:
        return self.before.files.get(old) == self.after.files.get(new)

    def _permissions_name(self, side: Side, state: State) -> str | None:
        """The one there is; None, which is a problem unless it is one already, when it can't be said which. Without any: the first."""
        found = [name for name in PERMISSION_NAMES if name in state.files]
        if len(found) > 1:
            self._problem("permissions", side, found[1], f"stands beside {found[0]}: only one can hold")
            return None
        return None if any(state.unknown(name) for name in PERMISSION_NAMES) else (found or list(PERMISSION_NAMES))[0]

    def _rules(self, side: Side, name: str, got: Mapping[str, Path]) -> Rules | None:
        try:
            if name not in got:
                raise ValueError("is missing, or too large to be read; the other state has it")
            return read_rules(_parsed(got[name]))
        except (ValueError, yaml.YAMLError, RecursionError) as error:
            self._problem("permissions", side, name, f"can't be read: {error}")
            return None


def part_of(path: str) -> PartName:
    """`state` for what belongs to none."""
    return "permissions" if path in PERMISSION_NAMES else _FOLDERS.get(path.partition("/")[0], "state")


def _parsed(path: Path) -> Any:
    """JSON, or the YAML that a person wrote. Without aliases: they make a short file a large value."""
    size = path.stat().st_size
    if size > PERMISSIONS_MAX_BYTES:
        raise ValueError(f"{size:,} bytes; at most {PERMISSIONS_MAX_BYTES:,} are read")
    text = path.read_text("utf-8")
    try:
        return json.loads(text)
    except ValueError:
        if size > YAML_MAX_BYTES:
            raise ValueError(f"no JSON; as YAML at most {YAML_MAX_BYTES:,} bytes are read") from None
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise ValueError("holds aliases") from None
        return yaml.safe_load(text)
