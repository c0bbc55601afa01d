"""The cells of an XLSX file, and how they read."""

from __future__ import annotations

import datetime
import io
import re
from collections.abc import Iterator
from typing import Any

Cell = str | int | float | bool | None

MAX_CELLS = 200_000
_CURRENCY = re.compile(r"EUR|USD|GBP|CHF|[€$£]")


class TooManyCells(Exception):
    pass


def read(data: bytes) -> tuple[dict[str, list[list[Cell]]], str]:
    """The visible sheets, and their text: a heading for each, a line for each row. A formula without a stored value is itself."""
    import openpyxl

    book = openpyxl.load_workbook(io.BytesIO(data), keep_links=False)
    visible = [sheet for sheet in book.worksheets if sheet.sheet_state == "visible"]
    for sheet in visible:
        if sheet.max_row * sheet.max_column > MAX_CELLS:
            span = f"{sheet.max_row:,} rows of {sheet.max_column:,} cells"
            raise TooManyCells(f"has a sheet that spans {span}; at most {MAX_CELLS:,} cells are read")
    computed: Any = None
    if any(cell.data_type == "f" for sheet in visible for row in sheet.iter_rows() for cell in row):
        computed = openpyxl.load_workbook(io.BytesIO(data), keep_links=False, data_only=True)
    found: dict[str, list[list[Cell]]] = {}
    lines: list[str] = []
    for sheet in visible:
        rows = list(_rows(sheet, computed[sheet.title] if computed else None))
        found[sheet.title] = [[value for value, _ in row] for row in rows]
        lines += ["", f"# {sheet.title}", *(" | ".join(text for _, text in row).rstrip(" |") for row in rows)]
    return found, "\n".join(line for line in lines).strip()


def _rows(sheet: Any, computed: Any) -> Iterator[list[tuple[Cell, str]]]:
    for row in sheet.iter_rows(min_row=1, min_col=1):
        values = [_stored(cell, computed) for cell in row]
        yield [(_plain(value), shown(value, cell.number_format)) for value, cell in zip(values, row, strict=True)]


def _stored(cell: Any, computed: Any) -> Any:
    if cell.data_type != "f":
        return cell.value
    value = computed[cell.coordinate].value
    return str(getattr(cell.value, "text", cell.value)) if value is None else value


def _plain(value: Any) -> Cell:
    if isinstance(value, datetime.datetime) and value.time() == datetime.time():
        return value.date().isoformat()
    return value if value is None or isinstance(value, str | int | float) else str(value)


def shown(value: Any, number_format: str) -> str:
    """As the sheet shows it, as far as currency, thousands and per cent go."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        plain = _plain(value)
        return "" if plain is None else str(plain)
    if "%" in number_format:
        return f"{value * 100:.10g}%"
    number = f"{round(value, 10):,}" if "," in number_format else f"{value:.15g}" if isinstance(value, float) else str(value)
    currency = _CURRENCY.search(re.sub(r"\[\$-[^]]*\]", "", number_format))
    return f"{currency.group()} {number}" if currency else number
