"""What the desk reads out of Office files, PDFs and e-mails, and what it writes: opened with the libraries themselves."""

from __future__ import annotations

import datetime
import io
import re
from collections.abc import Callable, Generator
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import docx
import openpyxl
import pytest
from desk_runs import Cell, Endpoint, Machine, Run, calling, copied, said, tool_results

pytestmark = pytest.mark.slow

FLOOR = "What is the lowest amount for which Tarn & Hollis would settle?"

Ask = Callable[..., Run]


@pytest.fixture
def cell(machine: Machine, lock_delay: Path, endpoint: Endpoint) -> Generator[Cell]:
    with machine.desk(lock_delay, endpoint=endpoint) as found:
        yield found


@pytest.fixture
def asking(cell: Cell) -> Ask:
    return cell.agent


def saved(document: Any) -> bytes:
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()


# Reading


def test_every_file_of_the_second_matter_has_text(cell: Cell, lock_delay: Path) -> None:
    found = cell.texts()
    assert set(found) == {
        path.relative_to(lock_delay).as_posix() for folder in ("documents", "blobs") for path in (lock_delay / folder).iterdir()
    }
    assert not [path for path, text in found.items() if len(text) < 800 or "No text can be taken" in text]
    assert "Severn Fluid Power, can't start" in found["documents/07-email-notice-hydraulics-2025-01-30.eml"]


def test_each_piece_of_text_has_its_place(cell: Cell, lock_delay: Path) -> None:
    found = cell.texts()
    schedule = openpyxl.load_workbook(lock_delay / "documents" / "18-claim-schedule.xlsx")["Claim"]
    (row,) = [cells[0].row for cells in schedule.iter_rows() if cells[0].value == "Site preliminaries"]
    line = f"[Claim!A{row}:E{row}] Head: Site preliminaries | Days: 74 | Rate per day: GBP 5,840 | Amount claimed: GBP 432,160"
    assert line in found["documents/18-claim-schedule.xlsx"]
    deed = docx.Document(str(lock_delay / "documents" / "04-deed-of-variation-no-1.docx"))
    paragraphs = [paragraph.text for paragraph in deed.paragraphs if paragraph.text.strip()]
    (number,) = [number for number, text in enumerate(paragraphs, start=1) if text.startswith("3.1 ")]
    assert f"[¶ {number}] {paragraphs[number - 1]}" in found["documents/04-deed-of-variation-no-1.docx"]
    assert re.search(r"\[page 2\]\n\n.*20\.3 Either party", found["documents/02-conditions-of-contract.pdf"], re.DOTALL)


def test_days_numbers_and_tables_read_as_they_are_shown(machine: Machine, made_world: Callable[..., Path]) -> None:
    book = openpyxl.Workbook()
    sheet = book.worksheets[0]
    for row in (["Site", "Rent", "Share", "Until"], ["Kiel", 44_500, 0.0125, datetime.date(2031, 12, 31)]):
        sheet.append(row)
    sheet["B2"].number_format, sheet["C2"].number_format = '"EUR" #,##0', "0.00%"
    document = docx.Document()
    document.add_heading("Rents", 2)
    document.add_table(1, 2).rows[0].cells[0].text = "Kiel"
    with machine.desk(made_world({"t.xlsx": saved(book), "m.docx": saved(document)})) as cell:
        found = cell.texts()
    assert "[Sheet!A2:D2] Site: Kiel | Rent: EUR 44,500 | Share: 1.25% | Until: 31 December 2031" in found["documents/t.xlsx"]
    assert found["documents/m.docx"] == "## Rents\n\n| Kiel |  |"


def test_a_picture_in_an_email_is_named_and_hides_nothing(machine: Machine, made_world: Callable[..., Path]) -> None:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "a@b.example", "c@d.example", "Rent"
    mail.set_content("The rent is EUR 12.")
    mail.add_attachment(b"\x89PNG", maintype="image", subtype="png", filename="logo.png")
    with machine.desk(made_world({"m.eml": mail.as_bytes()})) as cell:
        found = cell.texts()
    assert "The rent is EUR 12." in found["documents/m.eml"] and "Attachment logo.png" in found["documents/m.eml"]


def test_the_floor_of_the_other_side_is_not_found(asking: Ask, endpoint: Endpoint) -> None:
    run = asking(FLOOR, config={"top_k": 30, "max_reads": 30})
    assert "could not find" in run.result["answer"]
    assert "410,000" not in str(endpoint.asked) and "22-privileged" not in str(endpoint.asked)


