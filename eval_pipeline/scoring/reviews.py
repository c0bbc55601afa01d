"""Tracked changes and comments of a DOCX: what a reviewer proposes or remarks, apart from the text as it reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

Note = list[str]  # kind, author or "", text

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_KINDS = {f"{_W}ins": "insertion", f"{_W}moveTo": "insertion", f"{_W}del": "deletion", f"{_W}moveFrom": "deletion"}
_TEXTS = {"insertion": (f"{_W}t",), "deletion": (f"{_W}delText", f"{_W}t"), "comment": (f"{_W}t",)}


def tracked(roots: Iterable[Any]) -> list[Note]:
    """In order. Neighbours of one kind and author are one change, however many runs they are."""
    found: list[Note] = []
    last: Any = None
    for root in roots:
        for node in root.iter(*_KINDS):
            kind, author = _KINDS[node.tag], node.get(f"{_W}author") or ""
            text = _text(node, kind)
            if text and last is not None and node.getprevious() is last and found[-1][:2] == [kind, author]:
                found[-1][2] += text
            elif text:
                found.append([kind, author, text])
            last = node if text else None
    return [[kind, author, text] for kind, author, raw in found if (text := _one_line(raw))]


def comments(root: Any) -> Iterator[Note]:
    for node in root.iter(f"{_W}comment"):
        paragraphs = (_text(paragraph, "comment") for paragraph in node.iter(f"{_W}p"))
        yield ["comment", node.get(f"{_W}author") or "", _one_line(" ".join(paragraphs))]


def _text(node: Any, kind: str) -> str:
    """A deletion inside of an insertion is a change of its own."""
    return "".join(leaf.text or "" for leaf in node.iter(*_TEXTS[kind]) if _nearest(leaf) in (kind, None))


def _nearest(leaf: Any) -> str | None:
    return next((_KINDS[above.tag] for above in leaf.iterancestors() if above.tag in _KINDS), None)


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
