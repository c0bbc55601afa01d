"""What is wrong with a world, or looks wrong, all of it at once: what a lock would refuse, and what would surprise later."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from eval_pipeline.domain.world import SnapshotManifest
from eval_pipeline.errors import SpecError
from eval_pipeline.specs.library import Library, World, case_paths
from eval_pipeline.specs.yaml_file import YamlFile
from eval_pipeline.store.snapshots import scan_world

PERMISSIONS_MAX_BYTES = 256 << 10  # a larger file is the application's matter, and slow to read as YAML
FINDINGS_MAX = 200
_LIKE_CASES = (".yml", ".json", ".md", ".txt", "")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """error: nothing can run on the world. warning: it can, and probably not as meant."""

    level: Literal["error", "warning"]
    message: str
    hint: str | None = None

    @property
    def n_complaints(self) -> int:
        """A file's own stand in one message, a line each."""
        return self.message.count("\n") + 1


@dataclass
class Checked:
    """digest None: the world could not be read. part_bytes: by part of the snapshot."""

    world: str
    digest: str | None = None
    n_files: int = 0
    size_bytes: int = 0
    part_bytes: dict[str, int] = field(default_factory=dict[str, int])
    n_rows: int = 0
    n_cases: int = 0
    n_criteria: int = 0
    findings: list[Finding] = field(default_factory=list[Finding])

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.level == "error"]


def check_world(library: Library, name: str) -> Checked:
    checked = Checked(name)
    world = _tried(checked, lambda: library.world(name))
    if world is None:
        return checked
    manifest = _tried(checked, lambda: scan_world(world.folder, world.spec))
    if manifest is not None:
        _measure(checked, manifest)
        _look_at_rows(checked, library, world)
        _look_at_permissions(checked, library, world, manifest)
    _look_at_cases(checked, library, world)
    del checked.findings[FINDINGS_MAX:]
    return checked


def _tried(checked: Checked, read: Callable[[], T]) -> T | None:
    """What it reads; None when that is a mistake of the author's, which is then a finding."""
    try:
        return read()
    except SpecError as error:
        checked.findings.append(Finding(level="error", message=str(error), hint=error.hint))
        return None


def _warn(checked: Checked, where: str, what: str, hint: str) -> None:
    checked.findings.append(Finding(level="warning", message=f"{where}: {what}", hint=hint))


def _measure(checked: Checked, manifest: SnapshotManifest) -> None:
    checked.digest, checked.n_files, checked.size_bytes = manifest.digest, manifest.n_files, manifest.size_bytes
    for entry in manifest.entries:
        part = entry.path.partition("/")[0]
        checked.part_bytes[part] = checked.part_bytes.get(part, 0) + entry.size
        if not entry.path.isprintable():
            _warn(checked, repr(entry.path), "its name holds a character that can't be seen", "rename the file")


def _look_at_rows(checked: Checked, library: Library, world: World) -> None:
    if world.spec.database is None:
        return
    for path in sorted((world.folder / world.spec.database).rglob("*")):
        shown = library.shown(path)
        if path.is_file() and path.suffix != ".jsonl":
            _warn(checked, shown, "is no table, so nothing compares its rows", "name it <table>.jsonl, one JSON object a line")
        elif path.is_file():
            _look_at_table(checked, shown, path)


def _look_at_table(checked: Checked, shown: str, path: Path) -> None:
    seen: dict[str, int] = {}
    without: list[int] = []
    for number, row in _rows(checked, shown, path):
        checked.n_rows += 1
        if row.get("id") is None:
            without.append(number)
            continue
        key = json.dumps(row["id"], sort_keys=True)
        if key in seen:
            _warn(checked, f"{shown}:{number}", f"the id {key} stands already in line {seen[key]}", "give each row its own id")
        seen.setdefault(key, number)
    if without:
        more = f" (and {len(without) - 1} more lines)" if len(without) > 1 else ""
        hint = "without one a changed row shows as one removed and one added"
        _warn(checked, f"{shown}:{without[0]}", f"the row has no `id`{more}", hint)


def _rows(checked: Checked, shown: str, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line, parse_constant=_no_number)
            except (ValueError, RecursionError) as error:
                _error(checked, f"{shown}:{number}", f"is not JSON: {error}")
                return
            if not isinstance(row, dict):
                _error(checked, f"{shown}:{number}", f"a row must be a JSON object, found {type(row).__name__}")
                return
            yield number, cast(dict[str, Any], row)


def _no_number(text: str) -> None:
    """Python reads them all the same, and a dump with one is not compared."""
    raise ValueError(f"{text} is no number there")


def _error(checked: Checked, where: str, what: str) -> None:
    checked.findings.append(Finding(level="error", message=f"{where}: {what}", hint="write one JSON object a line"))


def _look_at_permissions(checked: Checked, library: Library, world: World, manifest: SnapshotManifest) -> None:
    """Only a list of `rules` that `match` paths says what it is about; any other form is the application's own."""
    if world.spec.permissions is None:
        return
    path = world.folder / world.spec.permissions
    if path.stat().st_size > PERMISSIONS_MAX_BYTES:
        hint = f"at most {PERMISSIONS_MAX_BYTES:,} bytes are read here"
        _warn(checked, library.shown(path), "is too large for its rules to be checked", hint)
        return
    file = _tried(checked, lambda: library.file(path))
    if file is None:
        return
    files = [entry.path for entry in manifest.entries if entry.type == "file"]
    for where, pattern in _patterns(file):
        if not any(fnmatch.fnmatchcase(name, pattern) for name in files):
            hint = "patterns are matched against paths such as documents/lease.md"
            _warn(checked, where, f"`match: {pattern}` matches no file of the world, so the rule protects nothing", hint)


def _patterns(file: YamlFile) -> Iterator[tuple[str, str]]:
    data: Any = file.data
    rules: Any = cast(dict[str, Any], data).get("rules") if isinstance(data, dict) else None
    for index, rule in enumerate(cast(list[Any], rules) if isinstance(rules, list) else []):
        pattern: Any = cast(dict[str, Any], rule).get("match") if isinstance(rule, dict) else None
        if isinstance(pattern, str):
            yield file.where(("rules", index, "match")), pattern


def _look_at_cases(checked: Checked, library: Library, world: World) -> None:
    cases, wrong = library.read_cases(world.spec.id)
    checked.findings += [Finding(level="error", message=str(one.error), hint=one.error.hint) for one in wrong]
    for path in sorted((world.folder / "cases").glob("*")):
        if path.is_file() and path.suffix in _LIKE_CASES:
            _warn(
                checked,
                library.shown(path),
                "is no case: only files named *.yaml in this folder are",
                "name it <id>.yaml, or remove it",
            )
    for case_id in sorted({case.spec.id for case in cases} - {path.stem for path in case_paths(world)}):
        where = library.shown(world.folder / "cases")
        _warn(checked, where, f"the case {case_id!r} stands in a file of another name", f"name it {case_id}.yaml")
    checked.n_cases = len(cases)
    checked.n_criteria = sum(len(case.spec.rubric.criteria) for case in cases)
    if not case_paths(world):
        hint = "write one: cases/<id>.yaml; `evals world new` shows the form"
        _warn(checked, library.shown(world.folder), "has no case, so no experiment can use the world", hint)
