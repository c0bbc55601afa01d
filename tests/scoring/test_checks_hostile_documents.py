"""Deliverables made to break or fool the reader: the check fails with a reason, whatever the file is."""

from __future__ import annotations

import io
import resource
import struct
import zipfile
import zlib
from concurrent.futures import ProcessPoolExecutor
from email.message import EmailMessage
from multiprocessing import get_context
from typing import Any

import docx
import openpyxl
import pypdf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pypdf.generic import NameObject, StreamObject

from eval_pipeline.scoring import untrusted
from eval_pipeline.scoring.checks import CheckResult, Evidence, run_check

pytestmark = pytest.mark.slow


def saved(document: Any) -> bytes:
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()


def a_docx(text: str = "Kiel") -> bytes:
    document = docx.Document()
    document.add_paragraph(text)
    return saved(document)


def an_xlsx() -> bytes:
    book = openpyxl.Workbook()
    book.worksheets[0]["A1"] = "Kiel"
    return saved(book)


def a_pdf(password: str | None = None) -> bytes:
    writer = pypdf.PdfWriter()
    writer.add_blank_page(100, 100)
    if password is not None:
        writer.encrypt(password, algorithm="RC4-128")
    return saved_pdf(writer)


def saved_pdf(writer: pypdf.PdfWriter) -> bytes:
    buffer = io.BytesIO()
    writer.write(buffer)
    return buffer.getvalue()


def repacked(data: bytes, changes: dict[str, bytes | None], **extra: bytes) -> bytes:
    """The same archive with members replaced (None: left out) and added."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            content = changes.get(name, source.read(name))
            if content is not None:
                target.writestr(name, content)
        for name, content in extra.items():
            target.writestr(name, content)
    return buffer.getvalue()


def look(name: str, data: bytes) -> CheckResult:
    return run_check(*asked_of(name, data))


def asked_of(name: str, data: bytes) -> tuple[dict[str, Any], Evidence]:
    """`contains_none` would be satisfied by a text without the word: here only what was really read may satisfy it."""
    return {"contains_none": {"texts": ["no such word"], "in": f"file:{name}"}}, Evidence(answer=None, files={name: data})


def measured(name: str, data: bytes) -> tuple[CheckResult, float]:
    """With the MiB that the reader had at most: in a process that had no other child."""
    with ProcessPoolExecutor(1, get_context("spawn")) as alone:
        result = alone.submit(run_check, *asked_of(name, data)).result()
        return result, alone.submit(resource.getrusage, resource.RUSAGE_CHILDREN).result().ru_maxrss / 1024


def word(body: str, head: str = "") -> bytes:
    space = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    return f'<?xml version="1.0"?>{head}<w:document xmlns:w="{space}"><w:body>{body}</w:body></w:document>'.encode()


def lying_zip(mebibytes: int) -> bytes:
    """A DOCX whose body unpacks to so many MiB of blanks and declares 4,000 bytes."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    once = packer.compress(b" " * 2**20) + packer.flush(zlib.Z_FULL_FLUSH)  # what follows does not refer to it
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(a_docx())) as source, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            if name != DOCUMENT:
                target.writestr(name, source.read(name))
        target.writestr(DOCUMENT, once * mebibytes + packer.flush(), zipfile.ZIP_STORED)
        entry = target.getinfo(DOCUMENT)
        entry.compress_type, entry.file_size = zipfile.ZIP_DEFLATED, 4_000
    made = bytearray(buffer.getvalue())
    struct.pack_into("<H", made, entry.header_offset + 8, zipfile.ZIP_DEFLATED)
    struct.pack_into("<I", made, entry.header_offset + 22, 4_000)
    return bytes(made)


DOCUMENT, TYPES, SHEET = "word/document.xml", "[Content_Types].xml", "xl/worksheets/sheet1.xml"
LAUGHS = (
    '<!DOCTYPE d [<!ENTITY a "'
    + "ha" * 1000
    + '">'
    + "".join(f'<!ENTITY {chr(98 + i)} "{f"&{chr(97 + i)};" * 10}">' for i in range(8))
    + "]>"
)
OUTSIDE = '<!DOCTYPE d [<!ENTITY a SYSTEM "file:///etc/passwd">]>'
SPREAD = (
    b'<?xml version="1.0"?><worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>'
    b'<row r="1048576"><c r="XFD1048576" t="n"><v>1</v></c></row></sheetData></worksheet>'
)


def inner_mail(depth: int) -> bytes:
    mail = EmailMessage()
    mail["From"] = "a@b.example"
    mail.set_content("x")
    if depth:
        mail.add_attachment(inner_mail(depth - 1), maintype="application", subtype="octet-stream", filename="inner.eml")
    return mail.as_bytes()


