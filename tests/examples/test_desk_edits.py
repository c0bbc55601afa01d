"""Edits of Word documents: each new version is opened with the library itself."""

from __future__ import annotations

import io
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import docx
import pytest
from desk_runs import Cell, Machine
from docx.oxml.ns import qn

pytestmark = pytest.mark.slow

PATH = "documents/lease.docx"


def lease() -> bytes:
    document = docx.Document()
    paragraph = document.add_paragraph("The rent is EUR 1")
    paragraph.add_run("0,000").bold = True
    paragraph.add_run(" a month. The rent is due.")
    document.add_table(1, 1).rows[0].cells[0].text = "The tenant: Harbour"
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def world(worlds: Path) -> Path:
    (worlds / "lease" / "documents").mkdir(parents=True)
    (worlds / "lease" / PATH).write_bytes(lease())
    (worlds / "lease" / "documents" / "note.md").write_text("a note")
    return worlds / "lease"


@pytest.fixture
def cell(machine: Machine, world: Path) -> Generator[Cell]:
    with machine.desk(world) as found:
        yield found


@pytest.fixture
def edit(cell: Cell) -> Callable[..., Any]:
    def made(action: str, find: str, text: str) -> Any:
        status, answer = cell.http("POST", f"/edits/{PATH}", {"action": action, "find": find, "text": text})
        assert (status, answer["path"]) == (201, PATH), answer
        return docx.Document(io.BytesIO(bytes.fromhex(cell.http("GET", f"/content/{PATH}")[1])))

    return made


def text(cell: Cell) -> str:
    return cell.http("GET", f"/documents/{PATH}")[1]["text"]


@pytest.mark.long
def test_words_are_replaced_across_runs_and_in_tables(cell: Cell, edit: Callable[..., Any]) -> None:
    document = edit("replace", "EUR 10,000", "EUR 12,500")
    assert document.paragraphs[0].text == "The rent is EUR 12,500 a month. The rent is due."
    document = edit("replace", "Harbour", "Harbour Logistics")
    assert document.tables[0].rows[0].cells[0].text == "The tenant: Harbour Logistics"
    assert "EUR 12,500 a month" in text(cell) and "Harbour Logistics" in text(cell)
    assert cell.http("GET", "/search?query=logistics")[1]["hits"][0]["path"] == PATH
    assert cell.sql(f"SELECT version, author FROM versions WHERE path = '{PATH}' ORDER BY version") == [
        [1, None],
        [2, "*"],
        [3, "*"],
    ]


def test_each_place_is_replaced_once(edit: Callable[..., Any]) -> None:
    document = edit("replace", "The rent", "The rent, The rent,")
    assert document.paragraphs[0].text == "The rent, The rent, is EUR 10,000 a month. The rent, The rent, is due."


def test_a_tracked_change_keeps_both_words(cell: Cell, edit: Callable[..., Any]) -> None:
    paragraph = edit("track", "10,000", "12,500").paragraphs[0]._p
    (deleted,), (inserted,) = paragraph.findall(qn("w:del")), paragraph.findall(qn("w:ins"))
    assert "".join(node.text for node in deleted.iter(qn("w:delText"))) == "10,000"
    assert "".join(node.text for node in inserted.iter(qn("w:t"))) == "12,500"
    assert not list(deleted.iter(qn("w:t")))
    assert {deleted.get(qn("w:author")), inserted.get(qn("w:author"))} == {"*"}
    assert deleted.get(qn("w:id")) != inserted.get(qn("w:id"))
    assert "The rent is EUR 12,500 a month." in text(cell) and "10,000" not in text(cell)


def test_a_comment_stands_at_its_words(cell: Cell, edit: Callable[..., Any]) -> None:
    document = edit("comment", "due", "When?")
    (comment,) = document.comments
    assert (comment.text, comment.author) == ("When?", "*")
    start, end = (document.paragraphs[0]._p.find(qn(f"w:commentRange{side}")) for side in ("Start", "End"))
    between = [node.text for node in start.itersiblings() if node.tag == qn("w:r") and end in node.itersiblings()]
    assert "".join(between) == "due"
    assert document.paragraphs[0].text.endswith("The rent is due.")
    assert "[comment by *] When?" in text(cell)


def test_paragraphs_are_appended(edit: Callable[..., Any]) -> None:
    document = edit("append", "", "One.\nTwo \0.")
    assert [paragraph.text for paragraph in document.paragraphs[-2:]] == ["One.", "Two ?."]


@pytest.mark.parametrize(
    ("path", "action", "find", "status"),
    [
        (PATH, "replace", "not there", 422),
        (PATH, "replace", "", 422),
        (PATH, "erase", "rent", 422),
        ("documents/note.md", "replace", "note", 422),
        ("documents/none.docx", "replace", "note", 404),
    ],
)
def test_an_edit_that_can_not_be_made_leaves_the_document(
    cell: Cell, world: Path, path: str, action: str, find: str, status: int
) -> None:
    assert cell.http("POST", f"/edits/{path}", {"action": action, "find": find, "text": "x"})[0] == status
    assert bytes.fromhex(cell.http("GET", f"/content/{PATH}")[1]) == (world / PATH).read_bytes()
    assert cell.http("GET", f"/documents/{PATH}")[1]["version"] == 1
