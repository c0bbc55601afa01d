"""The whole import on the invented data set beside this file. Expected values were written by hand from data/samples.csv."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import shutil
import unicodedata
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from eval_pipeline.domain.case import CaseSpec
from eval_pipeline.domain.experiment import DatasetSpec
from eval_pipeline.domain.world import WorldSpec
from eval_pipeline.errors import SpecError
from eval_pipeline.specs.importers.biglaw import import_biglaw_bench
from eval_pipeline.specs.importers.tree import ImportedCase, ImportedCriterion
from eval_pipeline.specs.library import Library
from eval_pipeline.store.snapshots import scan_world

DATA = Path(__file__).parent / "data"
TABLE = DATA / "samples.csv"
DOCUMENTS = DATA / "documents"
HEADER = ["Number", "Category", "Task Type", "Task", "Prompt", "Document(s)", "Rubric"]
RUBRIC = "Affirmative Points:\n1. Is it there? (1 point)"

EXPECTED = [
    ImportedCase(
        case="biglaw-7.7-due-diligence",
        world="biglaw-7",
        source="7",
        criteria=(
            ImportedCriterion("Is the response a memo with a heading for each question?", 2.0, False),
            ImportedCriterion("Does the response state that the lease ends on 30 June 2031?", 1.0, False),
            ImportedCriterion("Does the response state that a change of control needs consent in writing?", 3.0, False),
            ImportedCriterion(
                "Does the response state that the landlord’s refusal needs a cause (e.g., a competitor)?", 1.5, False
            ),
            ImportedCriterion("hallucination", -1.0, True),
            ImportedCriterion("statement of accurate but extraneous or misconstrued information", -0.5, True),
        ),
    ),
    ImportedCase(
        case="biglaw-7.8-document-review-analysis",
        world="biglaw-7",
        source="8",
        criteria=(
            ImportedCriterion("date out of order", -0.5, True),
            ImportedCriterion("Does the timeline begin with the side letter of 3 March 2024?", 1.0, False),
            ImportedCriterion("Does the timeline have the minutes of 9 April 2024?", 1.0, False),
            ImportedCriterion("Does the response say that “M. Orth” reports a refusal?", 0.5, False),
        ),
    ),
    ImportedCase(
        case="biglaw-12.12-drafting",
        world="biglaw-12",
        source="12",
        criteria=(
            ImportedCriterion("Is the response one clause?", 1.0, False),
            ImportedCriterion("Is the clause free of Latin?", 1.0, False),
            ImportedCriterion("Does the clause end the contract when control changes?", 2.0, False),
            ImportedCriterion("Does the clause give notice of 30 days?", 1.0, False),
            ImportedCriterion("the clause names a party", -2.0, False),
            ImportedCriterion("hallucination", -1.0, True),
        ),
    ),
]


def tree(folder: Path) -> dict[str, str]:
    """Every file with the digest of its content; folders end with `/`."""
    return {
        f"{path.relative_to(folder)}{'/' if path.is_dir() else ''}": hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else ""
        for path in folder.rglob("*")
    }


def load(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text("utf-8"))


def table(path: Path, *rows: list[str], header: list[str] = HEADER) -> Path:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([header, *rows])
    path.write_bytes(text.getvalue().encode())
    return path


def row(number: str, documents: str = "N/A", rubric: str = RUBRIC, task_type: str = "Drafting") -> list[str]:
    return [number, "Litigation", task_type, f"Task {number}", f"Prompt {number}", documents, rubric]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def folder_with(path: Path, *files: str) -> Path:
    path.mkdir()
    for name in files:
        (path / name).write_text(f"content of {name}")
    return path


def failure(table_path: Path, documents: Path, into: Path) -> SpecError:
    with pytest.raises(SpecError) as caught:
        import_biglaw_bench(table_path, documents, into)
    return caught.value


def test_the_cases_are_those_written_by_hand(tmp_path: Path) -> None:
    assert import_biglaw_bench(TABLE, DOCUMENTS, tmp_path / "out") == EXPECTED


def test_asdict_is_the_json_form(tmp_path: Path) -> None:
    cases = json.loads(json.dumps([asdict(case) for case in import_biglaw_bench(TABLE, DOCUMENTS, tmp_path)]))
    assert set(cases[0]) == {"case", "world", "source", "criteria"}
    assert cases[1]["criteria"][0] == {"text": "date out of order", "points": -0.5, "per_occurrence": True}


def test_the_files_are_a_world_a_matter_with_documents_named_as_on_disk(tmp_path: Path) -> None:
    import_biglaw_bench(TABLE, DOCUMENTS, tmp_path)
    on_disk = {f"worlds/biglaw-7/documents/{name}": digest for name, digest in tree(DOCUMENTS).items()}
    written = tree(tmp_path)
    assert len(on_disk) == 4
    assert {name: digest for name, digest in written.items() if "/documents/" in name and not name.endswith("/")} == on_disk
    assert {name for name in written if name not in on_disk} == {
        "worlds/",
        "worlds/biglaw-7/",
        "worlds/biglaw-7/world.yaml",
        "worlds/biglaw-7/documents/",
        "worlds/biglaw-7/cases/",
        "worlds/biglaw-7/cases/7-due-diligence.yaml",
        "worlds/biglaw-7/cases/8-document-review-analysis.yaml",
        "worlds/biglaw-12/",
        "worlds/biglaw-12/world.yaml",
        "worlds/biglaw-12/cases/",
        "worlds/biglaw-12/cases/12-drafting.yaml",
        "datasets/",
        "datasets/biglaw-bench.yaml",
    }


def test_the_data_set_has_the_names_it_is_there_for() -> None:
    assert "7b. Side Letter.pdf " in names(DOCUMENTS)
    decomposed = unicodedata.normalize("NFD", "7c. Protokoll der Geschäftsführung.pdf")
    assert decomposed in names(DOCUMENTS)
    assert unicodedata.normalize("NFC", decomposed) in TABLE.read_text("utf-8")
    assert decomposed not in TABLE.read_text("utf-8")
    assert TABLE.read_bytes().startswith(b"\xef\xbb\xbfNumber,")


def test_a_world_names_its_documents_and_nothing_it_lacks(tmp_path: Path) -> None:
    import_biglaw_bench(TABLE, DOCUMENTS, tmp_path)
    with_documents = load(tmp_path / "worlds/biglaw-7/world.yaml")
    assert list(with_documents.items()) == [
        ("id", "biglaw-7"),
        ("title", "Summarise the consents a share sale needs."),
        ("documents", "documents/"),
    ]
    without = load(tmp_path / "worlds/biglaw-12/world.yaml")
    assert without == {"id": "biglaw-12", "title": "Draft a clause."}
    assert WorldSpec.model_validate(without).parts() == {}


def test_a_case_file_is_a_case(tmp_path: Path) -> None:
    import_biglaw_bench(TABLE, DOCUMENTS, tmp_path)
    data = load(tmp_path / "worlds/biglaw-7/cases/7-due-diligence.yaml")
    assert list(data) == ["id", "prompt", "tags", "source", "rubric"]
    spec = CaseSpec.model_validate_json(json.dumps(data))
    assert spec.prompt == "Which consents does the sale of Harbour Logistics need?\nAnswer in a memo."
    assert spec.tags == ("biglaw-bench", "transactional", "due-diligence")
    assert spec.source == {"dataset": "biglaw-bench", "number": "7", "task": "Summarise the consents a share sale needs."}
    assert [(item.id, item.group) for item in spec.rubric.criteria] == [
        ("1-1-memo-heading-each-question", "Structure"),
        ("3-1-1-lease-ends-30-june-2031", "Substance / Lease"),
        ("3-1-2-change-control-needs-consent-writing", "Substance / Lease"),
        ("3-2-1-landlords-refusal-needs-cause-e", "Substance / Side letter (2024)"),
        ("neg-1-hallucination", None),
        ("neg-2-statement-accurate-but-extraneous-misconstrued", None),
    ]
    assert all(item.judge and item.check is None for item in spec.rubric.criteria)


def test_the_case_file_reads_well(tmp_path: Path) -> None:
    import_biglaw_bench(TABLE, DOCUMENTS, tmp_path)
    text = (tmp_path / "worlds/biglaw-12/cases/12-drafting.yaml").read_text("utf-8")
    assert text.startswith("id: 12-drafting\nprompt: Draft a change of control clause.\ntags:\n  - biglaw-bench\n")
    assert "      points: -2\n      judge: true\n" in text
    memo = (tmp_path / "worlds/biglaw-7/cases/7-due-diligence.yaml").read_text("utf-8")
    assert "prompt: |-\n  Which consents does the sale of Harbour Logistics need?\n  Answer in a memo.\n" in memo


def test_the_dataset_selects_every_imported_case_and_no_other(tmp_path: Path) -> None:
    cases = import_biglaw_bench(TABLE, DOCUMENTS, tmp_path)
    spec = DatasetSpec.model_validate_json(json.dumps(load(tmp_path / "datasets/biglaw-bench.yaml")))
    assert (spec.name, spec.cases) == ("biglaw-bench", ("tag:biglaw-bench",))
    tagged = {
        f"{path.parts[-3]}.{path.stem}" for path in tmp_path.glob("worlds/*/cases/*.yaml") if "biglaw-bench" in load(path)["tags"]
    }
    assert tagged == {case.case for case in cases}


def test_the_library_reads_what_was_imported(tmp_path: Path) -> None:
    cases = import_biglaw_bench(TABLE, DOCUMENTS, tmp_path)
    library = Library(tmp_path)
    selected = {case.name: case.spec.rubric for case in library.dataset_cases("biglaw-bench")}
    assert selected.keys() == {case.case for case in cases}
    for case in cases:
        assert tuple(ImportedCriterion(c.text, c.points, c.per_occurrence) for c in selected[case.case].criteria) == case.criteria


def test_a_world_is_packed_with_every_document(tmp_path: Path) -> None:
    import_biglaw_bench(TABLE, DOCUMENTS, tmp_path)
    world = Library(tmp_path).world("biglaw-7")
    files = [entry for entry in scan_world(world.folder, world.spec).entries if entry.type == "file"]
    assert {entry.path: entry.sha256 for entry in files} == {
        f"documents/{name}": digest for name, digest in tree(DOCUMENTS).items()
    }
    assert not any(entry.executable for entry in files)


def test_a_world_without_documents_is_loaded(tmp_path: Path) -> None:
    import_biglaw_bench(TABLE, DOCUMENTS, tmp_path)
    assert Library(tmp_path).world("biglaw-12").spec.parts() == {}


def test_importing_twice_changes_nothing(tmp_path: Path) -> None:
    first = import_biglaw_bench(TABLE, DOCUMENTS, tmp_path)
    before = {path: path.stat().st_ino for path in tmp_path.rglob("*")}
    assert import_biglaw_bench(TABLE, DOCUMENTS, tmp_path) == first
    assert {path: path.stat().st_ino for path in tmp_path.rglob("*")} == before


def test_the_order_of_rows_and_columns_does_not_matter(tmp_path: Path) -> None:
    rows = list(csv.reader(io.StringIO(TABLE.read_text("utf-8-sig"), newline="")))
    turned = [list(reversed(cells)) for cells in (rows[3], rows[2], rows[1])]
    path = table(tmp_path / "turned.csv", *turned, header=list(reversed(rows[0])))
    cases = import_biglaw_bench(path, DOCUMENTS, tmp_path / "turned")
    assert cases == list(reversed(EXPECTED))
    import_biglaw_bench(TABLE, DOCUMENTS, tmp_path / "straight")
    assert tree(tmp_path / "turned") == tree(tmp_path / "straight")


def test_other_content_of_the_target_stays(tmp_path: Path) -> None:
    (tmp_path / "worlds/other").mkdir(parents=True)
    (tmp_path / "worlds/other/world.yaml").write_text("id: other\ntitle: Other\n")
    (tmp_path / "app.yaml").write_text("name: app\n")
    import_biglaw_bench(TABLE, DOCUMENTS, tmp_path)
    assert (tmp_path / "worlds/other/world.yaml").read_text() == "id: other\ntitle: Other\n"
    assert {path.name for path in tmp_path.iterdir()} == {"app.yaml", "worlds", "datasets"}


@pytest.mark.parametrize(
    "changed",
    [
        "worlds/biglaw-7/cases/7-due-diligence.yaml",
        "worlds/biglaw-7/documents/7b. Side Letter.pdf ",
        "worlds/biglaw-12/world.yaml",
        "datasets/biglaw-bench.yaml",
    ],
)
def test_different_content_is_named_and_nothing_is_written(tmp_path: Path, changed: str) -> None:
    import_biglaw_bench(TABLE, DOCUMENTS, tmp_path)
    shutil.rmtree(tmp_path / "worlds/biglaw-12/cases")
    (tmp_path / changed).write_bytes((tmp_path / changed).read_bytes() + b" ")
    before = tree(tmp_path)
    error = failure(TABLE, DOCUMENTS, tmp_path)
    assert error.where == str(tmp_path / changed)
    assert "different content" in str(error)
    assert tree(tmp_path) == before


def test_a_world_that_is_there_keeps_exactly_its_documents(tmp_path: Path) -> None:
    import_biglaw_bench(TABLE, DOCUMENTS, tmp_path)
    stray = tmp_path / "worlds/biglaw-7/documents/stray.pdf"
    stray.write_text("stray")
    assert failure(TABLE, DOCUMENTS, tmp_path).where == str(stray)
    stray.unlink()
    lost = tmp_path / "worlds/biglaw-7/documents/7a. Exhibit — Kiel Lease.PDF"
    lost.unlink()
    assert failure(TABLE, DOCUMENTS, tmp_path).where == str(lost)
    assert not lost.exists()


def test_what_is_placed_is_taken_back_when_the_rest_can_not_be(tmp_path: Path) -> None:
    (tmp_path / "worlds").mkdir()
    (tmp_path / "datasets").write_text("a file where a folder must be")
    before = tree(tmp_path)
    error = failure(TABLE, DOCUMENTS, tmp_path)
    assert "can't be written" in str(error)
    assert tree(tmp_path) == before


def test_an_interrupted_import_is_completed(tmp_path: Path) -> None:
    import_biglaw_bench(TABLE, DOCUMENTS, tmp_path)
    whole = tree(tmp_path)
    shutil.rmtree(tmp_path / "worlds/biglaw-7")
    (tmp_path / "datasets/biglaw-bench.yaml").unlink()
    import_biglaw_bench(TABLE, DOCUMENTS, tmp_path)
    assert tree(tmp_path) == whole


def test_a_grown_table_adds_its_rows_and_keeps_the_names(tmp_path: Path) -> None:
    documents = folder_with(tmp_path / "documents", "a.pdf", "b.pdf")
    small = table(tmp_path / "small.csv", row("2", "a.pdf"), row("10"))
    grown = table(tmp_path / "grown.csv", row("11", "b.pdf"), row("10"), row("3", "a.pdf"), row("2", "a.pdf"))
    before = import_biglaw_bench(small, documents, tmp_path / "out")
    after = import_biglaw_bench(grown, documents, tmp_path / "out")
    assert [case.case for case in before] == ["biglaw-2.2-drafting", "biglaw-10.10-drafting"]
    assert [case.case for case in after] == [
        "biglaw-11.11-drafting",
        "biglaw-10.10-drafting",
        "biglaw-2.3-drafting",
        "biglaw-2.2-drafting",
    ]
    assert {path.name for path in (tmp_path / "out/worlds").iterdir()} == {"biglaw-2", "biglaw-10", "biglaw-11"}


def test_rows_are_one_matter_through_other_rows(tmp_path: Path) -> None:
    documents = folder_with(tmp_path / "documents", "a.pdf", "b.pdf", "c.pdf", "d.pdf")
    path = table(
        tmp_path / "t.csv",
        row("10", "c.pdf\nb.pdf"),
        row("9", "a.pdf"),
        row("30", "d.pdf"),
        row("20", "b.pdf\na.pdf"),
    )
    cases = import_biglaw_bench(path, documents, tmp_path / "out")
    assert [case.world for case in cases] == ["biglaw-9", "biglaw-9", "biglaw-30", "biglaw-9"]
    assert names(tmp_path / "out/worlds/biglaw-9/documents") == ["a.pdf", "b.pdf", "c.pdf"]


def test_a_case_that_moved_to_another_world_is_not_imported_twice(tmp_path: Path) -> None:
    documents = folder_with(tmp_path / "documents", "a.pdf")
    import_biglaw_bench(table(tmp_path / "t.csv", row("5", "a.pdf")), documents, tmp_path / "out")
    before = tree(tmp_path / "out")
    error = failure(table(tmp_path / "t.csv", row("5", "a.pdf"), row("4", "a.pdf")), documents, tmp_path / "out")
    assert error.where == str(tmp_path / "out/worlds/biglaw-5/cases/5-drafting.yaml")
    assert error.hint is not None and "'biglaw-4'" in error.hint
    assert tree(tmp_path / "out") == before


@pytest.mark.parametrize("none", ["N/A", "n/a ", "", "None"])
def test_a_row_without_documents_is_a_world_of_its_own(tmp_path: Path, none: str) -> None:
    path = table(tmp_path / "t.csv", row("1", none), row("2", none))
    cases = import_biglaw_bench(path, folder_with(tmp_path / "documents"), tmp_path / "out")
    assert [case.world for case in cases] == ["biglaw-1", "biglaw-2"]


@pytest.mark.parametrize(
    ("on_disk", "in_table"),
    [
        ("A — b.PDF", "A — b.PDF \t"),
        (" lead.pdf", "lead.pdf"),
        ("Case.PDF", "case.pdf"),
        ("STRASSE.pdf", "straße.pdf"),
        (unicodedata.normalize("NFC", "Ärger.pdf"), unicodedata.normalize("NFD", "Ärger.pdf")),
        (unicodedata.normalize("NFD", "Ärger.pdf"), unicodedata.normalize("NFC", "ärger.pdf")),
    ],
)
def test_a_document_is_found_and_keeps_its_name(tmp_path: Path, on_disk: str, in_table: str) -> None:
    path = table(tmp_path / "t.csv", row("1", in_table))
    import_biglaw_bench(path, folder_with(tmp_path / "documents", on_disk), tmp_path / "out")
    assert names(tmp_path / "out/worlds/biglaw-1/documents") == [on_disk]


def test_exact_case_goes_before_other_case(tmp_path: Path) -> None:
    documents = folder_with(tmp_path / "documents", "a.pdf", "A.PDF", "A.pdf")
    import_biglaw_bench(table(tmp_path / "t.csv", row("1", "A.pdf")), documents, tmp_path / "out")
    assert names(tmp_path / "out/worlds/biglaw-1/documents") == ["A.pdf"]


def _no_file(documents: Path) -> None:
    (documents / "x.pdf").mkdir()


def _link(documents: Path) -> None:
    """Who made the table may be a stranger, and the file anybody's."""
    (documents / "x.pdf").symlink_to("/etc/hostname")


