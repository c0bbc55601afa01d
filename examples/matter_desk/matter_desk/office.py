"""Reading and writing DOCX and XLSX. The libraries take a third of a second to import, so only where they are used."""

from __future__ import annotations

import csv
import datetime
import io
import re
from collections.abc import Iterator
from typing import Any

_CURRENCY = re.compile(r"EUR|USD|GBP|CHF|[€$£]")
_NUMBER = re.compile(r"(?P<currency>EUR|USD|GBP|CHF|€|\$|£)? ?(?P<digits>-?\d{1,3}(?:,\d{3})+(?:\.\d+)?|-?\d+(?:\.\d+)?)")
_RULE = re.compile(r"\|?[\s:|-]*-[\s:|-]*\|?")
_BOLD = re.compile(r"\*\*(.+?)\*\*")


def docx_text(data: bytes) -> str:
    """Headings as in Markdown, the number of each paragraph, tables as lines."""
    import docx
    from docx.table import Table

    document = docx.Document(io.BytesIO(data))
    blocks: list[str] = []
    number = 0
    for block in document.iter_inner_content():
        if isinstance(block, Table):
            blocks.append("\n".join("| " + " | ".join(_cell_text(cell) for cell in row.cells) + " |" for row in block.rows))
        elif text := _paragraph_text(block):
            number += 1
            style = (block.style.name if block.style else None) or ""
            level = int(style[-1]) if style.startswith("Heading ") else 1 if style == "Title" else 0
            blocks.append(f"{'#' * level} {text}" if level else f"[¶ {number}] {text}")
    blocks += [f"[comment by {comment.author}] {comment.text.strip()}" for comment in document.comments]
    return "\n\n".join(blocks)


def _paragraph_text(paragraph: Any) -> str:
    """As if all tracked changes were accepted."""
    from docx.text.run import Run

    runs = paragraph._p.xpath("./w:r | ./w:hyperlink/w:r | ./w:ins/w:r")
    return "".join(Run(run, paragraph).text for run in runs).strip()


def _cell_text(cell: Any) -> str:
    return "\n".join(_paragraph_text(paragraph) for paragraph in cell.paragraphs).strip()


def xlsx_text(data: bytes) -> str:
    """Each row with its place, its cells after the names of their columns: the first row of several cells that holds texts alone."""
    import openpyxl

    blocks: list[str] = []
    for sheet in openpyxl.load_workbook(io.BytesIO(data), data_only=True).worksheets:
        blocks.append(f"# {sheet.title}")
        names: list[str] = []
        for row in sheet.iter_rows():
            texts = [_shown(cell.value, cell.number_format) for cell in row]
            filled = [text for text in texts if text]
            if len(filled) > 1 and all(isinstance(cell.value, str | None) for cell in row) and not names:
                names = texts
            if filled:
                place = f"[{sheet.title}!{row[0].coordinate}:{row[-1].coordinate}]"
                blocks.append(f"{place} " + " | ".join(_named(names, texts)))
    return "\n\n".join(blocks)


def _named(names: list[str], texts: list[str]) -> Iterator[str]:
    for index, text in enumerate(texts):
        name = names[index] if index < len(names) else ""
        if text:
            yield f"{name}: {text}" if name and name != text else text


def _shown(value: Any, number_format: str) -> str:
    if isinstance(value, datetime.datetime | datetime.date):
        return f"{value.day} {value:%B %Y}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value).strip()
    if "%" in number_format:
        return f"{value * 100:.10g}%"
    currency = _CURRENCY.search(number_format)
    number = f"{round(value, 10):,}" if "," in number_format else f"{value:.15g}"
    return f"{currency.group()} {number}" if currency else number