HOSTILE = {
    "text named docx": ("a.docx", b"# Memo\n", "is no DOCX: it begins with b'# Memo"),
    "pdf named docx": ("a.docx", a_pdf(), "is no DOCX: it begins with b'%PDF-"),
    "xlsx named docx": ("a.docx", an_xlsx(), "an Office file of another kind"),
    "docx named xlsx": ("a.xlsx", a_docx(), "an Office file of another kind"),
    "docx named pdf": ("a.pdf", a_docx(), "is no PDF"),
    "docx named eml": ("a.eml", a_docx(), "is no e-mail"),
    "plain zip": ("a.docx", repacked(a_docx(), {TYPES: None}), "holds no Office document"),
    "cut off": ("a.docx", a_docx()[:5000], "is no DOCX"),
    "cut off pdf": ("a.pdf", a_pdf()[:60], "is broken"),
    "ole": ("a.docx", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(5000), "encrypted or of an old format"),
    "locked pdf": ("a.pdf", a_pdf("secret"), "is encrypted"),
    "macro": ("a.docx", repacked(a_docx(), {}, **{"word/vbaProject.bin": b"x"}), "holds macros"),
    "macro type": (
        "a.xlsx",
        repacked(
            an_xlsx(),
            {
                TYPES: zipfile.ZipFile(io.BytesIO(an_xlsx()))
                .read(TYPES)
                .replace(b"spreadsheetml.sheet.main", b"macroEnabled.main")
            },
        ),
        "holds macros",
    ),
    "no body": ("a.docx", repacked(a_docx(), {DOCUMENT: b""}), "is broken"),
    "wrong xml": ("a.docx", repacked(a_docx(), {DOCUMENT: word("<w:p>")}), "is broken"),
    "laughs": (
        "a.docx",
        repacked(a_docx(), {DOCUMENT: word("<w:p><w:r><w:t>&i;</w:t></w:r></w:p>", LAUGHS)}),
        "entity amplification",
    ),
    "far cell": ("a.xlsx", repacked(an_xlsx(), {SHEET: SPREAD}), "spans 1,048,576 rows of 16,384 cells"),
    "mail in mail": ("a.eml", inner_mail(5), "attachments in attachments"),
}


@pytest.mark.parametrize(("name", "data", "why"), HOSTILE.values(), ids=HOSTILE)
def test_a_file_that_is_not_what_it_says_fails_with_the_reason(name: str, data: bytes, why: str) -> None:
    result = look(name, data)
    assert (result.verdict, result.absent) == (0, True)
    assert why in result.reason


def test_what_these_files_are_made_from_can_be_read() -> None:
    assert [
        look(name, data).verdict for name, data in (("a.docx", a_docx()), ("a.xlsx", an_xlsx()), ("a.eml", inner_mail(2)))
    ] == [1, 1, 1]


def test_a_zip_bomb_is_refused_by_its_declared_size() -> None:
    bomb = repacked(a_docx(), {}, **{"word/media/image1.png": bytes(200 * 2**20)})
    assert len(bomb) < 2**20
    assert "unpacks to 201 MiB; at most 64 are read" in look("a.docx", bomb).reason


@pytest.mark.slow
def test_a_zip_that_lies_about_its_size_gets_no_more_memory_than_any_other() -> None:
    data = lying_zip(1_500)
    assert len(data) < 4 * 2**20
    result, peak_mib = measured("a.docx", data)
    assert (result.verdict, result.absent) == (0, True)
    assert "MiB of memory" in result.reason
    assert peak_mib <= untrusted.MEMORY_MIB


@pytest.mark.long
def test_a_file_of_many_small_parts_gets_no_more_memory_and_time_than_any_other() -> None:
    wide = "<w:p><w:r><w:t>x</w:t></w:r></w:p>" * (60 * 2**20 // 34)
    result, peak_mib = measured("a.docx", repacked(a_docx(), {DOCUMENT: word(wide)}))
    assert (result.verdict, result.absent) == (0, True)
    assert "MiB of memory" in result.reason or "s to be read" in result.reason
    assert peak_mib <= untrusted.MEMORY_MIB


def test_an_entity_never_brings_a_file_of_the_host() -> None:
    data = repacked(a_docx(), {DOCUMENT: word("<w:p><w:r><w:t>&a;</w:t></w:r></w:p>", OUTSIDE)})
    given = Evidence(answer=None, files={"a.docx": data})
    assert run_check({"contains": {"text": "root:", "in": "file:a.docx"}}, given).verdict == 0


def test_a_pdf_that_unpacks_to_far_more_than_it_is_gets_given_up() -> None:
    stream = StreamObject()
    stream.set_data(zlib.compress(b"BT (x) Tj ET " * (8 * 2**20), 9))
    stream[NameObject("/Filter")] = NameObject("/FlateDecode")
    writer = pypdf.PdfWriter()
    page = writer.add_blank_page(100, 100)
    page[NameObject("/Contents")] = writer._add_object(stream)  # pyright: ignore[reportPrivateUsage]
    data = saved_pdf(writer)
    assert len(data) < 2**20
    result, peak_mib = measured("a.pdf", data)
    assert (result.verdict, result.absent) == (0, True)
    assert peak_mib <= untrusted.MEMORY_MIB


def test_why_a_file_could_not_be_read_is_found_out_once() -> None:
    given = Evidence(answer=None, files={"a.docx": b"not again"})
    before = untrusted._read.cache_info().misses  # pyright: ignore[reportPrivateUsage]
    reasons = {run_check({"contains": {"text": text, "in": "file:a.docx"}}, given).reason for text in "abc"}
    assert len(reasons) == 1
    assert untrusted._read.cache_info().misses == before + 1  # pyright: ignore[reportPrivateUsage]


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.sampled_from(["a.docx", "a.xlsx", "a.pdf", "a.eml"]), st.integers(0, 4_000), st.binary(min_size=1, max_size=40))
def test_no_damage_to_a_file_ends_a_check(name: str, at: int, noise: bytes) -> None:
    whole = {"a.docx": a_docx(), "a.xlsx": an_xlsx(), "a.pdf": a_pdf(), "a.eml": inner_mail(1)}[name]
    at = at % len(whole)
    assert look(name, whole[:at] + noise + whole[at + len(noise) :]).verdict in (0, 1)
