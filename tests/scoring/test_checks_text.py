"""Words, patterns, files, quotations, composition; hostile input; mistakes in a spec."""

from __future__ import annotations

import os
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from eval_pipeline.errors import SpecError
from eval_pipeline.scoring import checks
from eval_pipeline.scoring.checks import CHECKS, CheckResult, Evidence, run_check, validate_check

steady = settings(deadline=None)


def run(spec: dict[str, Any], answer: str | None = None, **evidence: Any) -> CheckResult:
    return run_check(spec, Evidence(answer=answer, **evidence))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Kiel lease", "the KIEL\n\t lease"),
        ("Straße", "STRASSE"),
        ("Müller", "Mu\u0308ller"),
        ("finally", "ﬁ\u00adnally"),
        ("consent", "con\u200bsent"),
        ("עברית", "טקסט \u202bעברית\u202c כאן"),
        ("👩‍⚖️ ruled", "the 👩⚖ ruled"),
        ("12 EUR", "12\u00a0EUR"),
        ("a b", "a\x00b"),
    ],
)
def test_texts_compare_as_they_read(text: str, answer: str) -> None:
    assert run({"contains": text}, answer).verdict == 1
    assert run({"contains_none": [text]}, answer).verdict == 0


def test_whole_words() -> None:
    def words(text: str, answer: str) -> float:
        return run({"contains": {"text": text, "words": True}}, answer).verdict

    assert words("art", "state of the art.") == 1 and words("art", "start smart") == 0
    assert words("§ 5", "see § 5 below") == 1 and words("§ 5", "see § 55") == 0
    assert words("(a)", "x(a)y") == 1 and words("Ü", "Übung") == 0


def test_all_any_none_say_what_they_found() -> None:
    assert run({"contains_all": ["Kiel", "consent"]}, "Kiel only") == CheckResult(0, "the answer does not contain 'consent'")
    assert run({"contains_all": ["Kiel", "consent"]}, "consent, Kiel").verdict == 1
    assert run({"contains_any": ["Kiel", "Bremen"]}, "in Bremen") == CheckResult(1, "the answer contains 'Bremen'")
    assert run({"contains_any": ["Kiel", "Bremen"]}, "in Lübeck").verdict == 0
    assert run({"contains_none": ["Kiel", "Bremen"]}, "in Bremen") == CheckResult(0, "the answer contains 'Bremen'")


def test_equals_is_the_whole_answer() -> None:
    assert run({"equals": "Yes, it is"}, "  yes,  IT is\n").verdict == 1
    assert run({"equals": "Yes"}, "Yes, it is") == CheckResult(0, "the answer is 'Yes, it is', not 'Yes'")


def test_per_occurrence_counts() -> None:
    evidence = Evidence(answer="Foo bar foo; a FOO. " + "bar" * 3)
    assert run_check({"contains": "foo"}, evidence, per_occurrence=True).verdict == 3
    assert run_check({"contains_any": ["foo", "bar"]}, evidence, per_occurrence=True).verdict == 7
    assert run_check({"regex": {"pattern": "foo|bar", "flags": "i"}}, evidence, per_occurrence=True).verdict == 7
    assert run_check({"regex": "quux"}, evidence, per_occurrence=True).verdict == 0
    assert run_check({"regex": "bar"}, evidence).verdict == 1
    with pytest.raises(ValueError, match=r"check `equals` can't count.*use one of: contains, contains_any, regex"):
        validate_check({"equals": "x"}, per_occurrence=True)


def test_regex_flags_and_text_as_it_stands() -> None:
    assert run({"regex": "^kiel$"}, "a\nKiel\nb").verdict == 0
    assert run({"regex": {"pattern": "^kiel$", "flags": "im"}}, "a\nKiel\nb").verdict == 1
    assert run({"regex": r"Kiel\s{2,}lease"}, "Kiel  lease").verdict == 1
    assert run({"regex": "ü"}, "u\u0308").verdict == 1


def test_a_search_in_another_process_finds_the_same() -> None:
    text = "lease of \ud800 Kiel 👩‍⚖️, lease of Bremen " * 5_000
    nested = run_check({"regex": r"(?:\w+\s)+of \S+"}, Evidence(answer="lease of Kiel"), per_occurrence=True)
    long = run_check({"regex": r"lease\s+of\s+\w+"}, Evidence(answer=text), per_occurrence=True)
    assert nested.verdict == 1 and "'lease of Kiel'" in nested.reason
    assert long.verdict == 5_000


