"""Checks on Office files that an agent wrote: xlsx_cell and docx. Their words are looked at by every other check with `in:`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any

from eval_pipeline.scoring.check_base import (
    Absent,
    Arguments,
    CheckResult,
    Evidence,
    Run,
    decided,
    failed,
    fold,
    listed,
    passed,
    read_extract,
    shown,
)
from eval_pipeline.scoring.check_number import Wanted, numbers, wanted, western_digits
from eval_pipeline.scoring.documents import suffix_of
from eval_pipeline.scoring.sheets import Cell

XLSX_CELL = (
    "`xlsx_cell: {file: NAME.xlsx, row: Kiel, column: rent, number: 44500}`, or `cell: B4` for row and column, `equals: TEXT` or"
    " `contains: TEXT` for number, with `sheet: NAME`, `tolerance: 1%`"
)
DOCX = "`docx: NAME.docx` or `docx: {file: NAME.docx, headings: [TEXT, ...], tables: 1}`"

Sheet = Sequence[Sequence[Cell]]
Place = tuple[str, Cell]  # where, as Sheet!B4, and what
Test = Callable[[Cell], bool]


def xlsx_cell(argument: Any, _per_occurrence: bool) -> Run:
    names = ("file", "sheet", "cell", "row", "column", "number", "tolerance", "equals", "contains")
    options = Arguments("xlsx_cell", XLSX_CELL, argument, main=None, options=names)
    file, sheet = _file(options, ".xlsx"), options.optional_text("sheet")
    find, sought = _finder(options)
    fits, asked = _test(options)

    def run(evidence: Evidence) -> CheckResult:
        sheets = read_extract(evidence, file).sheets
        if sheet is not None and not (sheets := {name: rows for name, rows in sheets.items() if fold(name) == fold(sheet)}):
            return failed(f"{shown(file)} has no sheet {shown(sheet)}")
        found = [(f"{name}!{where}", value) for name, rows in sheets.items() for where, value in find(rows)]
        filled = [(where, value) for where, value in found if value is not None and str(value).strip()]
        if not filled:
            return failed(f"{shown(file)} has nothing at {sought}; its sheets: {listed(sheets)}")
        for where, value in filled:
            if fits(value):
                return passed(f"{shown(file)} has {shown(str(value))} at {where}")
        there = ", ".join(f"{shown(str(value), 40)} at {where}{_formula(value)}" for where, value in filled[:5])
        return failed(f"{shown(file)} has {there}, not {asked}")

    return run


def _file(options: Arguments, suffix: str) -> str:
    name = options.text("file")
    if suffix_of(name) != suffix:
        raise options.wrong(f"looks into {suffix} files, found {shown(name)}")
    return name


def _finder(options: Arguments) -> tuple[Callable[[Sheet], Iterator[Place]], str]:
    if "cell" in options:
        if "row" in options or "column" in options:
            raise options.wrong("takes a `cell`, or `row` and `column`, found both")
        return _at(options, options.text("cell"))
    if "row" not in options:
        raise options.wrong("needs a `cell` or a `row`")
    row, column = options.one_or_more("row"), options.one_or_more("column") if "column" in options else None
    sought = "row " + " or ".join(map(shown, row)) + (f", column {' or '.join(map(shown, column))}" if column else "")
    return (lambda sheet: _crossing(sheet, row, column)), sought


def _at(options: Arguments, cell: str) -> tuple[Callable[[Sheet], Iterator[Place]], str]:
    letters = cell.upper().rstrip("0123456789")
    digits = cell[len(letters) :]
    if not (1 <= len(letters) <= 3 and all("A" <= letter <= "Z" for letter in letters) and 1 <= len(digits) <= 7 and int(digits)):
        raise options.wrong(f"needs a cell such as B4, found {shown(cell)}")
    column = 0
    for letter in letters:
        column = 26 * column + ord(letter) - ord("A") + 1

    def find(sheet: Sheet) -> Iterator[Place]:
        if int(digits) <= len(sheet) and column <= len(sheet[int(digits) - 1]):
            yield cell.upper(), sheet[int(digits) - 1][column - 1]

    return find, f"cell {cell.upper()}"


def _crossing(sheet: Sheet, row: list[str], column: list[str] | None) -> Iterator[Place]:
    """Cells of the rows that name `row`, in the columns that a row above names `column`; without one, the rest of the row."""
    columns = set[int]()
    for number, cells in enumerate(sheet, start=1):
        named = {index for index, cell in enumerate(cells) if _names(cell, row)}
        for index in (columns if column is not None else set(range(len(cells)))) - named if named else ():
            if index < len(cells):
                yield f"{_letters(index)}{number}", cells[index]
        columns |= {index for index, cell in enumerate(cells) if column is not None and _names(cell, column)}


def _names(cell: Cell, texts: list[str]) -> bool:
    return isinstance(cell, str) and any(fold(text) in fold(cell) for text in texts)


def _letters(index: int) -> str:
    letters = ""
    while index >= 0:
        letters, index = chr(ord("A") + index % 26) + letters, index // 26 - 1
    return letters


def _test(options: Arguments) -> tuple[Test, str]:
    given = [key for key in ("number", "equals", "contains") if key in options]
    if len(given) > 1:
        raise options.wrong(f"takes one of number, equals and contains, found {' and '.join(given)}")
    if "tolerance" in options and given != ["number"]:
        raise options.wrong("has a `tolerance` without a `number`")
    if given == ["number"]:
        want = wanted(options, "number")
        return (lambda cell: _holds(cell, want)), f"{want.value}"
    if not given:
        return (lambda _: True), "anything"
    text = fold(options.text(given[0]))
    if given == ["equals"]:
        return (lambda cell: fold(str(cell)) == text), shown(text)
    return (lambda cell: text in fold(str(cell))), f"with {shown(text)}"


def _holds(cell: Cell, want: Wanted) -> bool:
    """A number, or a text with one number."""
    if isinstance(cell, bool) or cell is None:
        return False
    if isinstance(cell, str):
        found = [] if cell.startswith("=") else list(numbers(western_digits(fold(cell))))
        return len(found) == 1 and any(want.fits(value) for value in found[0].values)
    number = Decimal(str(cell))
    return number.is_finite() and want.fits(number)


def _formula(value: Cell) -> str:
    return " (a formula without a stored result)" if isinstance(value, str) and value.startswith("=") else ""


def docx(argument: Any, _per_occurrence: bool) -> Run:
    options = Arguments("docx", DOCX, argument, main="file", options=("headings", "tables"))
    file, tables = _file(options, ".docx"), options.whole("tables", 0)
    headings = options.texts("headings") if "headings" in options else []

    def run(evidence: Evidence) -> CheckResult:
        found = read_extract(evidence, file)
        if not found.text.strip():
            raise Absent(f"the file {shown(file)} is empty")
        folded = [fold(heading) for heading in found.headings]
        lacking = [text for text in headings if not any(fold(text) in heading for heading in folded)]
        if lacking:
            return failed(f"{shown(file)} has no heading with {listed(lacking)}; its headings: {listed(found.headings)}")
        return decided(
            found.tables >= tables,
            f"{shown(file)} has {len(found.headings)} headings and {found.tables} tables",
            f"{shown(file)} has {found.tables} tables, fewer than {tables}",
        )

    return run
