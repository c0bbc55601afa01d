"""Edits of a Word document: each gives the bytes of a new version."""

from __future__ import annotations

import copy
import io
from datetime import UTC, datetime
from typing import Any

ACTIONS = ("replace", "track", "append", "comment")
_TEXT_PARTS = ("w:rPr", "w:t", "w:tab", "w:br", "w:cr", "w:noBreakHyphen")


class EditRefused(Exception):
    """What is wrong with an edit."""


def edited(path: str, data: bytes, *, action: str, find: str, text: str, author: str) -> bytes:
    """replace: `find` becomes `text`, wherever it stands. track: the same as a tracked change. comment: `text` about the first
    `find`. append: `text` as new paragraphs at the end. Raises EditRefused, also when `find` is not there.
    """
    import docx

    if not path.lower().rstrip().endswith(".docx"):
        raise EditRefused(f"{path!r} is no .docx: only those can be edited")
    if action not in ACTIONS:
        raise EditRefused(f"the action {action!r} is unknown; known: {', '.join(ACTIONS)}")
    try:
        document = docx.Document(io.BytesIO(data))
    except Exception as error:  # a damaged file may raise anything
        raise EditRefused(f"{path!r} can't be opened: {error}") from error
    if action == "append":
        for line in text.splitlines():
            document.add_paragraph(_printable(line))
    else:
        _change(document, action, find, _printable(text), author)
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()


def _printable(text: str) -> str:
    from matter_desk.office import printable

    return printable(text)


def _change(document: Any, action: str, find: str, text: str, author: str) -> None:
    if not find:
        raise EditRefused(f"{action} needs the words to find")
    found = [runs for paragraph in _paragraphs(document) for runs in _matches(paragraph, find)]
    if not found:
        raise EditRefused(f"{find!r} does not stand in one paragraph of the document")
    if action == "comment":
        document.add_comment(found[0], text, author=author, initials=author[:1].upper())
    for runs in found if action != "comment" else []:
        if action == "track":
            _track(runs, text, author)
        else:
            runs[0].text = text
            for run in runs[1:]:
                run._r.getparent().remove(run._r)


def _paragraphs(document: Any) -> list[Any]:
    """Also those in tables."""
    from docx.text.paragraph import Paragraph

    return [Paragraph(element, document) for element in document.element.body.iter(_tag("w:p"))]


def _matches(paragraph: Any, find: str) -> list[list[Any]]:
    """For each place where the words stand: the runs that hold exactly them, split off from what stands around."""
    found: list[list[Any]] = []
    start = 0
    while (start := "".join(run.text for run in paragraph.runs).find(find, start)) >= 0:
        end = start + len(find)
        _split(paragraph, start)
        _split(paragraph, end)
        found.append(_between(paragraph, start, end))
        start = end
    return found


def _between(paragraph: Any, start: int, end: int) -> list[Any]:
    position, found = 0, []
    for run in paragraph.runs:
        if start <= position < end and run.text:
            found.append(run)
        position += len(run.text)
    return found


def _split(paragraph: Any, at: int) -> None:
    """Let a run begin at this character of the paragraph."""
    position = 0
    for run in paragraph.runs:
        if position < at < position + len(run.text):
            if any(child.tag not in {_tag(part) for part in _TEXT_PARTS} for child in run._r):
                raise EditRefused("the words stand in one piece with a picture or a field: edit around it")
            whole, cut = run.text, at - position
            rest = copy.deepcopy(run._r)
            run._r.addnext(rest)
            run.text = whole[:cut]
            type(run)(rest, paragraph).text = whole[cut:]
            return
        position += len(run.text)


def _track(runs: list[Any], text: str, author: str) -> None:
    """The runs as deleted, `text` in the style of the first as inserted."""
    first = runs[0]._r
    inserted = copy.deepcopy(first)
    deletion, insertion = (_marked(kind, author, first) for kind in ("w:del", "w:ins"))
    first.addprevious(deletion)
    deletion.addnext(insertion)
    insertion.append(inserted)
    type(runs[0])(inserted, runs[0]._parent).text = text
    for run in runs:
        deletion.append(run._r)
        for element in run._r.iter(_tag("w:t")):
            element.tag = _tag("w:delText")


def _marked(kind: str, author: str, near: Any) -> Any:
    from docx.oxml import OxmlElement

    element = OxmlElement(kind)
    identities = near.getroottree().xpath("//@w:id", namespaces={"w": _tag("w:x")[1:].partition("}")[0]})
    element.set(_tag("w:id"), str(max((int(i) for i in identities if i.isdecimal()), default=0) + (1 if kind == "w:del" else 2)))
    element.set(_tag("w:author"), author)
    element.set(_tag("w:date"), datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    return element


def _tag(name: str) -> str:
    from docx.oxml.ns import qn

    return qn(name)