def _pipe(documents: Path) -> None:
    os.mkfifo(documents / "x.pdf")


def _twice(documents: Path) -> None:
    (documents / "X.pdf").write_text("one")
    (documents / "x.PDF").write_text("two")


def _blank(documents: Path) -> None:
    (documents / "x.pdf").write_text("one")
    (documents / "x.pdf ").write_text("two")


def _close(documents: Path) -> None:
    (documents / "xx.pdf").write_text("one")


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (_no_file, "is not a file"),
        (_link, "is a link"),
        (_pipe, "is not a file"),
        (_twice, "ambiguous"),
        (_blank, "ambiguous"),
        (_close, "missing"),
    ],
)
def test_a_document_that_can_not_be_had_is_named_with_its_line(
    tmp_path: Path, prepare: Callable[[Path], None], message: str
) -> None:
    documents = folder_with(tmp_path / "documents", "a.pdf")
    prepare(documents)
    path = table(tmp_path / "t.csv", row("1"), row("2", "a.pdf\nx.pdf"))
    error = failure(path, documents, tmp_path / "out")
    # Header, then two lines of row 1 (its rubric has two), then row 2 with its second document one line below.
    assert error.where == f"{path}:5"
    assert message in str(error) and "'x.pdf'" in str(error)
    assert not (tmp_path / "out").exists()