@pytest.mark.long
def test_a_search_that_explodes_is_a_mistake_of_the_pattern_and_ends() -> None:
    for pattern in ("(a+)+$", "(a|aa)+$"):
        with pytest.raises(SpecError, match=r"took more than 5 s on a text of \d+ characters"):
            run({"regex": pattern}, "a" * 39 + "b")


def test_in_looks_into_a_text_file() -> None:
    files = {
        "notes/m.txt": "Kiel".encode("utf-16"),
        "u.txt": b"\xef\xbb\xbfKiel",
        "e\u0301.txt": b"Kiel",
        "x.bin": b"PK\x00\xff",
        "z.txt": b" ",
    }
    for name in ("notes/m.txt", "u.txt", "\u00e9.txt"):
        assert run({"equals": {"text": "kiel", "in": f"file:{name}"}}, files=files).verdict == 1
    for name, why in (
        ("x.bin", "not text"),
        ("z.txt", "is empty"),
        ("none.txt", "there is no file 'none.txt'; the agent wrote: 'e\u0301.txt', 'notes/m.txt'"),
    ):
        result = run({"contains": {"text": "Kiel", "in": f"file:{name}"}}, "Kiel", files=files)
        assert (result.verdict, result.absent) == (0, True) and why in result.reason


@pytest.mark.parametrize("answer", [None, "", " \n\u200b\x00"])
def test_no_answer_fails_everything_that_reads_it(answer: str | None) -> None:
    x = {"contains": "x"}
    specs: list[dict[str, Any]] = [
        x,
        {"contains_none": ["x"]},
        {"equals": "x"},
        {"regex": "x"},
        {"number": 1},
        {"date": "2026-01-01"},
        {"json_path": "a"},
        {"cites": "d"},
        {"not": x},
        {"not": {"not": x}},
        {"not": {"all": [x, x]}},
        {"not": {"any": [x, {"file_exists": "f"}]}},
        {"not": {"at_least": {"n": 1, "of": [x]}}},
    ]
    for spec in specs:
        result = run(spec, answer, documents={"d": "x"})
        assert result.verdict == 0 and result.absent, spec
        assert "there is no answer" in result.reason or "the answer is empty" in result.reason


def test_what_absence_cannot_change_is_decided() -> None:
    missing_file: dict[str, Any] = {"file_exists": "f"}
    assert run({"not": missing_file}, None).verdict == 1
    assert run({"not": {"all": [{"contains": "x"}, missing_file]}}, None).verdict == 1
    assert run({"any": [{"contains": "x"}, {"not": missing_file}]}, None).verdict == 1


@steady
@given(st.lists(st.booleans(), min_size=1, max_size=5), st.integers(1, 5))
def test_composition_counts(truths: list[bool], n: int) -> None:
    specs: list[dict[str, Any]] = [{"contains": "yes" if truth else "no"} for truth in truths]
    assert run({"all": specs}, "yes").verdict == all(truths)
    assert run({"any": specs}, "yes").verdict == any(truths)
    assert run({"not": specs[0]}, "yes").verdict == (not truths[0])
    assert run({"at_least": {"n": min(n, len(specs)), "of": specs}}, "yes").verdict == (sum(truths) >= min(n, len(specs)))


def test_file_exists() -> None:
    files = {"memo.docx": b"12345", "out/Data.CSV": b"1", "empty.txt": b"", "odd[1].txt": b"1"}

    def exists(argument: Any) -> float:
        return run({"file_exists": argument}, files=files).verdict

    assert exists("memo.docx") == exists("out/*.CSV") == exists({"suffix": ".csv"}) == exists("odd[1].txt") == 1
    assert exists({"name": "memo.docx", "min_bytes": 5}) == 1 and exists({"name": "memo.docx", "min_bytes": 6}) == 0
    assert exists("empty.txt") == 0 and exists({"name": "empty.txt", "min_bytes": 0}) == 1
    assert exists({"name": "memo*", "suffix": ".pdf"}) == 0
    reason = run({"file_exists": "memo.pdf"}, files=files).reason
    assert reason == "there is no 'memo.pdf'; the agent wrote: 'empty.txt', 'memo.docx', 'odd[1].txt', 'out/Data.CSV'"


DOCUMENT = {
    "leases/kiel.txt": "§ 12 The ten\u00adant shall ﬁrst obtain the “prior written con-\nsent” of the long-\nterm landlord."
}


