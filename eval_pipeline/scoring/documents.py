"""The text of documents: DOCX, XLSX, PDF and e-mail; anything else is taken as text.

What a reader of the page would see: no deleted or hidden text, no hidden sheets. The libraries are imported where they are used: they
cost more than all other checks. They trust what they read, so what an agent wrote goes through untrusted.py.
"""

from __future__ import annotations

import codecs
import email
import email.policy
import io
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.message import EmailMessage
from pathlib import Path, PurePath
from typing import Any

from eval_pipeline.errors import SpecError
from eval_pipeline.scoring import reviews, sheets

SUFFIXES = (".docx", ".xlsx", ".pdf", ".eml")
MAX_UNPACKED_MIB, MAX_PAGES, MAX_CHARACTERS, MAX_ATTACHED_DEPTH = 64, 2_000, 16_000_000, 3
_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
_UNSEEN = {f"{_W}del", f"{_W}moveFrom", f"{_W}pPr", f"{_W}rPr", _FALLBACK}
_MARKS = {f"{_W}tab": "\t", f"{_W}br": "\n", f"{_W}cr": "\n", f"{_W}noBreakHyphen": "-"}
_NOTES = ("/header", "/footer", "/footnotes", "/endnotes")
_MAIN_PART = {".docx": b"wordprocessingml.document.main+xml", ".xlsx": b"spreadsheetml.sheet.main+xml"}
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


class Unreadable(Exception):
    """`str()` goes on after the name of the file: "is encrypted"."""


@dataclass(frozen=True, kw_only=True)
class Extract:
    """headings, tables (how many) and notes (tracked changes, comments): of a DOCX.

    sheets: of an XLSX, rows of cells from A1 on; a day is an ISO string.
    """

    text: str
    headings: list[str] = field(default_factory=list[str])
    tables: int = 0
    notes: list[reviews.Note] = field(default_factory=list[reviews.Note])
    sheets: dict[str, list[list[sheets.Cell]]] = field(default_factory=dict[str, list[list[sheets.Cell]]])


def suffix_of(name: str) -> str:
    return PurePath(name).suffix.casefold()


def document_text(path: Path) -> str:
    """The text of a document of a world. Raises SpecError when it can't be read."""
    if suffix_of(path.name) not in SUFFIXES:
        return path.read_bytes().decode("utf-8", "replace")
    try:
        return extract(path.read_bytes(), suffix_of(path.name)).text
    except Unreadable as error:
        raise SpecError(f"the document {error}", where=str(path)) from None


def extract(data: bytes, suffix: str, depth: int = 0) -> Extract:
    """suffix: one of SUFFIXES. Raises Unreadable, and whatever the libraries raise on broken files."""
    if suffix in _MAIN_PART:
        _look_inside(data, suffix)
    if suffix == ".eml":
        found = Extract(text=_email_text(data, depth))
    else:
        found = {".docx": _docx, ".xlsx": _xlsx, ".pdf": _pdf}[suffix](data)
    if len(found.text) > MAX_CHARACTERS:
        raise Unreadable(f"holds {len(found.text):,} characters; at most {MAX_CHARACTERS:,} are read")
    return found


def _look_inside(data: bytes, suffix: str) -> None:
    """Refuse what is no plain Office file before a library unpacks it. Sizes are the declared ones."""
    kind = suffix.removeprefix(".").upper()
    if data.startswith(_OLE):
        raise Unreadable(f"is encrypted or of an old format (an OLE container), not a plain {kind}")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            unpacked_mib = sum(member.file_size for member in members) / 2**20
            if unpacked_mib > MAX_UNPACKED_MIB:
                raise Unreadable(f"unpacks to {unpacked_mib:,.0f} MiB; at most {MAX_UNPACKED_MIB} are read")
            if any(member.flag_bits & 1 for member in members):
                raise Unreadable("is encrypted")
            types = archive.read("[Content_Types].xml")
    except (zipfile.BadZipFile, KeyError):
        raise Unreadable(f"is no {kind}: it begins with {data[:12]!r} and holds no Office document") from None
    if b"macroEnabled" in types or any(member.filename.endswith("vbaProject.bin") for member in members):
        raise Unreadable("holds macros; only files without them are read")
    if _MAIN_PART[suffix] not in types:
        raise Unreadable(f"is no {kind}: it is an Office file of another kind")


def _docx(data: bytes) -> Extract:
    import docx
    from docx.oxml import parse_xml

    document = docx.Document(io.BytesIO(data))
    styles = {str(style.style_id): str(style.name or "") for style in document.styles}
    root: Any = document.element
    parts = [(link.reltype, link.target_part) for link in document.part.rels.values() if not link.is_external]
    roots = [root.body, *(parse_xml(part.blob) for kind, part in parts if kind.endswith(_NOTES))]
    blocks = [block for one in roots for block in _blocks(one, styles)]
    remarks = [note for kind, part in parts if kind.endswith("/comments") for note in reviews.comments(parse_xml(part.blob))]
    return Extract(
        text="\n\n".join(text for _, text in blocks),
        headings=[text.lstrip("# ") for kind, text in blocks if kind == "heading"],
        tables=sum(kind == "table" for kind, _ in blocks),
        notes=[*reviews.tracked(roots), *remarks],
    )