def test_a_path_is_no_document(tmp_path: Path) -> None:
    documents = folder_with(tmp_path / "documents")
    (tmp_path / "secret.pdf").write_text("secret")
    path = table(tmp_path / "t.csv", row("1", "../secret.pdf"))
    assert "missing" in str(failure(path, documents, tmp_path / "out"))


def test_one_matter_can_not_hold_names_that_collide(tmp_path: Path) -> None:
    documents = folder_with(tmp_path / "documents", "a.pdf", "A.PDF")
    path = table(tmp_path / "t.csv", row("1", "a.pdf\nA.PDF"))
    error = failure(path, documents, tmp_path / "out")
    assert error.where in (f"{path}:2", f"{path}:3")
    assert "the same name" in str(error)


@pytest.mark.parametrize(
    ("rows", "line", "message"),
    [
        ([row("1"), row("1")], 4, "'1'"),
        ([row("1."), row("1")], 4, "'1'"),
        ([row("4", task_type="1 x"), row("4-1", task_type="x")], 4, "'4-1-x'"),
        ([row("1"), row(" ")], 4, "'Number' is empty"),
        ([row("—")], 2, "makes no name"),
        ([row("1" * 30)], 2, "makes no name"),
        ([[*row("1")[:4], " \n ", "N/A", RUBRIC]], 2, "'Prompt' is empty"),
        ([[*row("1")[:4], "a\nb\nc", "N/A", " "]], 4, "'Rubric' is empty"),
        ([["1", "—", *row("1")[2:]]], 2, "makes no tag"),
        ([], 1, "no row"),
    ],
)
def test_a_row_that_makes_no_case_is_named_with_its_line(tmp_path: Path, rows: list[list[str]], line: int, message: str) -> None:
    path = table(tmp_path / "t.csv", *rows)
    error = failure(path, folder_with(tmp_path / "documents"), tmp_path / "out")
    assert error.where == f"{path}:{line}"
    assert message in str(error)
    assert not (tmp_path / "out").exists()


def test_a_broken_rubric_in_the_last_row_leaves_nothing_behind(tmp_path: Path) -> None:
    raw = TABLE.read_bytes().replace(b"30 days? (1 point)", b"30 days? (one point)")
    (tmp_path / "t.csv").write_bytes(raw)
    error = failure(tmp_path / "t.csv", DOCUMENTS, tmp_path / "out")
    # Line 44 of data/samples.csv as an editor counts.
    assert error.where == f"{tmp_path / 't.csv'}:44"
    assert not (tmp_path / "out").exists()


def test_files_that_are_not_there_are_the_authors_mistake(tmp_path: Path) -> None:
    assert failure(tmp_path / "none.csv", DOCUMENTS, tmp_path / "out").where == str(tmp_path / "none.csv")
    assert failure(TABLE, tmp_path / "none", tmp_path / "out").where == str(tmp_path / "none")
