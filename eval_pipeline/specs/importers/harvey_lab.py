"""Harvey LAB (a folder of tasks: a `task.json` each, its `documents/` beside it) as worlds, cases and a dataset.

A task is a world of its own documents with one case. World: `lab-<the task's path>`; case: `task`.
Every criterion is one point for a judge, pass or fail, and a task is solved when all pass: each rubric says `policy: all_pass`.
A criterion that looks at some of several deliverables says so in its text. What it cites as its sources is left out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from eval_pipeline.domain.case import Case, CaseSpec
from eval_pipeline.domain.ids import SLUG_MAX
from eval_pipeline.domain.world import WorldSpec, colliding_names
from eval_pipeline.errors import SpecError
from eval_pipeline.specs.importers.documents import check_no_link, check_readable
from eval_pipeline.specs.importers.slugs import slug, slug_words
from eval_pipeline.specs.importers.tree import Content, ImportedCase, place_tree, to_yaml
from eval_pipeline.specs.yaml_file import YamlFile, parse_model

DATASET = "harvey-lab"
WORLD_PREFIX = "lab"
TASK_FILE = "task.json"
CASE = "task"
_HASH_CHARS = 6

_Text = Annotated[str, Field(min_length=1, pattern=r"\S")]


class _LabModel(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)


class LabCriterion(_LabModel):
    """deliverables: the files it looks at; empty: all."""

    id: _Text
    title: _Text
    match_criteria: _Text
    deliverables: tuple[_Text, ...] = ()


class LabTask(_LabModel):
    """`task.json`. deliverables: file names, alone or as the keys of a mapping. Further keys are left out."""

    title: _Text
    instructions: _Text
    criteria: Annotated[tuple[LabCriterion, ...], Field(min_length=1)]
    deliverables: dict[_Text, str] | tuple[_Text, ...] = ()
    work_type: str | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Found:
    """A task, read. path: of its folder, relative to the folder of tasks."""

    path: PurePosixPath
    folder: Path
    world: WorldSpec
    case: CaseSpec
    documents: tuple[str, ...]


def import_harvey_lab(tasks_dir: Path, into: Path) -> list[ImportedCase]:
    """Write `worlds/` and `datasets/harvey-lab.yaml` below `into`; the cases in the order of the tasks' paths.

    All or nothing. A second import of the same is fine; a file that is there with other content is a SpecError.
    Raises SpecError with `file:line` for what can't be read.
    """
    found = [_read(path, tasks_dir) for path in sorted(tasks_dir.rglob(TASK_FILE))]
    if not found:
        raise SpecError(f"holds no {TASK_FILE}", where=str(tasks_dir), hint="name the folder that holds the tasks")
    for one, other in colliding_names(sorted(task.world.id for task in found)):
        raise SpecError(f"two tasks give the names {one!r} and {other!r}", where=str(tasks_dir), hint="rename one folder")
    closed = frozenset(_world_folder(task) / "documents" for task in found)
    place_tree(dict(_files(found)), into, closed)
    return [ImportedCase.of(Case(world=task.world.id, spec=task.case), str(task.path)) for task in found]


def _read(path: Path, tasks_dir: Path) -> _Found:
    relative = PurePosixPath(path.parent.relative_to(tasks_dir))
    task = _parse(path)
    documents = tuple(_documents(path.parent / "documents"))
    name = _name([WORLD_PREFIX, *relative.parts])
    world = WorldSpec(id=name, title=" ".join(task.title.split()), documents="documents/" if documents else None)
    return _Found(relative, path.parent, world, _case(task, relative, str(path)), documents)


def _parse(path: Path) -> LabTask:
    raw = _bytes(path)
    try:
        return LabTask.model_validate_json(json.dumps(json.loads(raw)))
    except json.JSONDecodeError as error:
        raise SpecError(f"is not JSON: {error.msg}", where=f"{path}:{error.lineno}") from None
    except RecursionError:
        raise SpecError("is nested too deep", where=str(path)) from None
    except UnicodeDecodeError as error:
        raise SpecError(f"is not UTF-8: byte {error.start} can't be decoded", where=str(path)) from None
    except ValidationError as error:
        parse_model(YamlFile.from_bytes(raw, str(path)), LabTask)  # says the same with lines: JSON is YAML too
        raise SpecError(f"is no task: {error}", where=str(path)) from None
    except ValueError as error:  # a number with too many digits
        raise SpecError(f"is not JSON: {error}", where=str(path)) from None


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SpecError(f"can't be read: {error.strerror}", where=str(path)) from None


def _documents(folder: Path) -> Iterator[str]:
    """Relative paths, sorted. Raises SpecError for a link, for what can't be read, and for names that are one elsewhere."""
    check_no_link(folder, str(folder))
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir() or path.is_symlink())
    for name in names:
        check_readable(folder / name, str(folder / name))
    for one, other in colliding_names(names):
        message = f"the documents {one!r} and {other!r} are the same name where case or Unicode form is ignored"
        raise SpecError(message, where=str(folder), hint="rename one of them")
    yield from names


