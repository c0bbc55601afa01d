"""The words of a matter's files, taken with the libraries themselves, so that no reader of ours vouches for our worlds."""

from __future__ import annotations

import email
import email.policy
import io
import json
import re
from datetime import date, datetime
from email.message import EmailMessage
from pathlib import Path, PurePath
from typing import Any

import docx
import openpyxl
import pypdf

WORLDS = Path(__file__).parents[2] / "worlds_src" / "worlds"
MAX_BYTES = 60_000


def words(name: str, data: bytes) -> str:
    suffix = PurePath(name).suffix
    if suffix == ".docx":
        found = docx.Document(io.BytesIO(data))
        cells = [cell.text for table in found.tables for row in table.rows for cell in row.cells]
        return "\n".join([*(paragraph.text for paragraph in found.paragraphs), *cells])
    if suffix == ".xlsx":
        return "\n".join(_said(cell) for rows in sheets(data).values() for row in rows for cell in row if cell is not None)
    if suffix == ".pdf":
        return re.sub(r"\s+", " ", " ".join(page.extract_text() for page in pypdf.PdfReader(io.BytesIO(data)).pages))
    if suffix == ".eml":
        found = message(data)
        attached = [words(part.get_filename() or "x.txt", _content(part)) for part in found.iter_attachments()]
        body = found.get_body(("plain",))
        assert body is not None
        return "\n".join([str(found["Subject"]), body.get_content(), *attached])
    return data.decode("utf-8")


def _content(part: EmailMessage) -> bytes:
    content = part.get_payload(decode=True)
    assert isinstance(content, bytes)
    return content


def _said(cell: Any) -> str:
    return day_of(cell) if isinstance(cell, date) else f"{cell:,}" if isinstance(cell, int) else str(cell)


def day_of(day: date) -> str:
    return f"{day.day} {day:%B %Y}"


def message(data: bytes) -> EmailMessage:
    found = email.message_from_bytes(data, policy=email.policy.default)
    assert isinstance(found, EmailMessage)
    return found


def sheets(data: bytes) -> dict[str, list[list[Any]]]:
    """Rows of cells; days without a time."""
    book = openpyxl.load_workbook(io.BytesIO(data))
    return {
        sheet.title: [
            [cell.date() if isinstance(cell, datetime) else cell for cell in row] for row in sheet.iter_rows(values_only=True)
        ]
        for sheet in book.worksheets
    }


class Matter:
    """Texts are known by the two digits their name begins with, those in `blobs` by their name."""

    def __init__(self, world: str) -> None:
        self.root = WORLDS / world
        self.documents = sorted((self.root / "documents").iterdir())
        self.files = [*self.documents, *sorted((self.root / "blobs").iterdir())]
        self.texts = {self._key(path): words(path.name, path.read_bytes()) for path in self.files}

    @staticmethod
    def _key(path: Path) -> str:
        return path.name[:2] if path.parent.name == "documents" else path.name

    def path(self, key: str) -> Path:
        return next(path for path in self.files if self._key(path) == key)

    def sheet(self, key: str, name: str) -> list[list[Any]]:
        return sheets(self.path(key).read_bytes())[name]

    def holding(self, pattern: str) -> set[str]:
        return {key for key, text in self.texts.items() if re.search(pattern, text)}

    def amount(self, key: str, pattern: str) -> int:
        (found,) = re.findall(pattern + r"(?:EUR|GBP) ([\d,]+)", self.texts[key])
        return int(found.replace(",", ""))

    def table(self, name: str) -> list[dict[str, Any]]:
        lines = (self.root / "database" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def permissions(self) -> dict[str, Any]:
        return json.loads((self.root / "permissions.yaml").read_text())
