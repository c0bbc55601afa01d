"""Files with tables, as the stand-in fills them from what it has read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_pipeline.gateway.stand_in import respond

WRITE = {
    "type": "function",
    "function": {"name": "write_file", "parameters": {"type": "object", "required": ["path", "content"]}},
}
MILLS = """# Mills

[Mills!A2:D2] Mill: Upper mill | Wheels: 2 | Yearly rent: GBP 1,200

[Mills!A3:D3] Mill: Lower mill | Wheels: 3 | Yearly rent: GBP 2,350

[Mills!A4:D4] Mill: All mills in all | Yearly rent: GBP 9,999
"""
ASKED = "Write {name} on the rents of the mills with the columns Mill, Rent in GBP and Source{more}."


def message(question: str, **texts: str) -> dict[str, Any]:
    made: list[dict[str, Any]] = [{"role": "user", "content": question}]
    for path, text in texts.items():
        call = {"id": path, "type": "function", "function": {"name": "read_document", "arguments": json.dumps({"path": path})}}
        made += [{"role": "assistant", "content": None, "tool_calls": [call]}]
        made += [{"role": "tool", "tool_call_id": path, "content": json.dumps({"path": path, "text": text})}]
    reply = respond({"model": "stand-in", "messages": made, "tools": [WRITE], "temperature": 0})
    return reply.payload["choices"][0]["message"]


def written(question: str, **texts: str) -> tuple[str, list[list[str]]]:
    (call,) = message(question, **texts)["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in arguments["content"].splitlines()]
    return arguments["path"], rows


@pytest.mark.parametrize("name", ["rents.xlsx", "rents.csv"])
def test_labelled_rows_fill_the_columns_that_are_asked_for(name: str) -> None:
    path, rows = written(ASKED.format(name=name, more=""), mills=MILLS)
    assert path == name
    assert rows[0] == ["Mill", "Rent in GBP", "Source"]
    assert sorted(rows[2:]) == [
        ["All mills in all", "GBP 9,999", "mills"],
        ["Lower mill", "GBP 2,350", "mills"],
        ["Upper mill", "GBP 1,200", "mills"],
    ]


def test_a_total_is_added_and_not_copied() -> None:
    _, rows = written(ASKED.format(name="rents.xlsx", more=", and a last row with the total"), mills=MILLS)
    assert sorted(rows[2:-1]) == [["Lower mill", "GBP 2,350", "mills"], ["Upper mill", "GBP 1,200", "mills"]]
    assert rows[-1] == ["Total", "3,550", ""]


def test_plain_sentences_are_rows_where_nothing_is_labelled() -> None:
    texts = {
        "upper": "The yearly rent of the upper mill is GBP 1,200.",
        "lower": "The yearly rent of the lower mill is GBP 2,350.",
    }
    _, rows = written(ASKED.format(name="rents.xlsx", more=""), **texts)
    assert sorted(row[1:] for row in rows[2:]) == [["GBP 1,200", "upper"], ["GBP 2,350", "lower"]]


def test_nothing_read_makes_a_table_of_its_header() -> None:
    _, rows = written(ASKED.format(name="rents.xlsx", more=""))
    assert rows == [["Mill", "Rent in GBP", "Source"], ["---", "---", "---"]]


def test_a_docx_gets_a_memorandum() -> None:
    (call,) = message("Write memo.docx: how much is the rent of the upper mill?", mills=MILLS)["tool_calls"]
    content = json.loads(call["function"]["arguments"])["content"]
    assert content.startswith("# Memorandum") and "GBP 1,200" in content


def test_a_number_after_no_is_not_the_end_of_a_question() -> None:
    (call,) = message("Write memo.docx. When was claim no. 2 made?", letter="Claim no. 2 was made on 3 May 2021.")["tool_calls"]
    assert "When was claim no. 2 made" in json.loads(call["function"]["arguments"])["content"]


@given(st.text(max_size=60), st.text(alphabet=st.sampled_from("|[]:!;,. \nAGBP15\ud800-#"), max_size=120))
def test_no_text_breaks_a_table(columns: str, text: str) -> None:
    (call,) = message(f"Write t.xlsx with the columns {columns}", text=text)["tool_calls"]
    assert json.loads(call["function"]["arguments"])["content"].startswith("| ")
