"""Putting imported files into a folder that may hold some of them already: all of them or none."""

from __future__ import annotations

import filecmp
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from eval_pipeline.domain.case import Case
from eval_pipeline.errors import SpecError

Content = str | Path
_LONG = 100
_BREAKS = re.compile("[\x85\u2028\u2029]")


@dataclass(frozen=True)
class ImportedCriterion:
    text: str
    points: float
    per_occurrence: bool


@dataclass(frozen=True)
class ImportedCase:
    """case: its global name. source: what it is called there. `dataclasses.asdict` gives the JSON form."""

    case: str
    world: str
    source: str
    criteria: tuple[ImportedCriterion, ...]

    @classmethod
    def of(cls, case: Case, source: str) -> ImportedCase:
        criteria = (ImportedCriterion(item.text, item.points, item.per_occurrence) for item in case.spec.rubric.criteria)
        return cls(case.name, case.world, source, tuple(criteria))


class _Dumper(yaml.SafeDumper):
    """Long and multi-line text as block scalars, sequences indented below their key."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=_style(value))  # pyright: ignore[reportUnknownMemberType]


def _style(value: str) -> str | None:
    if _BREAKS.search(value):
        return '"'  # every other style writes these as they are, and they are read as line ends
    if "\n" in value:
        return "|"
    return ">" if len(value) > _LONG else None


_Dumper.add_representer(str, _text)


def to_yaml(data: dict[str, Any]) -> str:
    """Readable YAML that keeps the order of keys and gives the same data back."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def place_tree(files: Mapping[PurePosixPath, Content], into: Path, closed: frozenset[PurePosixPath]) -> None:
    """Write `files` (text, or the file to copy) below `into`. Present files must be equal; present folders in `closed` complete.

    Everything is built beside the target first and renamed then. Raises SpecError naming the file that differs or can't be
    written; nothing has been placed in this case. A crash between two renames leaves whole files, and the next run the rest.
    """
    try:
        into.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".import-", dir=into) as folder:
            build = Path(folder)
            _build(files, build)
            _compare(files, build, into, closed)
            _place(_missing(files, into), build, into)
    except OSError as error:
        raise SpecError(f"the import can't be written: {error}", where=str(into)) from error


def _build(files: Mapping[PurePosixPath, Content], build: Path) -> None:
    for relative, content in files.items():
        path = build / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            shutil.copyfile(content, path)
        else:
            path.write_text(content, encoding="utf-8", newline="\n")


def _compare(files: Mapping[PurePosixPath, Content], build: Path, into: Path, closed: frozenset[PurePosixPath]) -> None:
    hint = "import into another folder, or remove what is there"
    for relative in files:
        present = into / relative
        if present.exists() and not (present.is_file() and filecmp.cmp(build / relative, present, shallow=False)):
            raise SpecError("is there already with different content", where=str(present), hint=hint)
    for folder in closed:
        if not (into / folder.parent).is_dir():
            continue
        for relative in files:
            if folder in relative.parents and not (into / relative).exists():
                raise SpecError("is new in a world that is there already", where=str(into / relative), hint=hint)
        for present in (into / folder).rglob("*"):
            if not present.is_dir() and PurePosixPath(present.relative_to(into)) not in files:
                raise SpecError("is in a world of this import but not a part of it", where=str(present), hint=hint)


def _missing(files: Mapping[PurePosixPath, Content], into: Path) -> list[PurePosixPath]:
    """The topmost missing path of every missing file, in the order of the files."""
    missing: dict[PurePosixPath, None] = {}
    for relative in files:
        chain = [*reversed(relative.parents), relative][1:]
        absent = next((path for path in chain if not (into / path).exists()), None)
        if absent is not None:
            missing[absent] = None
    return list(missing)


def _place(missing: list[PurePosixPath], build: Path, into: Path) -> None:
    placed: list[Path] = []
    try:
        for relative in missing:
            (build / relative).rename(into / relative)
            placed.append(into / relative)
    except OSError:
        for path in reversed(placed):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        raise