@pytest.mark.parametrize(
    "answer",
    [
        "It says “shall first obtain the 'prior written consent' of”.",
        'It says "shall  FIRST obtain\nthe prior written consent".',
        "Es heißt „first obtain the prior written consent“.",
        "He wrote «first obtain the prior written con- sent».",
        "See:\n> shall first obtain the prior\n> written consent of the long-term landlord.\n",
        'First "an invented quotation of words", then "obtain the prior written consent".',
    ],
)
def test_a_quotation_that_stands_in_the_document_cites_it(answer: str) -> None:
    assert run({"cites": "leases/kiel.txt"}, answer, documents=DOCUMENT).verdict == 1


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("shall first obtain the prior written consent", "quotes nothing of 4 words or more"),
        ('It says "prior written consent".', "quotes nothing of 4 words or more"),
        ('It says "shall never obtain the prior consent".', "does not stand in 'leases/kiel.txt'"),
    ],
)
def test_no_quotation_or_an_invented_one_does_not(answer: str, why: str) -> None:
    result = run({"cites": "leases/kiel.txt"}, answer, documents=DOCUMENT)
    assert result.verdict == 0 and why in result.reason


def test_a_given_quote_must_stand_in_both() -> None:
    spec: dict[str, Any] = {"cites": {"document": "leases/kiel.txt", "quote": "the long-term landlord"}}
    assert run(spec, "the consent of the long- term Landlord", documents=DOCUMENT).verdict == 1
    assert run(spec, "the consent of the landlord", documents=DOCUMENT).verdict == 0
    with pytest.raises(SpecError, match=r"does not stand in 'leases/kiel\.txt'"):
        run({"cites": {"document": "leases/kiel.txt", "quote": "a short-term landlord"}}, "x", documents=DOCUMENT)
    with pytest.raises(SpecError, match=r"the world has no document 'leases/kile.txt' \(did you mean `leases/kiel.txt`\?\)"):
        run({"cites": "leases/kile.txt"}, "x", documents=DOCUMENT)


MISTAKES: list[tuple[Any, str]] = [
    ({}, "one name with its argument, found nothing"),
    ({"contains": "a", "equals": "b"}, "found contains, equals"),
    ("contains", "found 'contains'"),
    ({"contain_all": ["a"]}, r"no check 'contain_all' \(did you mean `contains_all`\?\)"),
    ({"contains": ["a"]}, r"needs text as `text`, found a list.*write `contains: TEXT`"),
    ({"contains": 5}, "put it in quotes"),
    ({"contains": "\u200b "}, "found an empty one"),
    ({"contains": {"text": "a", "word": True}}, r"no option 'word' \(did you mean `words`\?\)"),
    ({"contains": {"text": "a", "words": "yes"}}, "needs true or false as `words`, found text"),
    ({"contains": {"text": "a", "in": "files:x"}}, "looks in answer or file:<name>"),
    ({"contains_all": "a"}, "needs a list of texts"),
    ({"contains_any": []}, "needs a list of texts"),
    ({"contains_all": ["a", True]}, "put it in quotes"),
    ({"regex": "(a"}, "can't read the pattern"),
    ({"regex": "a*"}, "fits an empty text"),
    ({"regex": {"pattern": "a", "flags": "iq"}}, "no flag 'q'"),
    ({"number": "5"}, "needs a number as `value`, found text"),
    ({"number": True}, "needs a number"),
    ({"number": float("nan")}, "needs a finite number"),
    ({"number": {"value": 5, "tolerance": "5 percent"}}, "as `2%`"),
    ({"number": {"value": 5, "tolerance": -1}}, "negative tolerance"),
    ({"number": {"value": 5, "decimal": ";"}}, "decimal marks"),
    ({"date": "31.03.2026"}, "needs a day as YYYY-MM-DD"),
    ({"date": "2026-02-30"}, "needs a day as YYYY-MM-DD"),
    ({"json_path": "a..b"}, "can't read the path"),
    ({"json_path": {"path": "a", "equals": 1, "number": 1}}, "takes one of"),
    ({"json_path": {"path": "a", "tolerance": 1}}, "without a `number`"),
    ({"file_exists": {"min_bytes": 3}}, "needs a `name` or a `suffix`"),
    ({"file_exists": {"name": "a", "min_bytes": -1}}, "at least 0"),
    ({"cites": {"quote": "a"}}, "needs text as `document`"),
    ({"cites": {"document": "a", "quote": "--'"}}, "needs words in `quote`"),
    ({"all": {"contains": "a"}}, "needs a list of checks"),
    ({"all": [{"contains": "a"}, {"wat": 1}]}, "no check 'wat'"),
    ({"not": [{"contains": "a"}]}, "one name with its argument"),
    ({"at_least": [1]}, "takes a mapping"),
    ({"at_least": {"n": 2, "of": [{"contains": "a"}]}}, "asks for 2 of 1 checks"),
]