def _blocks(node: Any, styles: dict[str, str]) -> Iterator[tuple[str, str]]:
    """(heading | paragraph | table, text) in order, also inside of content controls."""
    for child in node:
        if child.tag == f"{_W}p":
            if text := _visible(child).strip():
                level = _heading_level(child, styles)
                yield ("heading", f"{'#' * level} {text}") if level else ("paragraph", text)
        elif child.tag == f"{_W}tbl":
            rows = (" | ".join(_one_line(cell) for cell in _nearest(row, "tc")) for row in _nearest(child, "tr"))
            yield "table", "\n".join(rows)
        elif child.tag not in _UNSEEN:
            yield from _blocks(child, styles)


def _heading_level(paragraph: Any, styles: dict[str, str]) -> int:
    """0 for what is no heading."""
    style = paragraph.find(f"{_W}pPr/{_W}pStyle")
    match = re.match(r"(?:heading (\d)|title$)", styles.get(style.get(f"{_W}val"), "").lower()) if style is not None else None
    return int(match[1] or 1) if match else 0


def _nearest(node: Any, name: str) -> Iterator[Any]:
    """Descendants of this name that don't lie in another of it."""
    for child in node:
        if child.tag == _W + name:
            yield child
        else:
            yield from _nearest(child, name)


def _one_line(cell: Any) -> str:
    return re.sub(r"\s+", " ", " ".join(_visible(paragraph) for paragraph in _nearest(cell, "p"))).strip()


def _visible(node: Any) -> str:
    if node.tag in _UNSEEN or (node.tag == f"{_W}r" and node.find(f"{_W}rPr/{_W}vanish") is not None):
        return ""
    if node.tag == f"{_W}t":
        return node.text or ""
    inner = "".join(_visible(child) for child in node)
    return _MARKS.get(node.tag, "") + (f"\n{inner}\n" if node.tag == f"{_W}txbxContent" else inner)


def _xlsx(data: bytes) -> Extract:
    try:
        found, text = sheets.read(data)
    except sheets.TooManyCells as error:
        raise Unreadable(str(error)) from None
    return Extract(text=text, sheets=found)


def _pdf(data: bytes) -> Extract:
    import pypdf
    from pypdf.errors import DependencyError

    if b"%PDF-" not in data[:1024]:
        raise Unreadable(f"is no PDF: it begins with {data[:12]!r}")
    reader = pypdf.PdfReader(io.BytesIO(data))
    try:
        locked = reader.is_encrypted and not reader.decrypt("")
    except DependencyError:
        locked = True
    if locked:
        raise Unreadable("is encrypted")
    if len(reader.pages) > MAX_PAGES:
        raise Unreadable(f"has {len(reader.pages):,} pages; at most {MAX_PAGES:,} are read")
    return Extract(text="\n".join(page.extract_text() for page in reader.pages))


def _email_text(data: bytes, depth: int) -> str:
    message = email.message_from_bytes(data, policy=email.policy.default)
    headers = [f"{name}: {message[name]}" for name in ("From", "To", "Cc", "Date", "Subject") if message[name]]
    if not headers:
        raise Unreadable(f"is no e-mail: it begins with {data[:12]!r}")
    parts = [text for part in message.walk() if (text := _part_text(part, depth))]
    return "\n".join(headers) + "\n\n" + "\n\n".join(parts)


def _part_text(part: EmailMessage, depth: int) -> str:
    name = part.get_filename() or ""
    body = "" if part.is_multipart() else _part_body(part, name, depth)
    return f"Attachment {name}:\n\n{body}" if name else body


def _part_body(part: EmailMessage, name: str, depth: int) -> str:
    content = part.get_payload(decode=True)
    if not isinstance(content, bytes):
        return ""
    if suffix_of(name) in SUFFIXES:
        if depth == MAX_ATTACHED_DEPTH:
            raise Unreadable(f"holds attachments in attachments more than {MAX_ATTACHED_DEPTH} deep")
        return extract(content, suffix_of(name), depth + 1).text
    if part.get_content_maintype() != "text":
        return ""
    text = content.decode(_charset(part), "replace")
    return re.sub(r"<[^<>]*>", " ", text) if part.get_content_subtype() == "html" else text


def _charset(part: EmailMessage) -> str:
    charset = part.get_content_charset("utf-8")
    try:
        return codecs.lookup(charset).name
    except LookupError:
        return "utf-8"
