"""Text of the file types a matter holds, with the place of each piece: page, paragraph, row of a sheet."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from matter_desk.office import docx_text, xlsx_text

TEXT_SUFFIXES = frozenset({".md", ".txt", ".csv"})
_WORD = re.compile(r"[^\W_]+")

MAX_PASSAGE = 50_000


@dataclass(frozen=True)
class Content:
    """What is known of a file: searchable is False when it holds no text that can be taken."""

    title: str
    text: str
    searchable: bool = True


def content(name: str, data: bytes) -> Content:
    """A file without text here (a scan, a damaged file, a kind unknown) says so; no search finds it."""
    try:
        text = _storable(extract(name, data))
    except Exception as error:  # noqa: BLE001 - a parser may raise anything on a damaged file, and the rest must load
        text = f"[No text can be taken from this file ({error}). It can be neither searched nor quoted.]"
        return Content(f"{name} (no text)", _storable(text), searchable=False)
    return Content(title(name, text), text)


def _storable(text: str) -> str:
    """Without what PostgreSQL can't hold."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()


def extract(name: str, data: bytes) -> str:
    """Raise ValueError for a file that has no text here, and whatever a parser raises for a damaged one."""
    suffix = _suffix(name)
    if suffix in TEXT_SUFFIXES:
        return data.decode("utf-8")
    if suffix not in READERS:
        known = " ".join(sorted(TEXT_SUFFIXES | READERS.keys()))
        raise ValueError(f"{name}: no text can be taken from {suffix or 'a file without suffix'}; known: {known}")
    text = READERS[suffix](data)
    if not text.strip():
        raise ValueError(f"{name}: it holds no text, as a scan does")
    return text


def _suffix(name: str) -> str:
    return PurePath(name).suffix.lower().rstrip()  # published names end in blanks


def title(name: str, text: str) -> str:
    """The first heading, subject or line; the file's name when there is none."""
    for line in text.splitlines():
        words = line.removeprefix("Subject:").lstrip("#").strip().replace("**", "")
        if words and not line.startswith(("From:", "To:", "Cc:", "Date:", "[page ")):
            return words[:160]
    return name


def passages(text: str) -> list[str]:
    """Blocks between blank lines; a heading goes with the block below it."""
    found: list[str] = []
    heading = ""
    for block in text.split("\n\n"):
        stripped = block.strip()
        if stripped.startswith("#") and "\n" not in stripped:
            heading = stripped.lstrip("# ")
        elif stripped:
            passage = f"{heading}: {stripped}" if heading else stripped
            found += [passage[start : start + MAX_PASSAGE] for start in range(0, len(passage), MAX_PASSAGE)]
    return found


def words(text: str) -> list[str]:
    return _WORD.findall(text)


def _email_text(raw: bytes) -> str:
    import email
    import email.policy

    message = email.message_from_bytes(raw, policy=email.policy.default)
    headers = [f"{name}: {message[name]}" for name in ("From", "To", "Cc", "Date", "Subject") if message[name]]
    parts = [_part_text(part) for part in message.walk() if not part.is_multipart()]
    return "\n\n".join(["\n".join(headers), *(text for text in parts if text)])


def _part_text(part: Any) -> str:
    name = part.get_filename()
    if name is None:
        return str(part.get_content()) if part.get_content_maintype() == "text" else ""
    if _suffix(name) not in TEXT_SUFFIXES | READERS.keys():
        return f"Attachment {name}"
    data = part.get_payload(decode=True)
    return f"Attachment {name}:\n\n{extract(name, data if isinstance(data, bytes) else b'')}"


def _pdf_text(data: bytes) -> str:
    from pypdf import PdfReader  # slow to import, and only a world with PDFs needs it

    pages = [page.extract_text().strip() for page in PdfReader(io.BytesIO(data)).pages]
    return "\n\n".join(f"[page {number}]\n\n{text}" for number, text in enumerate(pages, start=1) if text)


READERS: dict[str, Callable[[bytes], str]] = {
    ".docx": docx_text,
    ".eml": _email_text,
    ".pdf": _pdf_text,
    ".xlsx": xlsx_text,
}
