"""Conversations as they are kept in the wild, turned into drafts of cases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eval_pipeline.errors import SpecError
from eval_pipeline.specs.importers.chat import Draft, draft_case, read_chat
from eval_pipeline.specs.importers.personal import Personal
from eval_pipeline.specs.library import Library
from eval_pipeline.specs.yaml_file import YamlFile

QUESTION, ANSWER = "With how much notice does the lease end?", "It ends with six months' notice. It runs until 31 December 2029."
OPENAI: list[dict[str, Any]] = [
    {"role": "system", "content": "You are careful."},
    {"role": "user", "content": "Which leases are there?"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "search", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "1", "name": "search", "content": "lease.md"},
    {"role": "assistant", "content": "One, of Kiel."},
    {"role": "user", "content": [{"type": "text", "text": QUESTION}]},
    {"role": "assistant", "content": ANSWER},
]


def any_value(value: Any) -> dict[str, Any]:
    """As OTLP's JSON writes it."""
    if isinstance(value, dict):
        return {"kvlistValue": {"values": [{"key": key, "value": any_value(inner)} for key, inner in value.items()]}}
    if isinstance(value, list):
        return {"arrayValue": {"values": [any_value(inner) for inner in value]}}
    return {"stringValue": value}


def attributes(**values: Any) -> list[dict[str, Any]]:
    return [{"key": key.replace("__", "."), "value": any_value(value)} for key, value in values.items()]


def parts(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}


ASKED = [
    parts("user", "Which leases are there?"),
    {"role": "assistant", "parts": [{"type": "tool_call", "name": "search", "arguments": {"q": "lease"}}]},
    {"role": "tool", "parts": [{"type": "tool_call_response", "response": "lease.md"}]},
    parts("assistant", "One, of Kiel."),
    parts("user", QUESTION),
]
ANSWERED = [{**parts("assistant", ANSWER), "finish_reason": "stop"}]


def spans(*each: list[dict[str, Any]]) -> dict[str, Any]:
    listed = [{"spanId": str(n), "name": "chat m", "attributes": one} for n, one in enumerate(each)]
    return {"resourceSpans": [{"scopeSpans": [{"spans": listed}]}]}


def event(name: str, **body: Any) -> dict[str, Any]:
    return {"spanId": "1", "eventName": name, "attributes": [], "body": any_value(body)}


LOGS = [
    event("gen_ai.user.message", content="Which leases are there?"),
    event("gen_ai.tool.message", content="lease.md", id="1"),
    event("gen_ai.assistant.message", content="One, of Kiel."),
    event("gen_ai.user.message", content=QUESTION),
    event("gen_ai.choice", index="0", message={"role": "assistant", "content": ANSWER}),
]
PRINTED = {
    "name": "chat m",
    "context": {"span_id": "0x1"},
    "attributes": {"gen_ai.input.messages": json.dumps(ASKED), "gen_ai.output.messages": json.dumps(ANSWERED)},
    "events": [],
}
SHAPES: dict[str, Any] = {
    "messages": OPENAI,
    "request": {"model": "m", "messages": OPENAI},
    "request and response": {"request": {"messages": OPENAI[:-1]}, "response": {"choices": [{"message": OPENAI[-1]}]}},
    "responses": {
        "input": OPENAI[:-1],
        "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": ANSWER}]}],
    },
    "otlp, structured": spans(
        attributes(gen_ai__input__messages=ASKED[:1]),
        attributes(gen_ai__input__messages=ASKED, gen_ai__output__messages=ANSWERED),
    ),
    "otlp, as JSON": spans(attributes(gen_ai__input__messages=json.dumps(ASKED), gen_ai__output__messages=json.dumps(ANSWERED))),
    "otlp logs": {"resourceLogs": [{"scopeLogs": [{"logRecords": LOGS}]}]},
    "printed span": PRINTED,
}


