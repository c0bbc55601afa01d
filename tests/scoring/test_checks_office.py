"""Checks on what an agent wrote as DOCX, XLSX, PDF or e-mail: words, cells, structure."""

from __future__ import annotations

import datetime
import io
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import docx
import openpyxl
import pytest
from docx.oxml import parse_xml
from docx.oxml.ns import nsdecls
from reportlab.pdfgen import canvas

from eval_pipeline.errors import SpecError
from eval_pipeline.scoring.checks import CheckResult, Evidence, run_check, validate_check
from eval_pipeline.scoring.documents import document_text
from eval_pipeline.scoring.verdicts import Documents

pytestmark = pytest.mark.slow


def saved(document: Any) -> bytes:
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()


def memo() -> Any:
    document = docx.Document()
    document.add_heading("Change of control", 0)
    document.add_heading("1. The Kiel lease", 1)
    document.add_paragraph("The prior written ").add_run("consent").bold = True
    document.add_paragraph("The rent is EUR 44,500 from 1 January 2026.")
    table = document.add_table(2, 2)
    for cell, text in zip(
        [cell for row in table.rows for cell in row.cells], ["Contract", "Answer", "Kiel", "must consent"], strict=True
    ):
        cell.text = text
    document.sections[0].footer.paragraphs[0].text = "Privileged draft"
    return document


def book(**sheets: list[list[Any]]) -> bytes:
    made = openpyxl.Workbook()
    made.remove(made.worksheets[0])
    for name, rows in sheets.items():
        sheet = made.create_sheet(name)
        for row in rows:
            sheet.append(row)
    return saved(made)


LEASES = [
    ["Leases of Harbour"],
    [],
    ["Site", "Landlord", "Monthly rent (EUR)", "Until"],
    ["Kiel", "Förde", 44_500, datetime.date(2031, 12, 31)],
    ["Hamburg", "Elbtor", "EUR 31,250", "30 June 2031"],
    ["Total", None, 75_750.0, None],
]


def run(spec: dict[str, Any], **files: bytes) -> CheckResult:
    return run_check(spec, Evidence(answer=None, files={name.replace("_", "."): data for name, data in files.items()}))


def verdict(spec: dict[str, Any], **files: bytes) -> float:
    return run(spec, **files).verdict


# Words


@pytest.mark.parametrize(
    "check",
    [
        {"contains": {"text": "prior written consent", "in": "file:memo.docx"}},
        {"contains_all": {"texts": ["kiel | must consent", "privileged draft"], "in": "file:memo.docx"}},
        {"number": {"value": 44_500, "unit": "EUR", "in": "file:memo.docx"}},
        {"date": {"date": "2026-01-01", "in": "file:memo.docx"}},
        {"regex": {"pattern": "^## ?1|^# 1", "flags": "m", "in": "file:memo.docx"}},
        {"not": {"contains": {"text": "Hamburg", "in": "file:memo.docx"}}},
    ],
    ids=lambda check: next(iter(check)),
)
def test_every_check_on_text_reads_a_docx(check: dict[str, Any]) -> None:
    assert verdict(check, memo_docx=saved(memo())) == 1


def test_only_what_a_reader_sees_counts() -> None:
    document = memo()
    body = document.element.body
    run_xml = "<w:r><w:rPr>{hide}</w:rPr><w:{tag} xml:space='preserve'>{text}</w:{tag}></w:r>"
    seen = run_xml.format(hide="", tag="t", text="inserted words")
    hidden = run_xml.format(hide="<w:vanish/>", tag="t", text="secret keyword")
    deleted = run_xml.format(hide="", tag="delText", text="struck out")
    moved = run_xml.format(hide="", tag="t", text="moved away")
    changes = f"<w:ins w:id='1' w:author='a'>{seen}</w:ins>{hidden}<w:del w:id='2' w:author='a'>{deleted}{moved}</w:del>"
    paragraph = f"<w:p {nsdecls('w')}>{changes}<w:moveFrom w:id='3' w:author='a'>{moved}</w:moveFrom></w:p>"
    control = f"<w:sdt {nsdecls('w')}><w:sdtContent><w:p><w:r><w:t>in a control</w:t></w:r></w:p></w:sdtContent></w:sdt>"
    body.insert(0, parse_xml(paragraph))
    body.insert(1, parse_xml(control))
    data = saved(document)
    assert verdict({"contains_all": {"texts": ["inserted words", "in a control"], "in": "file:m.docx"}}, m_docx=data) == 1
    assert verdict({"contains_none": {"texts": ["secret", "struck", "moved away"], "in": "file:m.docx"}}, m_docx=data) == 1


