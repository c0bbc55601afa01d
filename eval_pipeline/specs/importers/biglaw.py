"""BigLaw Bench (core samples: a CSV and a folder of documents) as worlds, cases and a dataset.

A matter is what rows with a document in common are about, also through other rows; a row without documents is one of its own.
World: `biglaw-<lowest Number of the matter>`. Case: `<Number>-<Task Type>`. Neither depends on the order of the rows, and both
stay when rows are added, unless a new row joins two matters or brings a lower Number into one: the import then says so.
The dataset selects by the tag `biglaw-bench`, so that it stays the same file when the table grows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import ValidationError

from eval_pipeline.domain.case import Case, CaseSpec
from eval_pipeline.domain.experiment import DatasetSpec
from eval_pipeline.domain.rubric import Criterion
from eval_pipeline.domain.world import WorldSpec, colliding_names
from eval_pipeline.errors import SpecError
from eval_pipeline.specs.importers.biglaw_csv import Cell, Row, parse_csv
from eval_pipeline.specs.importers.biglaw_rubric import parse_rubric
from eval_pipeline.specs.importers.documents import DocumentIndex, check_readable
from eval_pipeline.specs.importers.slugs import slug
from eval_pipeline.specs.importers.tree import Content, ImportedCase, place_tree, to_yaml

DATASET = "biglaw-bench"
WORLD_PREFIX = "biglaw-"
NUMBER_MAX = 24
_NO_DOCUMENTS = ("", "n/a", "na", "none")


@dataclass(frozen=True)
class Entry:
    """A row, read. documents: names on disk, each with the `file:line` that asks for it."""

    number: str
    where: str
    title: str
    case: CaseSpec
    documents: dict[str, str]


@dataclass(frozen=True)
class Matter:
    world: WorldSpec
    entries: tuple[Entry, ...]

    def documents(self) -> dict[str, str]:
        return {name: where for entry in self.entries for name, where in entry.documents.items()}


def import_biglaw_bench(csv_path: Path, documents_dir: Path, into: Path) -> list[ImportedCase]:
    """Write `worlds/` and `datasets/biglaw-bench.yaml` below `into`; the cases in the order of the rows.

    All or nothing. A second import of the same is fine; a file that is there with other content is a SpecError.
    Raises SpecError with the CSV's `file:line` for what can't be read.
    """
    try:
        raw = csv_path.read_bytes()
    except OSError as error:
        raise SpecError(
            f"can't be read: {error.strerror}", where=str(csv_path), hint="name the CSV, then the folder of its documents"
        ) from None
    entries = parse_entries(raw, str(csv_path), DocumentIndex.of(documents_dir))
    matters = group_matters(entries)
    for name, where in (item for matter in matters for item in matter.documents().items()):
        check_readable(documents_dir / name, where)
    _check_not_moved(matters, into)
    closed = frozenset(_folder(matter) / "documents" for matter in matters)
    place_tree(dict(_files(matters, documents_dir)), into, closed)
    worlds = {entry.number: matter.world.id for matter in matters for entry in matter.entries}
    return [ImportedCase.of(Case(world=worlds[entry.number], spec=entry.case), entry.number) for entry in entries]


def parse_entries(raw: bytes, shown: str, index: DocumentIndex) -> list[Entry]:
    """The rows of the CSV, in its order."""
    entries: list[Entry] = []
    taken: dict[str, str] = {}
    for row in parse_csv(raw, shown):
        entry = _entry(row, shown, index)
        for name in (slug(entry.number), entry.case.id):
            first = taken.setdefault(name, entry.where)
            if first != entry.where:
                message = f"the Number {entry.number!r} gives the name {name!r}, which the row at {first} has already"
                raise SpecError(message, where=entry.where, hint="give each row a Number of its own")
        entries.append(entry)
    if not entries:
        raise SpecError("has a header but no row", where=f"{shown}:1")
    return entries


def _entry(row: Row, shown: str, index: DocumentIndex) -> Entry:
    for column, cell in row.items():
        if column != "Document(s)" and not cell.text.strip():
            raise SpecError(f"the column {column!r} is empty", where=f"{shown}:{cell.line}")
    number, where = row["Number"].text.strip(), f"{shown}:{row['Number'].line}"
    if not 0 < len(slug(number)) <= NUMBER_MAX:
        raise SpecError(f"the Number {number!r} makes no name", where=where, hint=f"write 1 to {NUMBER_MAX} letters or digits")
    documents = {
        index.find(cell.text.strip(), f"{shown}:{cell.line}"): f"{shown}:{cell.line}" for cell in _named(row["Document(s)"])
    }
    task = " ".join(row["Task"].text.split())
    case = {
        "id": slug(f"{number} {row['Task Type'].text}"),
        "prompt": "\n".join(line.text for line in row["Prompt"].lines()),
        "tags": [DATASET, *dict.fromkeys(_tag(row[column], shown) for column in ("Category", "Task Type"))],
        "source": {"dataset": DATASET, "number": number, "task": task},
        "rubric": {"criteria": [item.model_dump() for item in parse_rubric(row["Rubric"], shown).criteria]},
    }
    try:
        return Entry(number, where, task, CaseSpec.model_validate_json(json.dumps(case)), documents)
    except ValidationError as error:
        raise SpecError(f"the row makes no case: {error}", where=where) from None


def _named(cell: Cell) -> list[Cell]:
    """The lines of a cell that name a document."""
    if cell.text.strip().lower() in _NO_DOCUMENTS:
        return []
    return [line for line in cell.lines() if line.text.strip()]


def _tag(cell: Cell, shown: str) -> str:
    tag = slug(cell.text)
    if not tag:
        raise SpecError(f"{cell.text.strip()!r} makes no tag: it has no letter or digit", where=f"{shown}:{cell.line}")
    return tag


def group_matters(entries: list[Entry]) -> list[Matter]:
    """Entries that share documents, directly or through others; each matter and all of them in the order of their Numbers."""
    groups: list[list[Entry]] = []
    for entry in sorted(entries, key=_natural):
        joined = [group for group in groups if any(entry.documents.keys() & other.documents.keys() for other in group)]
        groups = [group for group in groups if group not in joined]
        groups.append([*(other for group in joined for other in group), entry])
    return [_matter(group) for group in sorted((sorted(group, key=_natural) for group in groups), key=lambda g: _natural(g[0]))]


def _matter(group: list[Entry]) -> Matter:
    first = group[0]
    documents = "documents/" if any(entry.documents for entry in group) else None
    matter = Matter(WorldSpec(id=slug(f"{WORLD_PREFIX}{first.number}"), title=first.title, documents=documents), tuple(group))
    for one, other in colliding_names(sorted(matter.documents())):
        message = f"the documents {one!r} and {other!r} of one matter are the same name where case or Unicode form is ignored"
        raise SpecError(message, where=matter.documents()[other], hint="rename one of them")
    return matter


def _natural(entry: Entry) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", entry.number) if part]


def _check_not_moved(matters: list[Matter], into: Path) -> None:
    for matter in matters:
        for entry in matter.entries:
            for path in into.glob(f"worlds/{WORLD_PREFIX}*/cases/{entry.case.id}.yaml"):
                if path.parts[-3] != matter.world.id:
                    hint = f"the row belongs to the world {matter.world.id!r} now: remove the old world or import into another folder"
                    raise SpecError("the case is there already in another world", where=str(path), hint=hint)


def _files(matters: list[Matter], documents_dir: Path) -> Iterator[tuple[PurePosixPath, Content]]:
    """The dataset comes last: when it is there, everything it selects is."""
    for matter in matters:
        folder = _folder(matter)
        yield folder / "world.yaml", to_yaml(matter.world.model_dump(exclude_none=True))
        for name in matter.documents():
            yield folder / "documents" / name, documents_dir / name
        for entry in matter.entries:
            yield folder / "cases" / f"{entry.case.id}.yaml", to_yaml(_case_data(entry.case))
    dataset = DatasetSpec(name=DATASET, cases=(f"tag:{DATASET}",))
    yield PurePosixPath("datasets", f"{DATASET}.yaml"), to_yaml({"name": dataset.name, "cases": list(dataset.cases)})


def _folder(matter: Matter) -> PurePosixPath:
    return PurePosixPath("worlds", matter.world.id)


def _case_data(case: CaseSpec) -> dict[str, Any]:
    return {
        "id": case.id,
        "prompt": case.prompt,
        "tags": list(case.tags),
        "source": case.source,
        "rubric": {"criteria": [_criterion_data(criterion) for criterion in case.rubric.criteria]},
    }


def _criterion_data(criterion: Criterion) -> dict[str, Any]:
    points = int(criterion.points) if criterion.points.is_integer() else criterion.points
    data = {"id": criterion.id, "text": criterion.text, "points": points, "judge": True}
    if criterion.per_occurrence:
        data["per_occurrence"] = True
    if criterion.group is not None:
        data["group"] = criterion.group
    return data
