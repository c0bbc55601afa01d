"""The published core samples, where they lie beside the repository. Counts and sums were taken by hand from the table."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from pathlib import Path

import pytest
import yaml

from eval_pipeline.domain.case import CaseSpec
from eval_pipeline.specs.importers.biglaw import ImportedCase, import_biglaw_bench

PUBLISHED = Path(__file__).parents[4] / "shared" / "data" / "biglaw-bench"
TABLE = PUBLISHED / "core-samples.csv"

pytestmark = pytest.mark.skipif(not TABLE.is_file(), reason=f"the published samples are not at {PUBLISHED}")


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, ImportedCase], Path]:
    into = tmp_path_factory.mktemp("published")
    return {case.source: case for case in import_biglaw_bench(TABLE, PUBLISHED / "documents", into)}, into


@pytest.mark.parametrize(
    ("number", "name", "affirmative"),
    [
        ("4", "biglaw-4.4-regulatory-advising", [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2]),
        ("5", "biglaw-5.5-document-review-analysis", [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 1]),
        ("49", "biglaw-49.49-drafting", [2, 2, 1, 1, 1, 1, 1]),
    ],
)
def test_points(imported: tuple[dict[str, ImportedCase], Path], number: str, name: str, affirmative: list[int]) -> None:
    case = imported[0][number]
    assert case.case == name
    assert [item.points for item in case.criteria] == [*affirmative, -1.0, -0.5]
    assert [item.per_occurrence for item in case.criteria] == [False] * len(affirmative) + [True, True]


def test_sums(imported: tuple[dict[str, ImportedCase], Path]) -> None:
    sums = {number: sum(item.points for item in case.criteria if item.points > 0) for number, case in imported[0].items()}
    assert sums == {"4": 15, "5": 14, "49": 9}


def test_each_text_stands_in_the_table_with_its_points(imported: tuple[dict[str, ImportedCase], Path]) -> None:
    with TABLE.open(encoding="utf-8", newline="") as file:
        rubrics = {row["Number"]: row["Rubric"] for row in csv.DictReader(file)}
    for number, case in imported[0].items():
        lines = [re.sub(r"^\s*\w+\.? ", "", line) for line in rubrics[number].splitlines()]
        for item in case.criteria:
            points = f"{item.points:g}"
            forms = {f"{item.text} ({points} point)", f"{item.text} ({points} points)"}
            forms |= {f"{points} point for every {item.text}", f"{points} points for every {item.text}"}
            assert len(forms.intersection(lines)) == 1, item.text
        assert sum("point)" in line or "points)" in line or " for every " in line for line in lines) == len(case.criteria)


def test_prompts_and_documents_are_as_published(imported: tuple[dict[str, ImportedCase], Path]) -> None:
    cases, into = imported
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = {row["Number"]: row for row in csv.DictReader(file)}
    for number, case in cases.items():
        world, _, name = case.case.partition(".")
        data = yaml.safe_load((into / "worlds" / world / "cases" / f"{name}.yaml").read_text("utf-8"))
        spec = CaseSpec.model_validate_json(json.dumps(data))
        assert spec.prompt == rows[number]["Prompt"]
        assert spec.source == {"dataset": "biglaw-bench", "number": number, "task": rows[number]["Task"].strip()}
    source = {path.name: hashlib.sha256(path.read_bytes()).digest() for path in (PUBLISHED / "documents").iterdir()}
    copied = {path.name: hashlib.sha256(path.read_bytes()).digest() for path in into.glob("worlds/*/documents/*")}
    assert len(source) == 8 and copied == source
    assert not (into / "worlds/biglaw-49/documents").exists()