def test_an_xlsx_reads_as_its_sheets_show_it() -> None:
    made = openpyxl.Workbook()
    first = made.worksheets[0]
    first["A1"], first["B1"], first["C1"] = 44_500, 0.0125, datetime.date(2026, 3, 31)
    first["A1"].number_format, first["B1"].number_format = '"EUR" #,##0', "0.00%"
    secret = made.create_sheet("Secret")
    secret["A1"], secret.sheet_state = "hidden words", "hidden"
    data = saved(made)
    assert verdict({"contains": {"text": "EUR 44,500 | 1.25% | 2026-03-31", "in": "file:t.xlsx"}}, t_xlsx=data) == 1
    assert verdict({"number": {"value": 44_500, "unit": "EUR", "in": "file:t.xlsx"}}, t_xlsx=data) == 1
    assert verdict({"contains_none": {"texts": ["hidden words"], "in": "file:t.xlsx"}}, t_xlsx=data) == 1


def test_a_pdf_and_an_email_with_attachments_are_read() -> None:
    buffer = io.BytesIO()
    page = canvas.Canvas(buffer)
    page.drawString(72, 720, "The Loan stands at EUR 8,400,000.")
    page.save()
    mail = EmailMessage()
    mail["From"], mail["Subject"] = "a@b.example", "Loan"
    mail.set_content("Grüße aus Kiel")
    mail.add_attachment(buffer.getvalue(), maintype="application", subtype="pdf", filename="loan.pdf")
    mail.add_attachment(saved(memo()), maintype="application", subtype="octet-stream", filename="Memo.DOCX")
    assert verdict({"contains": {"text": "EUR 8,400,000", "in": "file:l.pdf"}}, l_pdf=buffer.getvalue()) == 1
    wanted = ["Grüße", "Subject: Loan", "EUR 8,400,000", "Attachment Memo.DOCX", "prior written consent"]
    assert verdict({"contains_all": {"texts": wanted, "in": "file:m.eml"}}, m_eml=mail.as_bytes()) == 1


def test_documents_of_a_world_are_read_and_can_be_cited(tmp_path: Path) -> None:
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "memo.docx").write_bytes(saved(memo()))
    (tmp_path / "documents" / "broken.docx").write_bytes(b"no zip")
    evidence = Evidence(answer="“The prior written consent”", documents=Documents(tmp_path))
    assert run_check({"cites": {"document": "documents/memo.docx", "quote": "The prior written consent"}}, evidence).verdict == 1
    with pytest.raises(SpecError, match="is no DOCX"):
        document_text(tmp_path / "documents" / "broken.docx")


# Cells


@pytest.mark.parametrize(
    "options",
    [
        {"row": "Kiel", "column": "rent", "number": 44_500},
        {"row": "kiel", "column": ["Miete", "monthly rent"], "number": 44_000, "tolerance": "2%"},
        {"row": "Hamburg", "column": "rent", "number": 31_250},
        {"row": ["Summe", "total"], "column": "rent", "number": 75_750},
        {"row": "Kiel", "column": "until", "equals": "2031-12-31"},
        {"row": "Kiel", "number": 44_500},
        {"row": "Hamburg", "column": "landlord", "contains": "elb"},
        {"cell": "c4", "number": 44_500, "sheet": "leases"},
        {"cell": "B5", "equals": "ELBTOR"},
        {"cell": "A1"},
    ],
)
def test_a_cell_is_found_by_name_or_place(options: dict[str, Any]) -> None:
    assert verdict({"xlsx_cell": {"file": "t.xlsx", **options}}, t_xlsx=book(Other=[["x"]], Leases=LEASES)) == 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"row": "Kiel", "column": "rent", "number": 42_000}, "'44500' at Leases!C4, not 42000"),
        ({"row": "Rostock", "column": "rent"}, "nothing at row 'Rostock', column 'rent'"),
        ({"row": "Kiel", "column": "deposit"}, "nothing at row 'Kiel', column 'deposit'"),
        ({"row": "Total", "column": "landlord"}, "nothing at"),
        ({"cell": "Z99"}, "nothing at cell Z99"),
        ({"row": "Kiel", "column": "rent", "equals": "44"}, "not '44'"),
        ({"sheet": "Rents", "cell": "A1"}, "no sheet 'Rents'"),
        ({"row": "Kiel", "contains": "Kiel"}, "not with 'kiel'"),
    ],
)
def test_a_cell_that_is_not_there_or_holds_something_else(options: dict[str, Any], why: str) -> None:
    result = run({"xlsx_cell": {"file": "t.xlsx", **options}}, t_xlsx=book(Leases=LEASES))
    assert result.verdict == 0 and why in result.reason