def docx_of(markdown: str) -> bytes:
    """Headings, lists, tables and paragraphs of simple Markdown, with bold words."""
    import docx

    document = docx.Document()
    for block in _markdown_blocks(markdown):
        first = block[0]
        if heading := re.match(r"(#{1,6}) +(.*)", first):
            document.add_heading(heading[2].strip(), level=len(heading[1]))
        elif first.startswith("|"):
            _add_table(document, list(_cells(block)))
        elif item := re.match(r"(?:[-*]|(\d+)[.)]) +", first):
            words = " ".join([first[item.end() :], *block[1:]])
            _add_words(document.add_paragraph(style="List Number" if item[1] else "List Bullet"), words)
        else:
            _add_words(document.add_paragraph(), " ".join(block))
    return _saved(document)


def _markdown_blocks(markdown: str) -> Iterator[list[str]]:
    """Lines that belong together: a table, an item, a heading, a paragraph."""
    block: list[str] = []
    for line in (*printable(markdown).splitlines(), ""):
        stripped = line.strip()
        starts = re.match(r"#{1,6} |[-*] |\d+[.)] ", stripped) or stripped.startswith("|") != (
            bool(block) and block[0].startswith("|")
        )
        if block and (not stripped or starts or block[0].startswith("#")):
            yield block
            block = []
        if stripped:
            block.append(stripped)


def printable(text: str) -> str:
    """Without what XML can't hold."""
    return re.sub("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)


def _cells(lines: list[str]) -> Iterator[list[str]]:
    for line in lines:
        if not _RULE.fullmatch(line):
            yield [cell.strip().replace("**", "") for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def _add_table(document: Any, rows: list[list[str]]) -> None:
    width = max((len(row) for row in rows), default=0)
    if not width:
        return
    table = document.add_table(rows=len(rows), cols=width, style="Table Grid")
    for cells, row in zip(table.rows, rows, strict=True):
        for cell, text in zip(cells.cells, row, strict=False):
            cell.text = text


def _add_words(paragraph: Any, text: str) -> None:
    for index, piece in enumerate(_BOLD.split(text)):
        if piece:
            paragraph.add_run(piece).bold = index % 2 == 1 or None


def xlsx_of(content: str) -> bytes:
    """A sheet for each table, named by the heading above it. A table is Markdown or, when no line begins with |, CSV.

    Numbers become numbers. Raise ValueError when there is no table.
    """
    import openpyxl

    book = openpyxl.Workbook()
    book.remove(book.worksheets[0])
    for name, rows in _tables(printable(content)):
        sheet = book.create_sheet(re.sub(r"[\[\]:*?/\\]", " ", name)[:31].strip() or "Sheet")
        for number, row in enumerate(rows, start=1):
            for column, text in enumerate(row, start=1):
                _fill(sheet.cell(number, column), text)
    if not book.worksheets:
        raise ValueError("there is no table: write one in Markdown or as CSV")
    return _saved(book)


def _tables(content: str) -> Iterator[tuple[str, list[list[str]]]]:
    lines = [line.strip() for line in content.splitlines()]
    if not any(line.startswith("|") for line in lines):
        rows = [row for row in csv.reader(line for line in lines if line) if row]
        if any(len(row) > 1 for row in rows):
            yield "Sheet", rows
        return
    name, table = "Sheet", list[str]()
    for line in (*lines, ""):
        if line.startswith("|"):
            table.append(line)
            continue
        if table:
            yield name, list(_cells(table))
            table = []
        if line.startswith("#"):
            name = line.lstrip("# ")


def _fill(cell: Any, text: str) -> None:
    number = _NUMBER.fullmatch(text.strip())
    if number is None:
        cell.value = text
        cell.data_type = "s"  # never a formula
        return
    digits = number["digits"].replace(",", "")
    cell.value = float(digits) if "." in digits else int(digits)
    grouped = "#,##0.00" if "." in digits else "#,##0" if "," in text or number["currency"] else "General"
    cell.number_format = f'"{number["currency"]}" {grouped}' if number["currency"] else grouped


def encoded(suffix: str, content: str) -> bytes:
    """The file's bytes from its text. Raise ValueError when the content doesn't make a file of this kind."""
    writers = {".docx": docx_of, ".xlsx": xlsx_of}
    return writers[suffix](content) if suffix in writers else content.encode("utf-8", "replace")


def _saved(document: Any) -> bytes:
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()
