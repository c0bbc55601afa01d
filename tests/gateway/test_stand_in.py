from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_pipeline.gateway import extraction, stand_in
from eval_pipeline.gateway.stand_in import Reply, respond

SEARCH = {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "required": ["query"]}}}
READ = {"type": "function", "function": {"name": "read_document", "parameters": {"type": "object", "required": ["path"]}}}
WRITE = {
    "type": "function",
    "function": {"name": "write_file", "parameters": {"type": "object", "required": ["path", "content"]}},
}

LEASE = (
    "# Lease of the mill\n\n1.1 The lease began on 2 May 2020.\n\n3.1 The yearly rent for the mill amounts to EUR 7,300 plus tax."
)
LETTER = "# Letter about the weather\n\nIt rained for three weeks and the fields were under water."


def body(*messages: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {"model": "stand-in", "messages": list(messages), "temperature": 0} | options


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def call(identifier: str, name: str, result: Any, **arguments: str) -> list[dict[str, Any]]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    made = {"role": "assistant", "content": None, "tool_calls": [{"id": identifier, "type": "function", "function": function}]}
    return [made, {"role": "tool", "tool_call_id": identifier, "content": json.dumps(result)}]


def documents(**texts: str) -> list[dict[str, Any]]:
    """Messages of a conversation in which these were read."""
    pairs = [call(f"read-{name}", "read_document", {"path": name, "text": text}, path=name) for name, text in texts.items()]
    return [message for pair in pairs for message in pair]


def message_of(reply: Reply) -> dict[str, Any]:
    assert reply.status == 200, reply.payload
    return reply.payload["choices"][0]["message"]


def answer(question: str, *messages: dict[str, Any], **options: Any) -> str:
    return message_of(respond(body(user(question), *messages, **options)))["content"]


def calls_of(reply: Reply) -> list[tuple[str, dict[str, str]]]:
    made = message_of(reply).get("tool_calls", [])
    return [(entry["function"]["name"], json.loads(entry["function"]["arguments"])) for entry in made]


def test_without_any_source_it_says_that_it_found_nothing() -> None:
    assert "could not find" in answer("How much is the yearly rent for the mill?")


def test_it_quotes_the_sentence_that_answers_with_its_source() -> None:
    text = answer("How much is the yearly rent for the mill?", *documents(lease=LEASE, letter=LETTER))
    assert text == '"3.1 The yearly rent for the mill amounts to EUR 7,300 plus tax." (lease)'


@given(st.integers(1, 99_999_999))
def test_the_answer_is_what_the_source_says(amount: int) -> None:
    text = LEASE.replace("7,300", f"{amount:,}")
    assert f"EUR {amount:,} plus" in answer("How much is the yearly rent for the mill?", *documents(lease=text))


def test_a_question_that_the_sources_do_not_speak_of_is_not_answered() -> None:
    text = answer("How much is the penalty for late delivery of gravel?", *documents(lease=LEASE, letter=LETTER))
    assert "could not find" in text
    assert "7,300" not in text


def test_an_amount_is_not_taken_from_elsewhere_when_the_matching_sentence_has_none() -> None:
    sources = documents(lease=LEASE, notes="# Notes\n\nThe repair reserve for the mill wheel is open. No figure was given.")
    assert "could not find" in answer("How much is the repair reserve for the mill wheel?", *sources)


def test_amounts_of_several_sources_are_added() -> None:
    barn = "# Lease of the barn\n\n2.1 The yearly rent for the barn amounts to EUR 1,150.50."
    text = answer("What is the total yearly rent for the mill and the barn?", *documents(lease=LEASE, barn=barn))
    assert text.startswith("Total: EUR 8,450.50 ")


def test_an_amended_text_gives_way_to_its_amendment() -> None:
    amendment = "# Amendment to the lease of the mill\n\n1. The yearly rent for the mill amounts to EUR 8,000 from now on."
    barn = "# Lease of the barn\n\n2.1 The yearly rent for the barn amounts to EUR 1,000."
    read = documents(lease=LEASE, amendment=amendment, barn=barn)
    assert answer("What is the total yearly rent for the mill and the barn?", *read).startswith("Total: EUR 9,000 ")


def test_sources_that_disagree_are_set_against_each_other() -> None:
    contract = "# Contract for grain\n\n9. Either side may end the contract for grain with a notice period of 30 days."
    note = "# Note\n\nWe may end the contract for grain with a notice period of 45 days."
    question = "Which notice period does the contract for grain provide? Do the contract and the note agree?"
    text = answer(question, *documents(contract=contract, note=note))
    assert "differ" in text.splitlines()[0]
    assert "30 days (contract)" in text
    assert "45 days (note)" in text
    same = answer(question, *documents(contract=contract, note=note.replace("45", "30")))
    assert "no difference" in same


def test_a_list_keeps_apart_what_says_the_opposite() -> None:
    texts = {f"deed{n}": f"# Deed {n}\n\nA sale of the boat requires consent of the guild." for n in range(3)}
    texts["deed9"] = "# Deed 9\n\nA sale of the boat does not require consent of the guild."
    text = answer("List every deed under which a sale of the boat requires consent of the guild.", *documents(**texts))
    agreeing, _, opposing = text.partition("These say something else:")
    assert [name for name in texts if name in agreeing] == ["deed0", "deed1", "deed2"]
    assert "deed9" in opposing


def test_a_draft_weighs_less_when_the_binding_text_is_asked_for() -> None:
    final = "# Deed\n\nsigned on 1 May 2020\n\nThe price of the boat amounts to EUR 900."
    draft = "# Deed\n\ndraft, superseded\n\nThe price of the boat amounts to EUR 800."
    read = documents(a_draft=draft, b_final=final)
    assert answer("Which price of the boat is binding?", *read).startswith('"The price of the boat amounts to EUR 900')


def test_it_searches_with_words_of_the_question() -> None:
    question = "How much is the yearly rent for the mill? Who is the landlord of the barn?"
    made = calls_of(respond(body(user(question), tools=[SEARCH, READ])))
    assert made
    for name, arguments in made:
        assert name == "search"
        assert set(arguments["query"].lower().split()) <= set(re.findall(r"\w+", question.lower()))


def test_it_reads_what_the_search_ranks_best_and_nothing_twice() -> None:
    hits = {"hits": [{"path": f"d{n}", "passage": "rent"} for n in range(5)]}
    asked = [user("How much is the yearly rent?"), *call("s", "search", hits, query="yearly rent")]
    first = calls_of(respond(body(*asked, tools=[SEARCH, READ])))
    assert first == [("read_document", {"path": f"d{n}"}) for n in range(3)]
    then = calls_of(respond(body(*asked, *documents(d0=LEASE, d1=LETTER, d2=LETTER), tools=[SEARCH, READ])))
    assert then == [("read_document", {"path": "d3"}), ("read_document", {"path": "d4"})]


def test_a_refused_read_ends_the_reading() -> None:
    hits = {"hits": [{"path": f"d{n}", "passage": "rent"} for n in range(5)]}
    asked = [user("How much is the yearly rent for the mill?"), *call("s", "search", hits, query="rent"), *documents(d0=LEASE)]
    reply = respond(body(*asked, *call("r", "read_document", {"error": "limit"}, path="d1"), tools=[SEARCH, READ]))
    assert calls_of(reply) == []
    assert "EUR 7,300" in message_of(reply)["content"]


def test_forbidden_tools_are_not_called_and_passages_of_searches_serve() -> None:
    hits = {"hits": [{"path": "lease", "passage": "The yearly rent for the mill amounts to EUR 7,300."}]}
    asked = [user("How much is the yearly rent for the mill?"), *call("s", "search", hits, query="rent")]
    reply = respond(body(*asked, tools=[SEARCH, READ], tool_choice="none"))
    assert calls_of(reply) == []
    assert "EUR 7,300" in message_of(reply)["content"]


def test_a_file_is_written_once_when_the_question_names_it() -> None:
    asked = [user("Write note.md: how much is the yearly rent for the mill?"), *documents(lease=LEASE)]
    ((name, arguments),) = calls_of(respond(body(*asked, tools=[READ, WRITE])))
    assert (name, arguments["path"]) == ("write_file", "note.md")
    assert "EUR 7,300" in arguments["content"]
    done = call("w", "write_file", {"written": "note.md"}, **arguments)
    assert calls_of(respond(body(*asked, *done, tools=[READ, WRITE]))) == []
    assert calls_of(respond(body(*asked, tools=[READ]))) == []


def test_an_earlier_question_is_over() -> None:
    earlier = [
        user("How much is the yearly rent for the mill?"),
        *documents(lease=LEASE),
        {"role": "assistant", "content": "EUR 7,300"},
    ]
    assert calls_of(respond(body(*earlier, user("Who repairs the barn roof?"), tools=[SEARCH])))[0][0] == "search"


def size(value: Any) -> int:
    return math.ceil(len(json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))) / 4)


