from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eval_pipeline.domain.ids import check_slug
from eval_pipeline.errors import SpecError
from eval_pipeline.specs.importers.slugs import slug
from eval_pipeline.specs.importers.tree import place_tree, to_yaml

texts = st.text(st.characters(exclude_categories=["Cs"])) | st.lists(
    st.sampled_from(["word", "  ", "\n", " ", "\t", "a: b", "- c", "# d", "'", '"', "\u2028", "é", "x" * 60, "…"]), max_size=40
).map("".join)

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@unhurried
@given(texts)
def test_text_comes_back_from_yaml_as_it_was(text: str) -> None:
    data = {"prompt": text, "rubric": {"criteria": [{"text": text, "group": text}]}}
    assert yaml.safe_load(to_yaml(data)) == data


def test_long_text_is_a_block() -> None:
    assert to_yaml({"a": "word " * 30 + "end", "b": "one\ntwo\n", "c": "short"}) == (
        f"a: >-\n  {'word ' * 23}word\n  {'word ' * 6}end\nb: |\n  one\n  two\nc: short\n"
    )


@unhurried
@given(st.text())
def test_a_slug_is_a_name_or_empty(text: str) -> None:
    name = slug(text)
    assert name == "" or check_slug(name) == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Regulatory & Advising", "regulatory-advising"),
        ("  The patients’ Geschäft ", "the-patients-geschaft"),
        ("a" * 70, "a" * 64),
        ("word " * 20, "-".join(["word"] * 13)),
        ("words " * 20, "-".join(["words"] * 10)),
        ("是否", ""),
    ],
)
def test_slugs(text: str, name: str) -> None:
    assert slug(text) == name


def test_a_source_that_can_not_be_copied_leaves_nothing(tmp_path: Path) -> None:
    files = {PurePosixPath("a/text"): "text", PurePosixPath("a/copy"): tmp_path / "missing"}
    with pytest.raises(SpecError, match="missing"):
        place_tree(files, tmp_path / "out", frozenset())
    assert list((tmp_path / "out").iterdir()) == []


def test_a_folder_in_the_place_of_a_file_differs(tmp_path: Path) -> None:
    (tmp_path / "a/text").mkdir(parents=True)
    with pytest.raises(SpecError) as caught:
        place_tree({PurePosixPath("a/text"): "text"}, tmp_path, frozenset())
    assert caught.value.where == str(tmp_path / "a/text")


def test_missing_files_join_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/one").write_text("1")
    place_tree({PurePosixPath("a/one"): "1", PurePosixPath("a/b/two"): "2", PurePosixPath("c"): "3"}, tmp_path, frozenset())
    assert {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()} == {
        "a/one": "1",
        "a/b/two": "2",
        "c": "3",
    }