def _name(parts: list[str]) -> str:
    """A slug of the whole path. A long one is cut and ends with a digest of it, so that no two become one."""
    whole = "-".join(slug_words(" ".join(parts)))
    if len(whole) <= SLUG_MAX:
        return whole
    digest = hashlib.sha256("/".join(parts).encode()).hexdigest()[:_HASH_CHARS]
    return f"{whole[: SLUG_MAX - _HASH_CHARS - 1].rpartition('-')[0]}-{digest}"


def _case(task: LabTask, path: PurePosixPath, where: str) -> CaseSpec:
    named = [*task.deliverables]
    area, kind = slug(path.parts[0] if path.parts else ""), slug(task.work_type or "")
    tags = dict.fromkeys([DATASET, area, kind, *(slug(tag) for tag in task.tags)])
    data = {
        "id": CASE,
        "prompt": task.instructions,
        "deliverables": named,
        "tags": [tag for tag in tags if tag],
        "source": {"dataset": DATASET, "task": str(path), "title": " ".join(task.title.split())},
        "rubric": {"policy": "all_pass", "criteria": [_criterion(one, named) for one in task.criteria]},
    }
    try:
        return CaseSpec.model_validate_json(json.dumps(data))
    except ValidationError as error:
        raise SpecError(f"the task makes no case: {error}", where=where) from None


def _criterion(criterion: LabCriterion, named: list[str]) -> dict[str, Any]:
    only = criterion.deliverables if set(criterion.deliverables) != set(named) else ()
    looks_at = f"\nLook only at: {', '.join(only)}" if only else ""
    text = f"{criterion.title.strip()}\n{criterion.match_criteria.strip()}{looks_at}"
    return {"id": slug(criterion.id), "text": text, "points": 1, "judge": True}


def _files(found: list[_Found]) -> Iterator[tuple[PurePosixPath, Content]]:
    """The dataset comes last: when it is there, everything it selects is."""
    for task in found:
        folder = _world_folder(task)
        yield folder / "world.yaml", to_yaml(task.world.model_dump(exclude_none=True))
        for name in task.documents:
            yield folder / "documents" / name, task.folder / "documents" / name
        yield folder / "cases" / f"{task.case.id}.yaml", to_yaml(_case_data(task.case))
    yield PurePosixPath("datasets", f"{DATASET}.yaml"), to_yaml({"name": DATASET, "cases": [f"tag:{DATASET}"]})


def _world_folder(task: _Found) -> PurePosixPath:
    return PurePosixPath("worlds", task.world.id)


def _case_data(case: CaseSpec) -> dict[str, Any]:
    criteria = [{"id": one.id, "text": one.text, "points": int(one.points), "judge": True} for one in case.rubric.criteria]
    data = {"id": case.id, "prompt": case.prompt, "deliverables": list(case.deliverables), "tags": list(case.tags)}
    return {**data, "source": case.source, "rubric": {"policy": case.rubric.policy, "criteria": criteria}}