def test_tokens_are_quarters_of_characters_and_the_call_before_is_cached() -> None:
    first = body(user("How much is the yearly rent for the mill?"), tools=[SEARCH, READ])
    usage = respond(first).payload["usage"]
    assert usage["prompt_tokens"] == size(first["messages"][0]) + size(first["tools"])
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    made = message_of(respond(first))
    results = [{"role": "tool", "tool_call_id": entry["id"], "content": "{}"} for entry in made["tool_calls"]]
    second = respond(body(*first["messages"], made, *results, tools=[SEARCH, READ])).payload["usage"]
    assert second["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"]
    assert second["prompt_tokens"] == usage["prompt_tokens"] + size(made) + sum(map(size, results))
    assert usage["completion_tokens"] == size(made)


def test_the_delay_follows_from_the_usage() -> None:
    reply = respond(body(user("How much is the yearly rent for the mill?"), *documents(lease=LEASE * 50)))
    usage = reply.payload["usage"]
    uncached = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
    assert reply.delay_s == pytest.approx(0.03 + uncached / 20_000 + usage["completion_tokens"] / 1_500)


def test_only_temperature_lets_the_seed_matter() -> None:
    tied = {f"deed{n}": f"# Deed\n\nThe toll at gate {n} amounts to EUR {n + 1}00." for n in range(8)}
    question = "How much is the toll?"
    cold = {answer(question, *documents(**tied), seed=seed) for seed in range(12)}
    warm = {answer(question, *documents(**tied), seed=seed, temperature=1) for seed in range(12)}
    again = {answer(question, *documents(**tied), seed=seed, temperature=1) for seed in range(12)}
    assert len(cold) == 1
    assert len(warm) > 1
    assert warm == again


