"""Where in a text the evidence of its verdicts stands: what a judge quoted, and what a check looked for and found."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

from eval_pipeline.analysis.tables import CriterionRow
from eval_pipeline.domain.rubric import Criterion

MAX_CHARS, MAX_FINDS = 20_000, 20
_TEXTS = {"contains": "text", "contains_any": "texts", "contains_all": "texts", "equals": "text", "cites": "quote"}


@dataclass(frozen=True)
class Piece:
    """A stretch of the text. criteria: numbers of those it is evidence for, from 1 on; empty for what is none. ends: of them, those whose evidence ends with it."""

    text: str
    criteria: tuple[int, ...]
    ends: tuple[int, ...] = ()


def needles(rubric: Sequence[Criterion], rows: Sequence[CriterionRow]) -> dict[int, list[str]]:
    """By the number of the criterion: its judge's quotes, or the words that its check wants. Nothing of a check that was not met."""
    found: dict[int, list[str]] = {}
    for at, (criterion, row) in enumerate(zip(rubric, rows, strict=True), start=1):
        wanted = [*row.quotes, *(_wanted(criterion.check) if criterion.check and row.verdict else ())]
        if wanted:
            found[at] = [text for text in dict.fromkeys(wanted) if text.strip() and len(text) <= MAX_CHARS]
    return found


def _wanted(check: Mapping[str, Any]) -> Iterator[str]:
    """What is negated is not wanted."""
    for name, argument in check.items():
        if name in ("all", "any", "at_least"):
            children = cast(dict[str, Any], argument).get("of", []) if name == "at_least" else argument
            for child in children:
                yield from _wanted(child)
        elif name in _TEXTS:
            given = cast(dict[str, Any], argument).get(_TEXTS[name]) if isinstance(argument, Mapping) else argument
            plain = name != "cites" or isinstance(argument, Mapping)  # alone, it names the document
            yield from (str(one) for one in (given if isinstance(given, list) else [given]) if plain and one is not None)


def marked(text: str, wanted: Mapping[int, Iterable[str]]) -> list[Piece]:
    """The text in pieces. Spacing and case make no difference."""
    edges: dict[int, set[int]] = {0: set(), len(text): set()}
    spans = [(number, start, end) for number, quotes in wanted.items() for quote in quotes for start, end in _places(text, quote)]
    for _, start, end in spans:
        edges.setdefault(start, set())
        edges.setdefault(end, set())
    cuts = sorted(edges)
    for number, start, end in spans:
        for cut in cuts[cuts.index(start) : cuts.index(end)]:
            edges[cut].add(number)
    pieces = [Piece(text[a:b], tuple(sorted(edges[a])), tuple(sorted(edges[a] - edges[b]))) for a, b in pairwise(cuts)]
    return [piece for piece in pieces if piece.text]


def _places(text: str, quote: str) -> list[tuple[int, int]]:
    words = r"\s+".join(re.escape(word) for word in quote.split())
    found = re.finditer(words, text, re.IGNORECASE)
    return [match.span() for match, _ in zip(found, range(MAX_FINDS), strict=False)]
