"""What a person may write, and where each complaint says it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st

from eval_pipeline.domain.case import CaseSpec
from eval_pipeline.domain.experiment import ExperimentSpec
from eval_pipeline.errors import SpecError
from eval_pipeline.specs.yaml_file import YamlFile, parse_model

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
SCALAR = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
DATA = st.recursive(SCALAR, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=10)


def read(text: str | bytes) -> Any:
    return YamlFile.from_bytes(text if isinstance(text, bytes) else text.encode(), "f.yaml").data


def complaint(text: str | bytes) -> str:
    with pytest.raises(SpecError) as caught:
        read(text)
    assert caught.value.exit_code == 2
    return str(caught.value)


@profile(max_examples=50, deadline=None)
@given(DATA)
def test_what_yaml_writes_is_read_as_yaml_reads_it(data: Any) -> None:
    text = yaml.safe_dump(data, allow_unicode=True)
    assert read(text) == yaml.safe_load(text)


@given(st.binary(max_size=200) | st.text("{}[]&*!|>-:,#'\"? \n\tab1", max_size=60).map(str.encode))
def test_whatever_bytes_it_reads_it_answers_or_complains(content: bytes) -> None:
    try:
        read(content)
    except SpecError as error:
        assert str(error).startswith("f.yaml:")


def test_dates_and_times_stay_the_text_they_are() -> None:
    data = read("a: 2026-01-31\nb: 2026-01-31T10:00:00Z\nc: 12:30\nd: 1:02:03.5\n2026-01-01: e\nf: 12.5\ng: 2_000")
    assert data == {
        "a": "2026-01-31",
        "b": "2026-01-31T10:00:00Z",
        "c": "12:30",
        "d": "1:02:03.5",
        "2026-01-01": "e",
        "f": 12.5,
        "g": 2000,
    }


def test_keys_are_text_whatever_they_look_like() -> None:
    assert read("1: a\ntrue: b\nnull: c\non: d\n'<<': e") == {"1": "a", "true": "b", "null": "c", "on": "d", "<<": "e"}


def test_an_alias_means_the_same_again() -> None:
    assert read("a: &x {n: [1, 2]}\nb: *x\nc: [*x, *x]") == {"a": {"n": [1, 2]}, "b": {"n": [1, 2]}, "c": [{"n": [1, 2]}] * 2}


def laughs(depth: int, width: int) -> str:
    lines = ["a0: &a0 " + "x" * 50]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, depth)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text, line, what",
    [
        ("a: 1\nb: 2\na: 3", 3, "the key 'a' appears twice"),
        ("a:\n  b: 1\n  b: 2", 3, "the key 'b' appears twice"),
        ("a: [1", 1, "is not valid YAML"),
        ("a:\n\t- x", 2, "is not valid YAML"),
        ("a: 1\n b: 2", 2, "is not valid YAML"),
        ("a: 1\n---\nb: 2", 2, "another document"),
        ("a: *x", 1, "undefined alias 'x'"),
        (b"a: 1\nb: \xff", 2, "is not UTF-8"),
        ("a: 1".encode("utf-16"), 1, "is not UTF-8"),
        ("a: 1\nb: \x01", 2, "'\\x01' can't stand there"),
        ('a: 1\nb: "x\\0y"', 2, "a NUL"),
        ('a: 1\n"b\\0": 1', 2, "a NUL"),
        ('a: 1\nb: ["\\ud800"]', 2, "surrogate"),
        ("a: 1\nb: .nan", 2, ".nan is not a number"),
        ("a: [1,\n -.inf]", 2, "-.inf is not a number"),
        ("a: " + "9" * 5000, 1, "digits"),
        ("a: 1\n? [b]\n: c", 2, "a key must be plain text"),
        ("a: 1\n{b: c}: d", 2, ""),
        ("a: &x {b: 1}\nc:\n  <<: *x", 3, "merging (<<) is not supported"),
        ("a: &a [*a]", 1, "nested more than 100 deep"),
        ("x: 1\na: &a\n  b: *a", 2, "nested more than 100 deep"),
        ("[" * 150 + "]" * 150, 1, "nested more than 100 deep"),
        ("{a: " * 20_000, 1, "nested more than 100 deep"),
        (laughs(12, 10), 1, "aliases (*name) repeat so much"),
        ("a: &a " + "x" * 10_000 + "\nb: [" + "*a, " * 100 + "]", 1, "aliases (*name) repeat so much"),
        ("a: 1\nb: !!python/object/apply:os.system ['exit 1']", 2, "!!python/object/apply:os.system is not supported"),
        ("a: !!python/object:os.PathLike {}", 1, "is not supported"),
        ("a: !!python/name:os.system ''", 1, "is not supported"),
        ("!!python/object/new:os.system [x]", 1, "is not supported"),
        ("a: !!binary aGk=", 1, "!!binary is not supported"),
        ("a: !!set {x, y}", 1, "!!set is not supported"),
        ("a: !mine x", 1, "!mine is not supported"),
    ],
)
def test_what_cannot_be_read(text: str | bytes, line: int, what: str) -> None:
    said = complaint(text)
    assert said.startswith(f"f.yaml:{line}: "), said
    assert what in said


def test_many_aliases_of_something_small_are_fine() -> None:
    assert read("a: &a xyz\nb: [" + "*a, " * 5000 + "]")["b"] == ["xyz"] * 5000


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
def test_nothing_is_nothing(text: str) -> None:
    assert read(text) is None


def test_a_byte_order_mark_is_no_text() -> None:
    assert read(b"\xef\xbb\xbfa: 1") == {"a": 1}


@pytest.mark.parametrize("folder", [False, True])
def test_a_file_that_cannot_be_read(tmp_path: Path, folder: bool) -> None:
    if folder:
        (tmp_path / "x.yaml").mkdir()
    with pytest.raises(SpecError, match=r"worlds/x\.yaml: can.t be read: (No such file|Is a directory)"):
        YamlFile(tmp_path / "x.yaml", "worlds/x.yaml")


def complaints(model: Any, text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        parse_model(YamlFile.from_bytes(text.encode(), "f"), model)
    return str(caught.value).splitlines()


CASE = "id: c\nprompt: Do it.\nrubric:\n  criteria:\n  - {id: a, text: A, points: 1, check: {contains: x}}\n"


@pytest.mark.parametrize(
    "text, said",
    [
        (CASE + "tag: [x]", "f:6: unknown key 'tag'; did you mean 'tags'?"),
        (CASE + "zzzzzz: [x]", "f:6: unknown key 'zzzzzz'; known: id, prompt, rubric, deliverables"),
        (CASE + "limits:\n  wall: 5", "f:7: unknown key 'wall'; did you mean 'wall_s'?"),
        (CASE + "limits:\n  wall_s: 0", "f:7: limits.wall_s: must be greater than 0, found 0"),
        (CASE + "limits:\n  wall_s: '5'", "f:7: limits.wall_s: must be a valid number, found '5'"),
        (CASE + "limits: {turns: 1.5}", "f:6: limits.turns: must be a valid integer"),
        (CASE + "limits: {turns: yes}", "f:6: limits.turns: must be a valid integer, found True"),
        (CASE + "deliverables: memo.docx", "f:6: deliverables: must be a list, found 'memo.docx'"),
        (CASE + "deliverables:", "f:6: deliverables: must be a list, found nothing"),
        (CASE + "deliverables: [a/memo.docx, ../memo.docx]", "f:6: deliverables.1: '../memo.docx' can't be written by an agent"),
        (CASE + "tags: [köln]", "f:6: tags.0: 'köln' is not a name: a to z and 0 to 9"),
        (CASE + "tags: [ok, 'No Good']", "f:6: tags.1: 'No Good' is not a name"),
        (CASE + "split: test", "f:6: split: must be 'dev' or 'holdout', found 'test'"),
        (CASE.replace("prompt: Do it.\n", ""), "f:1: the key 'prompt' is missing"),
        (CASE.replace("Do it.", "''"), "f:2: prompt: String should have at least 1 character"),
        (CASE.replace("points: 1, ", ""), "f:5: the key 'rubric.criteria.0.points' is missing"),
        (CASE.replace("points: 1", "points: 0"), "f:5: rubric.criteria.0: criterion 'a' is worth 0 points"),
        (CASE.replace("points: 1", "points: -1"), "f:3: rubric: no criterion has positive points"),
        (CASE.replace("points: 1", "points: 1, judge: true"), "f:5: rubric.criteria.0: criterion 'a' needs exactly one of"),
        (CASE.replace(", check: {contains: x}", ""), "f:5: rubric.criteria.0: criterion 'a' needs exactly one of"),
        (
            CASE.replace("points: 1", "points: 1, cap: 3"),
            "f:5: rubric.criteria.0: criterion 'a' has a cap but is not per_occurrence",
        ),
        (CASE.replace("points: 1", "point: 1"), "f:5: unknown key 'point'; did you mean 'points'?"),
        (CASE + "  - {id: a, text: A, points: 1, judge: true}", "f:3: rubric: criterion ids appear twice: a"),
        ("- id: c", "f:1: must hold keys and values: id, prompt"),
        ("", "f:1: must hold keys and values: id, prompt"),
    ],
)
def test_complaints_about_a_case(text: str, said: str) -> None:
    found = complaints(CaseSpec, text)
    assert any(line.startswith(said) for line in found), found


def test_every_complaint_is_told_at_once_with_its_line() -> None:
    found = complaints(CaseSpec, "id: A B\nprompt: 5\nrubric: {}\nlimit: {}\n")
    assert [line.partition(": ")[0] for line in found] == ["f:1", "f:2", "f:3", "f:4"]


EXPERIMENT = "name: x\ndataset: d\napp: t\narms:\n- {name: a, ref: main}\n"


@pytest.mark.parametrize(
    "text, said",
    [
        (EXPERIMENT + "- {name: b, reff: main}", "f:6: unknown key 'reff'; did you mean 'ref'?"),
        (EXPERIMENT + "- {name: a, ref: main}", "f:4: arms: arm names appear twice: a"),
        (EXPERIMENT + "baseline: b", "f:6: baseline: 'b' is not one of the arms: a"),
        (EXPERIMENT + "budget: {usd: 5}", "f:6: unknown key 'usd'"),
        (EXPERIMENT + "trials: 0", "f:6: trials: must be greater than or equal to 1, found 0"),
        (EXPERIMENT + "policy: mean", "f:6: policy: must be 'clip_cell', 'raw', 'minmax' or 'all_pass', found 'mean'"),
    ],
)
def test_complaints_about_an_experiment(text: str, said: str) -> None:
    found = complaints(ExperimentSpec, text)
    assert any(line.startswith(said) for line in found), found


def test_what_was_found_is_not_repeated_at_length() -> None:
    (found,) = complaints(CaseSpec, CASE + f"limits: {'x' * 5000}")
    assert len(found) < 200