def test_max_tokens_cut_the_answer() -> None:
    reply = respond(body(user("How much is the yearly rent for the mill?"), *documents(lease=LEASE), max_tokens=5))
    assert reply.payload["choices"][0]["finish_reason"] == "length"
    assert len(message_of(reply)["content"]) == 20


MALFORMED: list[Any] = [
    None,
    [],
    {},
    {"model": "stand-in"},
    body(),
    {"messages": [user("a")]},
    body({"role": "wizard", "content": "a"}),
    body("a"),  # pyright: ignore[reportArgumentType]
    body(user("a"), temperature="hot"),
    body(user("a"), temperature=math.nan),
    body(user("a"), temperature=3),
    body(user("a"), max_tokens=0),
    body(user("a"), stream=True),
    body(user("a"), tools=[{"type": "function"}]),
    body({"role": "tool", "content": "a"}),
    body({"role": "user", "content": 5}),
    body({"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "search"}}]}),
]


@pytest.mark.parametrize("request_body", MALFORMED, ids=[str(n) for n in range(len(MALFORMED))])
def test_a_malformed_request_gets_an_error_in_the_providers_shape(request_body: Any) -> None:
    reply = respond(request_body)
    assert reply.status == 400
    assert set(reply.payload) == {"error"}
    assert set(reply.payload["error"]) == {"message", "type", "param", "code"}
    assert reply.payload["error"]["type"] == "invalid_request_error"
    json.dumps(reply.payload, allow_nan=False)


@given(st.text(max_size=300), st.lists(st.text(max_size=300), max_size=4), st.sampled_from(["none", "auto"]))
def test_no_text_breaks_it(question: str, texts: list[str], choice: str) -> None:
    read = documents(**{f"d{n}": text for n, text in enumerate(texts)})
    reply = respond(body(user(question), *read, tools=[SEARCH, READ, WRITE], tool_choice=choice))
    assert reply.status == 200
    json.dumps(reply.payload, allow_nan=False)


def test_half_a_surrogate_pair_of_the_prompt_does_not_come_back() -> None:
    reply = respond(body(user("How much is the rent for the mill?"), *documents(lease=LEASE + " \ud800"), seed=3, temperature=1))
    json.dumps(reply.payload, ensure_ascii=False).encode()
    assert "EUR 7,300" in message_of(reply)["content"]


def test_it_knows_no_world() -> None:
    """The names and figures of the demo's documents stand nowhere in its code."""
    root = Path(__file__).parents[2]
    code = "".join(Path(module.__file__ or "").read_text() for module in (stand_in, extraction))
    text = "".join(path.read_text() for path in (root / "worlds_src" / "worlds").glob("*/documents/*.md"))
    names = set(re.findall(r"(?<=[a-z,] )[A-Z][a-zäöü]{4,}", text)) - set(
        re.findall(r"January|February|March|April|June|July|August|September|October|November|December", text)
    )
    figures = set(re.findall(r"\d{1,3}(?:,\d{3})+", text))
    assert len(names) > 50
    assert not {name for name in names if re.search(rf"\b{name}\b", code)} - {"Answer", "Closest", "Total"}
    assert not {figure for figure in figures if figure in code}