def drafted(tmp_path: Path, shape: Any, personal: Personal | None = None) -> Draft:
    path = tmp_path / "chat.json"
    path.write_text(shape if isinstance(shape, str) else json.dumps(shape))
    return draft_case(read_chat(path), "draft", personal or Personal())


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_gives_the_same_case(tmp_path: Path, name: str) -> None:
    data = drafted(tmp_path, SHAPES[name]).data
    turns = ["The conversation so far:", "User: Which leases are there?", "Tool", "Assistant: One, of Kiel.", QUESTION]
    places = [data["prompt"].index(turn) for turn in turns]
    assert places == sorted(places) and "lease.md" in data["prompt"]
    assert "careful" not in data["prompt"] and ANSWER not in data["prompt"]
    assert data["reference"] == ANSWER
    texts = [one["text"] for one in data["rubric"]["criteria"]]
    assert len(texts) == 2 and "six months' notice" in texts[0] and "31 December 2029" in texts[1]


def test_json_lines_of_messages_and_of_conversations(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps(message) for message in OPENAI)
    assert drafted(tmp_path, lines).data["reference"] == ANSWER
    several = "\n".join(json.dumps({"messages": messages}) for messages in (OPENAI[:2], OPENAI, OPENAI[5:6]))
    found = drafted(tmp_path, several)
    assert found.data["reference"] == ANSWER
    assert any("2 more in the file" in note for note in found.notes)


@pytest.mark.parametrize(
    "shape",
    [
        "no json",
        "[]",
        '{"a": 1}',
        '[{"role": "assistant", "content": "Hello."}]',
        "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
    ],
)
def test_what_is_no_conversation_is_the_authors_mistake(tmp_path: Path, shape: str) -> None:
    with pytest.raises(SpecError) as caught:
        drafted(tmp_path, shape)
    assert caught.value.hint


def test_a_draft_is_a_case_as_it_stands(tmp_path: Path) -> None:
    root = Path(__file__).parents[3] / "worlds_src"
    library = Library(root)
    from eval_pipeline.specs.case_new import case_text, new_case

    draft = YamlFile.from_bytes(case_text(drafted(tmp_path, OPENAI[5:6]).data).encode(), "draft")
    assert new_case(library, "harbour-spa", draft, dry_run=True).case.spec.prompt == QUESTION


FOUND = [
    ("mail a.b+c@mail.example.co.uk.", "mail [email 1]."),
    ("DE89 3704 0044 0532 0130 00 and DE89370400440532013000", "[iban 1] and [iban 1]"),
    ("call +49 (0) 431 / 12 34-56 or 0431 123456, 555-123-4567", "call [phone 1] or [phone 2], [phone 3]"),
    ("card 4111 1111 1111 1111", "card [card 1]"),
    ("from 192.168.10.254:80", "from [ip 1]:80"),
    ("Anna SCHMIDT met Annalena; Schmidt & Co", "[name 1] met Annalena; Schmidt & Co"),
]
LEFT = [
    "on 01.02.2024, 2024-01-31 and 31/12/2029",
    "EUR 12.345.678,90; 1,234,567.89 USD; 0.12345678",
    "clause 14.2.1.3, version 1.2.3.4.5, HRB 123456",
    "DE00 3704 0044 0532 0130 00 has a wrong check digit",
    "4111 1111 1111 1112 is no card, and 1000000000000 no telephone",
    "§ 573c BGB, [2024] UKSC 12, C-123/45",
]


@pytest.mark.parametrize("text, wanted", FOUND)
def test_personal_details_are_replaced(text: str, wanted: str) -> None:
    assert Personal(["Anna Schmidt"])(text) == wanted


@pytest.mark.parametrize("text", LEFT)
def test_what_only_looks_like_one_is_left(text: str) -> None:
    assert Personal()(text) == text


def test_one_detail_has_one_mark_in_all_texts_and_what_was_replaced_is_counted() -> None:
    personal = Personal(replacements={"Anna Schmidt": "Erika Muster", "Kiel": ""})
    assert personal("Anna Schmidt, a@b.example") == "Erika Muster, [email 1]"
    assert personal("A@b.example or c@d.example; Kiel") == "[email 1] or [email 2]; [name 2]"
    assert {(one.kind, one.replacement, one.n) for one in personal.replaced} == {
        ("name", "Erika Muster", 1),
        ("email", "[email 1]", 2),
        ("email", "[email 2]", 1),
        ("name", "[name 2]", 1),
    }
