"""What differs between two states of an application, in world format: bounded in size, in an order that depends on nothing else.

Counts are always whole; what is listed of them may be cut, and `n_more` says by how much. What could not be compared is a problem:
it is neither listed as a change nor taken for equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Generic, Literal, Self, TypeVar

from pydantic import BaseModel

from eval_pipeline.domain.base import Spec
from eval_pipeline.domain.canonical import canonical_json

FORMAT = 1
MAX_ENTRIES = 1000
MAX_PART_BYTES = 2 << 20
MAX_PROBLEMS = 200
NOTHING_SEEN = "nothing differs that a reader would see"

Kind = Literal["added", "removed", "changed"]
Side = Literal["before", "after"]
PartName = Literal["state", "documents", "rows", "permissions", "blobs"]
T = TypeVar("T", bound=BaseModel)
L = TypeVar("L", bound="Listed[Any]")


class Problem(Spec):
    """part `state`: it concerns all of them. where: a path in the state, or path:line."""

    part: PartName
    side: Side
    where: str
    what: str


class Counts(Spec):
    added: int = 0
    removed: int = 0
    changed: int = 0

    @property
    def total(self) -> int:
        return self.added + self.removed + self.changed

    @classmethod
    def of(cls, kinds: Iterable[Kind]) -> Self:
        found = list(kinds)
        return cls(added=found.count("added"), removed=found.count("removed"), changed=found.count("changed"))


class FileFacts(Spec):
    """size in bytes. sha256: 64 hex digits."""

    size: int
    sha256: str


class FileChange(Spec):
    """before, after: None where there is no such file. same_as: a path of the other state with the very content of an added or
    removed file, so a rename is a removed and an added file that name each other."""

    path: str
    change: Kind
    before: FileFacts | None
    after: FileFacts | None
    same_as: str | None = None


class Hunk(Spec):
    """Lines that begin with a blank (equal in both), `-` or `+`. before_line, after_line: of the first, from 1."""

    before_line: int
    after_line: int
    lines: tuple[str, ...]


class TextDiff(Spec):
    """n_more: differing lines that are not here. n_cut: lines here that are shortened."""

    hunks: tuple[Hunk, ...]
    n_more: int = 0
    n_cut: int = 0


class CellChange(Spec):
    """cell: Sheet!B4. None: empty."""

    cell: str
    before: str | None
    after: str | None


class NoteChange(Spec):
    """A tracked change or a comment that one of the two files has and the other has not. author: None when it names none."""

    change: Literal["added", "removed"]
    kind: Literal["insertion", "deletion", "comment"]
    author: str | None
    text: str


class DocumentChange(FileChange):
    """text: of what a reader sees. notes: of a DOCX. unread: why its content, or a part of it, is not compared here."""

    text: TextDiff | None = None
    cells: tuple[CellChange, ...] = ()
    notes: tuple[NoteChange, ...] = ()
    n_more: int = 0
    unread: str | None = None


class RowChange(Spec):
    """key: the row's `id`, a number or other value as JSON; None for a row without one, which compares as a whole.

    fields: names whose value differs, of a changed row. before, after: the row, None where there is none. cut: names of fields whose
    value is shortened or left out here; ["*"] when more fields are left out than are named.
    """

    table: str
    key: str | None
    change: Kind
    fields: tuple[str, ...] = ()
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    cut: tuple[str, ...] = ()


class ReaderChange(Spec):
    """What the rules now mean for one path, whether or not they name it. n_more: readers not named here."""

    path: str
    gained: tuple[str, ...]
    lost: tuple[str, ...]
    n_more: int = 0


class RuleChange(Spec):
    """rule: as it is written, or as much of it as is kept."""

    change: Literal["added", "removed"]
    rule: str


class Listed(Spec, Generic[T]):
    """counts: of all. n_more: how many of them are not in `entries`."""

    counts: Counts = Counts()
    entries: tuple[T, ...] = ()
    n_more: int = 0


class DocumentChanges(Listed[DocumentChange]):
    """Classes with a name of their own: the others can't be sent between processes."""


class FileChanges(Listed[FileChange]):
    pass


class RowChanges(Listed[RowChange]):
    pass


class ReaderChanges(Listed[ReaderChange]):
    pass


class RuleChanges(Listed[RuleChange]):
    pass


class Problems(Listed[Problem]):
    pass


class Permissions(Spec):
    """effect: every path whose readers differ (its counts say `changed`). rules and default: what is written.

    reordered: the rules are the same ones in another order.
    """

    effect: ReaderChanges = ReaderChanges()
    rules: RuleChanges = RuleChanges()
    default_gained: tuple[str, ...] = ()
    default_lost: tuple[str, ...] = ()
    reordered: bool = False

    @property
    def changed(self) -> bool:
        written = self.rules.counts.total or self.default_gained or self.default_lost or self.reordered
        return bool(self.effect.counts.total or written)


class WorldDiff(Spec):
    format: int = FORMAT
    documents: DocumentChanges = DocumentChanges()
    rows: RowChanges = RowChanges()
    permissions: Permissions = Permissions()
    blobs: FileChanges = FileChanges()
    problems: Problems = Problems()

    @property
    def n_problems(self) -> int:
        return len(self.problems.entries) + self.problems.n_more

    @property
    def unchanged(self) -> bool:
        """Nothing differs, and all of it could be compared."""
        counted = self.documents.counts.total + self.rows.counts.total + self.blobs.counts.total
        return not (counted or self.permissions.changed or self.n_problems)

    def summary(self) -> dict[str, int]:
        return {
            "n_documents": self.documents.counts.total,
            "n_rows": self.rows.counts.total,
            "n_readers": self.permissions.effect.counts.total,
            "n_rules": self.permissions.rules.counts.total,
            "n_blobs": self.blobs.counts.total,
            "n_problems": self.n_problems,
        }


def fitting(entries: Sequence[T], max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_PART_BYTES) -> tuple[T, ...]:
    """The first of them that fit into the size of a part."""
    taken: list[T] = []
    for entry in entries[:max_entries]:
        max_bytes -= len(canonical_json(entry.model_dump(mode="json")).encode())
        if max_bytes < 0:
            break
        taken.append(entry)
    return tuple(taken)


def listed(model: type[L], entries: Sequence[BaseModel], kinds: Iterable[Kind], n_all: int | None = None) -> L:
    """kinds: of all there are. n_all: how many that is, when `entries` are already the first of them only."""
    kept = fitting(entries)
    return model(counts=Counts.of(kinds), entries=kept, n_more=(len(entries) if n_all is None else n_all) - len(kept))


def printable(text: str) -> str:
    """Any name or value as Unicode: bytes that are none, and lone surrogates, appear as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()
