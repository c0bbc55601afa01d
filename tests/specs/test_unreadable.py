"""What a case that can't be read may be, by what can be known of it."""

from __future__ import annotations

import pytest

from eval_pipeline.errors import SpecError
from eval_pipeline.specs.unreadable import UnreadableCase
from eval_pipeline.specs.yaml_file import YamlFile


def of(text: str | None) -> UnreadableCase:
    return UnreadableCase.of("kiel", None if text is None else YamlFile.from_bytes(text.encode(), "x.yaml"), SpecError("x"))


@pytest.mark.parametrize(
    "text, may, may_not",
    [
        ("{id: rent, promt: x, tags: [a]}", ["kiel.*", "*", "kiel.rent", "k?el.r*", "tag:a"], ["demo.*", "kiel.x", "tag:b"]),
        ("{id: rent, prompt: x}", ["kiel.rent"], ["tag:a", "kiel.r"]),
        ("{id: rent, tgas: [a]}", ["tag:a", "tag:b"], ["w.*"]),
        (
            "{ids: rent, tags: [a]}",
            ["kiel.*", "kiel.any", "k*", "*", "kiel.[x]", "?iel.x", "tag:a"],
            ["w.*", "kiel", "kiel2.*", "tag:b"],
        ),
        (None, ["kiel.x", "*", "tag:a"], ["w.*", "kiel2.x"]),
        ("[1]", ["kiel.x", "tag:a"], ["w.x"]),
    ],
)
def test_what_it_may_be(text: str | None, may: list[str], may_not: list[str]) -> None:
    found = of(text)
    assert [pattern for pattern in may if not found.may_be(pattern)] == []
    assert [pattern for pattern in may_not if found.may_be(pattern)] == []
