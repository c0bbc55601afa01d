from __future__ import annotations

import csv

import pytest

from eval_pipeline.errors import SpecError
from eval_pipeline.specs.importers.biglaw_csv import FIELD_LIMIT, parse_csv

HEADER = b"Number,Category,Task Type,Task,Prompt,Document(s),Rubric\r\n"
ROW = b"1,a,b,c,d,N/A,r\r\n"


def failure(raw: bytes) -> SpecError:
    with pytest.raises(SpecError) as caught:
        parse_csv(raw, "t.csv")
    return caught.value


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_a_cell_knows_its_line_whatever_ends_lines(end: bytes) -> None:
    raw = end.join([HEADER.strip(), b'1,"a', b'a","b', b"", b'b",c,"d', b'd",N/A,"r1', b'r2"', b"", b"2,a,b,c,d,e,r"])
    first, second = parse_csv(raw, "t.csv")
    assert {name: cell.line for name, cell in first.items()} == {
        "Number": 2,
        "Category": 2,
        "Task Type": 3,
        "Task": 5,
        "Prompt": 5,
        "Document(s)": 6,
        "Rubric": 6,
    }
    assert [(cell.text, cell.line) for cell in first["Rubric"].lines()] == [("r1", 6), ("r2", 7)]
    assert second["Rubric"].line == 9


def test_rows_and_columns_without_content_are_left_out() -> None:
    raw = HEADER.strip() + b",,\r\n" + ROW.strip() + b",,\r\n,,,,,,,,\r\n\r\n ,,,,,,,,\r\n"
    (row,) = parse_csv(raw, "t.csv")
    assert list(row) == ["Number", "Category", "Task Type", "Task", "Prompt", "Document(s)", "Rubric"]


def test_a_cell_may_be_large() -> None:
    large = b"x" * 1_000_000
    assert len(parse_csv(HEADER + b"1,a,b,c,d,e," + large, "t.csv")[0]["Rubric"].text) == 1_000_000


def test_a_quote_that_is_never_closed_does_not_eat_the_memory() -> None:
    error = failure(HEADER + ROW + b'2,a,b,c,d,e,"' + b"x\n" * (FIELD_LIMIT // 2 + 1))
    assert error.where == "t.csv:3"
    assert "larger than field limit" in str(error)


def test_the_limit_of_others_stays() -> None:
    before = csv.field_size_limit()
    parse_csv(HEADER + ROW, "t.csv")
    failure(HEADER + b'"')
    failure(b"Number")
    assert csv.field_size_limit() == before


@pytest.mark.parametrize(
    ("raw", "line", "message"),
    [
        (b"", 1, "is empty"),
        (b"\xef\xbb\xbf\r\n , \r\n", 1, "is empty"),
        (HEADER.replace(b",Rubric", b"") + ROW, 1, "misses column 'Rubric'"),
        (b"\r\n" + HEADER.replace(b"Prompt,", b"prompt,") + ROW, 2, "misses column 'Prompt'"),
        (HEADER.replace(b"Rubric", b"Rubric,Notes") + ROW, 1, "unknown column 'Notes'"),
        (HEADER.replace(b"Rubric", b"Rubric,Task") + ROW, 1, "twice the column 'Task'"),
        (HEADER + ROW + b"2,a,b,c,d,e\r\n", 3, "has 6 cells, the header has 7"),
        (HEADER + b'"1\n1",a,b,c,d,e,"r\nr"\r\n' + b"2,a,b,c,d,e,r,s\r\n", 5, "has 8 cells, the header has 7"),
        (HEADER.strip() + b",\r\n" + b'1,a,b,c,d,e,"r\nr",note\r\n', 3, "'note' stands in a column without a name"),
        (HEADER + ROW + b'2,"a\nb"c,d\r\n', 3, "not valid CSV"),
        (HEADER + ROW + b'2,"a\nb\nc\n', 3, "not valid CSV"),
        (HEADER + b'1,"a\nb\xff",', 3, "0xff"),
        (HEADER + b'1,"a\r\rb\r\n\x00",', 5, "NUL"),
        (HEADER.decode().encode("utf-16"), 1, "not UTF-8"),
        (HEADER + ROW + "2,Prüfung".encode("latin-1"), 3, "0xfc"),
    ],
)
def test_what_is_no_table_is_named_with_its_line(raw: bytes, line: int, message: str) -> None:
    error = failure(raw)
    assert error.where == f"t.csv:{line}"
    assert message in str(error)
