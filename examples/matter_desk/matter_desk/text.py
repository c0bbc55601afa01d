"""Plain text of the file types a matter holds."""

from __future__ import annotations

import email
import email.policy
from email.message import EmailMessage
from pathlib import Path

TEXT_SUFFIXES = frozenset({".md", ".txt", ".csv"})


def extract(path: Path) -> str:
    """Raise ValueError for a file type that has no text here: a matter with a hole in it must not load."""
    suffix = path.suffix.lower()
    if suffix in TEXT_SUFFIXES:
        return path.read_text(encoding="utf-8")
    if suffix == ".eml":
        return _email_text(path.read_bytes())
    if suffix == ".pdf":
        return _pdf_text(path)
    raise ValueError(
        f"{path.name}: no text can be taken from {suffix or 'a file without suffix'}; known: .md .txt .csv .eml .pdf"
    )


def title(path: Path, text: str) -> str:
    """The first heading, subject or line; the file's name when there is none."""
    for line in text.splitlines():
        words = line.removeprefix("Subject:").lstrip("#").strip().replace("**", "")
        if words and not line.startswith(("From:", "To:", "Cc:", "Date:")):
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
    return (
        "\n".join(headers)
        + "\n\n"
        + "\n\n".join(_part_text(part) for part in message.walk() if part.get_content_maintype() == "text")
    )


def _part_text(part: EmailMessage) -> str:
    content = str(part.get_content())
    name = part.get_filename()
    return f"Attachment {name}:\n\n{content}" if name else content


def _pdf_text(path: Path) -> str:
    from pypdf import PdfReader  # slow to import, and only a world with PDFs needs it

    text = "\n\n".join(page.extract_text() for page in PdfReader(path).pages)
    if not text.strip():
        raise ValueError(f"{path.name}: the PDF holds no text; it would be invisible to every search")
    return text