@pytest.mark.parametrize(("spec", "message"), MISTAKES)
def test_a_mistake_is_named_with_the_right_form(spec: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        validate_check(spec)


def test_a_check_that_holds_itself_is_refused() -> None:
    endless: dict[str, Any] = {}
    endless["not"] = endless
    with pytest.raises(ValueError, match="nested more than 10 deep"):
        validate_check(endless)


def test_the_table_names_every_check() -> None:
    rows = {line.split()[0] for line in (checks.__doc__ or "").splitlines() if line and not line.startswith((" ", "-"))}
    assert {*CHECKS, *checks.COMPOSED} <= rows


EVERY: list[dict[str, Any]] = [
    {"contains": {"text": "kiel", "words": True}},
    {"contains_all": ["kiel", "x"]},
    {"contains_none": ["kiel"]},
    {"equals": "kiel"},
    {"regex": "kiel"},
    {"regex": r"\bki\w+"},
    {"number": {"value": 4, "unit": "EUR"}},
    {"number": {"value": 4, "near": "1"}},
    {"date": "2026-03-31"},
    {"json_path": {"path": "a", "equals": 1}},
    {"cites": "d"},
    {"cites": {"document": "d", "quote": "kiel"}},
]

HOSTILE = {
    "digits": "1" * 1_000_000,
    "commas": "1," * 250_000,
    "groups": "1,234" + ",567" * 120_000,
    "spaced groups": "1" + " 234" * 120_000,
    "spaces": "x" + " " * 1_000_000 + "x",
    "quotes": '"' * 120_000 + "“" * 120_000 + "»«" * 60_000,
    "open quotes": "„ein Wort " * 50_000,
    "block quotes": "> a\n" * 100_000,
    "fences": "```\n" * 120_000,
    "currencies": "eur €" * 100_000,
    "months": "31. march " * 40_000,
    "dashes": "a-" * 250_000,
    "words": "kiel " * 100_000,
    "surrogates": "\ud800" * 500_000,
    "controls": "".join(map(chr, range(32))) * 20_000,
    "marks": "a" + "\u0301" * 200_000,
    "right to left": "שלום\u202e " * 80_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_huge_hostile_text_is_decided(name: str) -> None:
    """A quadratic step would take many minutes here, and a test may take twenty."""
    for spec in EVERY:
        result = run(spec, HOSTILE[name], documents={"d": "Kiel and " + HOSTILE[name][:1000]})
        assert result.verdict in (0, 1)
        assert len(result.reason) < 2000 and result.reason.isprintable(), spec


@steady
@given(st.text(st.characters(exclude_categories=()), max_size=60), st.sampled_from(EVERY))
def test_any_text_is_decided_with_a_reason_that_can_be_stored(answer: str, spec: dict[str, Any]) -> None:
    result = run(spec, answer, documents={"d": "Kiel"}, files={answer: os.fsencode("x")})
    assert result.verdict in (0, 1)
    assert result.reason.isprintable() and result.reason.encode()


@steady
@given(st.text(st.characters(exclude_categories=()), min_size=1, max_size=30), st.text(max_size=20), st.text(max_size=20))
def test_a_text_is_found_in_what_holds_it(text: str, before: str, after: str) -> None:
    try:
        validate_check({"contains": text})
    except ValueError as error:
        assert "empty" in str(error)
        return
    assert run({"contains": text}, f"{before} {text} {after}").verdict == 1


@pytest.mark.parametrize(
    "spec, form",
    [
        ({"contains": "rent", "in": "file:rent.md"}, "`contains: {text: rent, in: file:rent.md}`"),
        ({"in": "answer", "regex": "a+"}, "`regex: {pattern: a+, in: answer}`"),
        ({"contains_all": ["a", "b"], "words": True}, "`contains_all: {texts: [a, b], words: true}`"),
    ],
)
def test_options_beside_a_check_are_put_into_it_in_the_message(spec: dict[str, Any], form: str) -> None:
    with pytest.raises(ValueError) as caught:
        validate_check(spec)
    assert form in str(caught.value)
    validate_check(yaml.safe_load(form.strip("`")))
