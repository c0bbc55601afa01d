"""A new case: checked as the library checks its files, and written once."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from eval_pipeline.domain.case import Case, CaseSpec
from eval_pipeline.errors import SpecError
from eval_pipeline.specs.library import Library, case_paths
from eval_pipeline.specs.yaml_file import YamlFile

_ORDER = ("id", "prompt", "deliverables", "limits", "tags", "split", "reference", "source", "rubric")


@dataclass(frozen=True)
class NewCase:
    """text: what the file holds, or would. created: False when the same case was there already, or nothing was to be written."""

    case: Case
    path: Path
    text: str
    exists: bool
    created: bool


class _Dumper(yaml.SafeDumper):
    """Lists are indented below their key, and texts of several lines stand as they are."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def case_text(data: dict[str, Any]) -> str:
    """As a case's file is written: the keys in their usual order."""
    known = {key: data[key] for key in _ORDER if key in data}
    return yaml.dump(known | data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def new_case(library: Library, world: str, draft: YamlFile, *, dry_run: bool = False) -> NewCase:
    """Write the draft as a case of the world. The same case again changes nothing.

    Raises SpecError for what is wrong with the draft, at its line there, and when the id is taken by another case.
    """
    owner = library.world(world)
    folder = owner.folder / "cases"
    case = library.parse_case(owner, folder / "draft.yaml", draft)
    text = case_text(draft.data)
    path = _path_of(library, world, case.spec.id)
    if path is not None:
        _refuse_other(library, path, case, library.parse_case(owner, path, library.file(path)).spec)
        return NewCase(case, path, text, exists=True, created=False)
    path = folder / f"{case.spec.id}.yaml"
    if not dry_run:
        _write_once(library, path, text)
    return NewCase(case, path, text, exists=False, created=not dry_run)


def _path_of(library: Library, world: str, case_id: str) -> Path | None:
    """The file that holds the case, or has its name."""
    for path in case_paths(library.world(world)):
        if path.stem == case_id:
            return path
        with suppress(SpecError):  # who asks for that case will hear of it
            data = library.file(path).data
            if isinstance(data, dict) and data.get("id") == case_id:  # pyright: ignore[reportUnknownMemberType]
                return path
    return None


def _refuse_other(library: Library, path: Path, case: Case, there: CaseSpec) -> None:
    if there == case.spec:
        return
    differ = [name for name in CaseSpec.model_fields if getattr(there, name) != getattr(case.spec, name)]
    raise SpecError(
        f"the case {case.name} is there already, with another {', '.join(differ)}",
        where=library.shown(path),
        hint=f"`evals case show {case.name}` shows it; take another id, or edit its file",
    )


def _write_once(library: Library, path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    handle, unfinished = tempfile.mkstemp(prefix=f".{path.stem}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as sink:
            sink.write(text)
        Path(unfinished).chmod(0o644)
        os.link(unfinished, path)  # fails where somebody was quicker
    except FileExistsError:
        raise SpecError("somebody else has just written it", where=library.shown(path), hint="run the command again") from None
    finally:
        Path(unfinished).unlink()
