"""The free-text rubric of a BigLaw Bench row as criteria. Nothing with content is dropped: what can't be read is an error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from eval_pipeline.domain.rubric import Criterion
from eval_pipeline.errors import SpecError
from eval_pipeline.specs.importers.biglaw_csv import Cell
from eval_pipeline.specs.importers.outline import Item, parse_outline
from eval_pipeline.specs.importers.slugs import slug, telling_words

_NUMBER = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,4})?|\.[0-9]{1,4}")
_NOT_APPLICABLE = re.compile(r"(?P<title>[^?:]*?)\s*:\s*N/?A\.?", re.IGNORECASE | re.DOTALL)
_MINUS = "[-\u2010\u2011\u2012\u2013\u2212]"
_AT_END = re.compile(r"(?P<text>.*?)\s*\((?P<points>[^()]*?)\s*\b(?:points?|pts?)\s*\)", re.IGNORECASE | re.DOTALL)
_POINTS = rf"\(\s*(?:\+|{_MINUS})?\s*[\d.,]+\s*(?:points?|pts?)\s*\)"
_TAKEN = rf"(?<!\d){_MINUS}\s*[\d.,]+\s*(?:points?|pts?)\s+(?:for|per|if)\b"
_IN_TEXT = re.compile(rf"{_POINTS}|{_TAKEN}", re.IGNORECASE)
_DEDUCTION = re.compile(rf"(?P<minus>{_MINUS}?)\s*(?P<points>\S+)\s+(?:points?|pts?)\s+(?P<what>.*)", re.IGNORECASE | re.DOTALL)
_OCCURRENCE = re.compile(r"(?:for\s+(?:every|each)|per)\s+(?P<text>\S.*)", re.IGNORECASE | re.DOTALL)
_ONCE = re.compile(r"(?:for(?!\s+(?:every|each)\b)|if)\s+(?P<text>\S.*)", re.IGNORECASE | re.DOTALL)
_MORE_POINTS = re.compile(rf"\([^()]*\b(?:points?|pts?)\s*\)|(?<!\d){_MINUS}\s*[\d.,]+\s*(?:points?|pts?)\b", re.IGNORECASE)


@dataclass
class ParsedRubric:
    """skipped: headings the rubric declares as not applicable ("Style: N/A"), with those above."""

    criteria: list[Criterion] = field(default_factory=list[Criterion])
    skipped: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class _Worth:
    text: str
    points: float
    per_occurrence: bool = False


def parse_rubric(cell: Cell, shown: str) -> ParsedRubric:
    """Raise SpecError at `shown:line`, the physical line inside the cell."""
    parsed = ParsedRubric()
    seen: set[str] = set()
    for section in parse_outline(cell.lines(), shown):
        name = section.text.split()[0].lower()
        where = f"{shown}:{section.line}"
        if name not in ("affirmative", "negative"):
            hint = "the sections are `Affirmative Points:` and `Negative Points:`"
            raise SpecError(f"the section {section.text!r} is unknown", where=where, hint=hint)
        if name in seen:
            raise SpecError(f"the section {section.text!r} stands twice", where=where)
        seen.add(name)
        _Reader(parsed, shown, negative=name == "negative").section(section)
    if not any(criterion.points > 0 for criterion in parsed.criteria):
        raise SpecError("the rubric has no affirmative points", where=f"{shown}:{cell.line}")
    return parsed


@dataclass(frozen=True)
class _Reader:
    parsed: ParsedRubric
    shown: str
    negative: bool

    def section(self, section: Item) -> None:
        if section.children:
            if _NOT_APPLICABLE.fullmatch(section.text):
                raise self.error(f"{section.text!r} has items below it", section.children[0].line)
            self.items(section, ("neg",) if self.negative else (), ())
        elif not self.skips(section, ()):
            raise self.error(f"the section {section.text!r} has no items", section.line)

    def items(self, parent: Item, position: tuple[str, ...], headings: tuple[str, ...]) -> None:
        for index, item in enumerate(parent.children, start=1):
            here = (*position, str(index))
            if item.children:
                self.items(item, here, (*headings, self.heading(item)))
            elif not self.skips(item, headings):
                self.parsed.criteria.append(self.criterion(item, here, headings))

    def skips(self, item: Item, headings: tuple[str, ...]) -> bool:
        match = _NOT_APPLICABLE.fullmatch(item.text)
        if match:
            if _IN_TEXT.search(match["title"]):
                raise self.error(f"points stand in {item.text!r}, which is not applicable", item.line)
            self.parsed.skipped.append(" / ".join((*headings, match["title"])))
        return match is not None

    def heading(self, item: Item) -> str:
        below = item.children[0].line
        if _AT_END.fullmatch(item.text.rstrip(": ")) or _IN_TEXT.search(item.text):
            raise self.error(f"an item is nested below {item.text!r}, which has points of its own", below)
        if _NOT_APPLICABLE.fullmatch(item.text):
            raise self.error(f"an item is nested below {item.text!r}, which is not applicable", below)
        if self.negative and _DEDUCTION.fullmatch(item.text):
            raise self.error(f"an item is nested below {item.text!r}, which is no heading", below)
        for cell, following in zip(item.lines, item.lines[1:], strict=False):
            if cell.text.endswith(":"):
                raise self.error(f"{following.text!r} stands between a heading and its items", following.line, "number it")
        if item.text.endswith("?"):
            raise self.error(
                f"the criterion {item.text!r} has no points but items below it", item.line, "end a heading with a colon"
            )
        title = item.text.removesuffix(":").strip()
        if not title:
            raise self.error("the heading has no text", item.line)
        return title

    def criterion(self, item: Item, position: tuple[str, ...], headings: tuple[str, ...]) -> Criterion:
        if item.text.endswith(":"):
            raise self.error(f"the heading {item.text!r} has nothing below it", item.line, "remove it or write `N/A` behind it")
        worth = self.deduction(item) if self.negative else self.affirmative(item)
        return Criterion(
            id=slug("-".join((*position, *telling_words(worth.text)))),
            text=worth.text,
            points=worth.points,
            per_occurrence=worth.per_occurrence,
            judge=True,
            group=" / ".join(headings) or None,
        )

    def affirmative(self, item: Item) -> _Worth:
        match = self.points_at_end(item, "(1 point)")
        if re.match(_MINUS, match["points"].strip()):
            raise self.error(f"{match['points']!r} points stand among the affirmative ones", item.lines[-1].line)
        return _Worth(match["text"], self.number(match["points"], item.lines[-1].line))

    def deduction(self, item: Item) -> _Worth:
        match = _DEDUCTION.fullmatch(item.text)
        if match is None:
            return self.deduction_at_end(item)
        if not match["minus"]:
            raise self.error(
                f"negative points begin with a minus, found {item.text!r}", item.line, "write `-1 point for every ...`"
            )
        points = -self.number(match["points"], item.line)
        counted, once = _OCCURRENCE.fullmatch(match["what"]), _ONCE.fullmatch(match["what"])
        found = counted or once
        if found is None:
            hint = "write `-1 point for every ...`, or `-1 point if ...` for what counts once"
            raise self.error(f"{match['what']!r} doesn't say what the points are taken for", item.line, hint)
        if _MORE_POINTS.search(found["text"]):
            raise self.error(f"points stand twice in {item.text!r}", item.line, "write one item a deduction")
        return _Worth(found["text"], points, per_occurrence=counted is not None)

    def deduction_at_end(self, item: Item) -> _Worth:
        match = self.points_at_end(item, "-1 point for every ...")
        signed = match["points"].strip()
        if not re.match(_MINUS, signed):
            raise self.error(f"negative points begin with a minus, found {signed!r}", item.lines[-1].line, "write `(-1 point)`")
        return _Worth(match["text"], -self.number(signed[1:], item.lines[-1].line))

    def points_at_end(self, item: Item, example: str) -> re.Match[str]:
        match = _AT_END.fullmatch(item.text)
        within = next(_points_within(item), None)
        if match is None and within is not None:
            raise self.error(f"text stands after the points: {within.text!r}", within.line, "points end a criterion")
        if match is None:
            raise self.error(f"the criterion {item.text!r} has no points", item.line, f"write them like `{example}`")
        if _IN_TEXT.search(match["text"]):
            raise self.error(f"points stand twice in {item.text!r}", item.lines[-1].line, "write one item a criterion")
        if not match["text"]:
            raise self.error("there are points but no criterion", item.line)
        return match

    def number(self, text: str, line: int) -> float:
        if not _NUMBER.fullmatch(text.strip()):
            raise self.error(f"{text.strip()!r} is not a number of points", line, "write digits: 1, 2, 0.5")
        if float(text) == 0:
            raise self.error("a criterion is worth 0 points", line, "remove it or give it a weight")
        return float(text)

    def error(self, message: str, line: int, hint: str | None = None) -> SpecError:
        return SpecError(message, where=f"{self.shown}:{line}", hint=hint)


def _points_within(item: Item) -> Iterator[Cell]:
    """What follows points inside the item: the rest of their line, or the line below them."""
    for cell, below in zip(item.lines, [*item.lines[1:], None], strict=True):
        for match in _IN_TEXT.finditer(cell.text):
            rest = cell.text[match.end() :].strip()
            if rest:
                yield Cell(rest, cell.line)
            elif below is not None:
                yield below