def test_a_header_below_the_row_does_not_name_its_column() -> None:
    data = book(S=[["Kiel", 1], ["Site", "Rent"], ["Hamburg", 2]])
    assert verdict({"xlsx_cell": {"file": "t.xlsx", "row": "Kiel", "column": "Rent"}}, t_xlsx=data) == 0
    assert verdict({"xlsx_cell": {"file": "t.xlsx", "row": "Hamburg", "column": "Rent", "number": 2}}, t_xlsx=data) == 1


def test_a_formula_counts_by_its_stored_result_alone() -> None:
    result = run({"xlsx_cell": {"file": "t.xlsx", "cell": "A2", "number": 1}}, t_xlsx=book(S=[[1], ["=1"]]))
    assert result.verdict == 0 and "a formula without a stored result" in result.reason


def test_a_text_with_two_numbers_is_no_number() -> None:
    data = book(S=[["Rent", "EUR 42,000, then EUR 44,500"]])
    assert verdict({"xlsx_cell": {"file": "t.xlsx", "row": "Rent", "number": 44_500}}, t_xlsx=data) == 0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"file": "t.docx", "cell": "A1"}, "looks into .xlsx files"),
        ({"file": "t.xlsx"}, "needs a `cell` or a `row`"),
        ({"file": "t.xlsx", "cell": "B4", "row": "Kiel"}, "found both"),
        ({"file": "t.xlsx", "cell": "4B"}, "needs a cell such as B4"),
        ({"file": "t.xlsx", "cell": "A0"}, "needs a cell such as B4"),
        ({"file": "t.xlsx", "cell": "B²"}, "needs a cell such as B4"),
        ({"file": "t.xlsx", "cell": "B4", "number": 1, "equals": "1"}, "takes one of number, equals and contains"),
        ({"file": "t.xlsx", "cell": "B4", "tolerance": 1}, "without a `number`"),
        ({"file": "t.xlsx", "cel": "B4"}, "did you mean `cell`"),
        ({"file": "t.xlsx", "row": []}, "needs a list of texts"),
    ],
)
def test_a_wrong_xlsx_cell_is_refused_with_the_right_form(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match="xlsx_cell") as refused:
        validate_check({"xlsx_cell": options})
    assert why in str(refused.value) and "row: Kiel" in str(refused.value)


# Structure


def test_headings_and_tables_of_a_docx() -> None:
    data = saved(memo())
    assert verdict({"docx": "m.docx"}, m_docx=data) == 1
    assert verdict({"docx": {"file": "m.docx", "headings": ["kiel lease", "change of control"], "tables": 1}}, m_docx=data) == 1
    lacking = run({"docx": {"file": "m.docx", "headings": ["Recommendation"]}}, m_docx=data)
    assert lacking.verdict == 0 and "'1. The Kiel lease', 'Change of control'" in lacking.reason
    assert "1 tables, fewer than 2" in run({"docx": {"file": "m.docx", "tables": 2}}, m_docx=data).reason
    assert run({"docx": "m.docx"}, m_docx=saved(docx.Document())) == CheckResult(0, "the file 'm.docx' is empty", absent=True)
    assert run({"not": {"docx": "m.docx"}}, other_docx=data).verdict == 0
    with pytest.raises(ValueError, match=r"looks into \.docx files"):
        validate_check({"docx": "m.doc"})
