"""Numbered lines as a tree. Indentation says what belongs to what; the numbering does where the indentation is lost."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from eval_pipeline.errors import SpecError
from eval_pipeline.specs.importers.biglaw_csv import Cell
from eval_pipeline.specs.importers.numbering import Marker, split_marker

_SECTION = re.compile(r"(?P<name>[A-Za-z]+) +points?\s*(?P<end>:|:\s*N/?A)?", re.IGNORECASE)
_SETTLED = re.compile(r".*(?::|:\s*N/?A\.?|\([^()]*points?\s*\))", re.IGNORECASE | re.DOTALL)


@dataclass
class Item:
    """A section (no marker), a heading or a criterion, with its lines as they stand and what is nested in it."""

    lines: list[Cell]
    indent: int
    marker: Marker | None = None
    children: list[Item] = field(default_factory=list["Item"])

    @property
    def line(self) -> int:
        return self.lines[0].line

    @property
    def text(self) -> str:
        return " ".join(cell.text for cell in self.lines if cell.text)

    @property
    def is_heading(self) -> bool:
        return self.marker is None or self.text.endswith(":")

    @property
    def is_settled(self) -> bool:
        """Nothing is missing at its end, so that a line below it may begin something new."""
        return self.marker is None or _SETTLED.fullmatch(self.text) is not None


@dataclass(frozen=True)
class _Place:
    """depth: of the parent in the stack. before: the sibling above. certain: the marker is the one expected there."""

    depth: int
    before: Item | None
    certain: bool


def parse_outline(lines: Iterable[Cell], shown: str) -> list[Item]:
    """The sections ("Affirmative Points:") with their items. Raises SpecError at a line that belongs to nothing."""
    sections: list[Item] = []
    stack: list[Item] = []
    after_blank = True
    for cell in lines:
        text = cell.text.strip()
        if not text:
            after_blank = True
            continue
        where = f"{shown}:{cell.line}"
        if _SECTION.fullmatch(text):
            stack = [Item([Cell(text, cell.line)], indent=-1)]
            sections += stack
        elif not stack:
            raise SpecError(f"{text!r} stands above the first section", where=where, hint="begin with `Affirmative Points:`")
        elif not _begin_item(stack, cell, where):
            _continue_item(stack, Cell(text, cell.line), where, after_blank)
        after_blank = False
    return sections


def _begin_item(stack: list[Item], cell: Cell, where: str) -> bool:
    """Hang a numbered line into the tree. False when the line is none and goes on with the item above it."""
    split = split_marker(cell.text.strip())
    if split is None:
        return False
    marker, text = split
    indent = _indent(cell.text)
    place = _find_place(stack, indent, marker)
    if not marker.closed and not _begins_without_dot(stack, place):
        if not stack[-1].is_heading:
            return False
        place = None
    if place is None:
        hint = "indent it below its heading or number it as the list it belongs to"
        raise SpecError(f"the number {marker.label!r} fits no list that is open here", where=where, hint=hint)
    item = Item([Cell(text, cell.line)], indent, marker)
    if place.before is not None and place.before.marker is not None:
        item.marker = marker.as_sibling_of(place.before.marker)
    del stack[place.depth + 1 :]
    stack[-1].children.append(item)
    stack.append(item)
    return True


def _begins_without_dot(stack: list[Item], place: _Place | None) -> bool:
    """`a Does it` is an item where `a` is due; inside a sentence the same letters are words."""
    if place is None or not place.certain:
        return False
    sibling = place.before.marker if place.before else None
    return stack[-1].is_settled or (sibling is not None and not sibling.closed)


def _continue_item(stack: list[Item], cell: Cell, where: str, after_blank: bool) -> None:
    current = stack[-1]
    if current.marker is None or after_blank:
        hint = "number it, or move it to the line of the item it belongs to"
        raise SpecError(f"{cell.text!r} belongs to no item", where=where, hint=hint)
    current.lines.append(cell)


def _indent(line: str) -> int:
    expanded = line.replace("\u00a0", " ").expandtabs(8)
    return len(expanded) - len(expanded.lstrip())


def _find_place(stack: list[Item], indent: int, marker: Marker) -> _Place | None:
    level = [depth for depth, item in enumerate(stack) if item.indent == indent]
    if level:
        return _place_on_level(stack, level, marker)
    depth = max(depth for depth, item in enumerate(stack) if item.indent < indent)
    parent = stack[depth]
    if parent.marker is not None and marker.follows(parent.marker) and not marker.first_kinds():
        return _Place(depth - 1, parent, certain=True)  # `c` after `b` is never its child, however it is indented
    before = parent.children[-1] if parent.children else None
    return _Place(depth, before, _is_due(parent, before, marker))


def _is_due(parent: Item, before: Item | None, marker: Marker) -> bool:
    if before is None or before.marker is None:
        return parent.is_heading and bool(marker.first_kinds())
    return marker.follows(before.marker)


def _place_on_level(stack: list[Item], level: list[int], marker: Marker) -> _Place | None:
    """Items with one indentation are siblings, or nested ones whose indentation was lost."""
    open_items = [(depth, stack[depth], found) for depth in reversed(level) if (found := stack[depth].marker)]
    for depth, item, other in open_items:
        if marker.follows(other):
            return _Place(depth - 1, item, certain=True)
    taken = {kind for _, _, other in open_items for kind in other.readings}
    if stack[-1].indent == stack[level[-1]].indent and stack[-1].is_heading and marker.first_kinds() - taken:
        return _Place(len(stack) - 1, None, certain=True)
    for depth, item, other in open_items:
        if marker.shares_kind(other):
            return _Place(depth - 1, item, certain=False)
    return None
