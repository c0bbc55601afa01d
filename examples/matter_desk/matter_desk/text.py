"""Text of the file types a matter holds, with the place of each piece: page, paragraph, row of a sheet."""

from __future__ import annotations

import email
import email.policy
import io
from collections.abc import Callable
from email.message import EmailMessage
from pathlib import Path, PurePath

from matter_desk.office import docx_text, xlsx_text

TEXT_SUFFIXES = frozenset({".md", ".txt", ".csv"})


def extract(path: Path) -> str:
    """Raise ValueError for a file that has no text here, and whatever a parser raises for a damaged one."""
    return _text(path.name, path.read_bytes())


def _text(name: str, data: bytes) -> str:
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


def title(path: Path, text: str) -> str:
    """The first heading, subject or line; the file's name when there is none."""
    for line in text.splitlines():
        words = line.removeprefix("Subject:").lstrip("#").strip().replace("**", "")
        if words and not line.startswith(("From:", "To:", "Cc:", "Date:", "[page ")):
            return words[:160]
    return path.name


def passages(text: str) -> list[str]:
    """Blocks between blank lines; a heading goes with the block below it."""
    found: list[str] = []
    heading = ""
    for block in text.split("\n\n"):
        stripped = block.strip()
        if stripped.startswith("#") and "\n" not in stripped:
            heading = stripped.lstrip("# ")
        elif stripped:
            found.append(f"{heading}: {stripped}" if heading else stripped)
    return found


def _email_text(raw: bytes) -> str:
    message = email.message_from_bytes(raw, policy=email.policy.default)
    headers = [f"{name}: {message[name]}" for name in ("From", "To", "Cc", "Date", "Subject") if message[name]]
    parts = [_part_text(part) for part in message.walk() if not part.is_multipart()]
    return "\n\n".join(["\n".join(headers), *(text for text in parts if text)])


def _part_text(part: EmailMessage) -> str:
    name = part.get_filename()
    if name is None:
        return str(part.get_content()) if part.get_content_maintype() == "text" else ""
    if _suffix(name) not in TEXT_SUFFIXES | READERS.keys():
        return f"Attachment {name}"
    content = part.get_payload(decode=True)
    return f"Attachment {name}:\n\n{_text(name, content if isinstance(content, bytes) else b'')}"


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