def test_the_trap_is_real_for_a_user_who_may_read_it(machine: Machine, lock_delay: Path, endpoint: Endpoint) -> None:
    world = copied(lock_delay)
    matters = world / "database" / "matters.jsonl"
    matters.write_text(matters.read_text().replace('"user": "t.reyes"', '"user": "h.okafor"'))
    with machine.desk(world, endpoint=endpoint) as cell:
        assert "410,000" in cell.agent(FLOOR).result["answer"]


# Writing


MEMO = """# Notices

## Claim no. 2

The notice was **three days late**
and the claim fails.

- aware on 6 January 2025
- notice on 30 January 2025
1. first
| Claim | In time |
|---|:---:|
| 1 | **yes** |
| 2 | no |
"""


def written(run: Run, name: str) -> io.BytesIO:
    assert "error" not in tool_results(run)[0], tool_results(run)
    return io.BytesIO(run.files[name])


def test_markdown_becomes_a_word_document(asking: Ask, endpoint: Endpoint) -> None:
    endpoint.script += [calling("write_file", path="memo.docx", content=MEMO), said("done")]
    document = docx.Document(written(asking("?"), "memo.docx"))
    paragraphs = [(paragraph.style.name if paragraph.style else None, paragraph.text) for paragraph in document.paragraphs]
    assert paragraphs == [
        ("Heading 1", "Notices"),
        ("Heading 2", "Claim no. 2"),
        ("Normal", "The notice was three days late and the claim fails."),
        ("List Bullet", "aware on 6 January 2025"),
        ("List Bullet", "notice on 30 January 2025"),
        ("List Number", "first"),
    ]
    assert [run.text for run in document.paragraphs[2].runs if run.bold] == ["three days late"]
    (table,) = document.tables
    assert [[cell.text for cell in row.cells] for row in table.rows] == [["Claim", "In time"], ["1", "yes"], ["2", "no"]]


def test_tables_become_sheets_and_numbers_numbers(asking: Ask, endpoint: Endpoint) -> None:
    content = "# Rents: 2026\n\n| Site | Rent | Share |\n|---|---|---|\n| Kiel | EUR 44,500 | 0.5 |\n| =1+1 | 12 days | 1,000 |\n\n# Notes\n| a |\n"
    endpoint.script += [calling("write_file", path="t.xlsx", content=content), said("done")]
    book = openpyxl.load_workbook(written(asking("?"), "t.xlsx"))
    assert book.sheetnames == ["Rents  2026", "Notes"]
    sheet = book.worksheets[0]
    assert [list(row) for row in sheet.iter_rows(values_only=True)] == [
        ["Site", "Rent", "Share"],
        ["Kiel", 44_500, 0.5],
        ["=1+1", "12 days", 1_000],
    ]
    assert sheet["A3"].data_type == "s"
    assert sheet["B2"].number_format == '"EUR" #,##0'


def test_csv_becomes_a_sheet(asking: Ask, endpoint: Endpoint) -> None:
    endpoint.script += [calling("write_file", path="t.xlsx", content='Site,Rent\n"Kiel, harbour",44500\n'), said("done")]
    rows = openpyxl.load_workbook(written(asking("?"), "t.xlsx")).worksheets[0].iter_rows(values_only=True)
    assert list(rows) == [("Site", "Rent"), ("Kiel, harbour", 44_500)]


def test_what_makes_no_file_is_told_to_the_model(asking: Ask, endpoint: Endpoint) -> None:
    endpoint.script += [
        calling("write_file", path="t.xlsx", content="no table"),
        calling("write_file", path="m.docx", content="bad \0 \ud800"),
        said("done"),
    ]
    run = asking("?")
    refused, fine = tool_results(run)
    assert "no table" in refused["error"] and "written" in fine
    assert [paragraph.text for paragraph in docx.Document(io.BytesIO(run.files["m.docx"])).paragraphs] == ["bad ? ?"]
    assert "t.xlsx" not in run.files


def test_odd_markdown_still_makes_a_document(asking: Ask, endpoint: Endpoint) -> None:
    odd = ["", "|", "||\n|-|", "#", "# ", "- ", "1.", "|a\n|b|c|", "**", "| a |\n| b | c |"]
    endpoint.script += [calling("write_file", path=f"{number}.docx", content=content) for number, content in enumerate(odd)]
    endpoint.script.append(said("done"))
    run = asking("?")
    assert not [result for result in tool_results(run) if "error" in result]
    for number in range(len(odd)):
        docx.Document(io.BytesIO(run.files[f"{number}.docx"]))


def test_agent_and_service_start_without_the_heavy_libraries(cell: Cell) -> None:
    loaded = cell.python("import sys, matter_desk.agent, matter_desk.service; print(*sys.modules)").split()
    assert {"docx", "openpyxl", "pypdf", "lxml", "email.policy", "alembic", "sqlalchemy"}.isdisjoint(loaded)
    assert "matter_desk.office" in loaded
