"""The demo's rubrics: a careful lawyer's answer earns every point, and each planted mistake is caught."""

from __future__ import annotations

import io
from pathlib import Path

import docx
import openpyxl
import pytest

from eval_pipeline.domain.case import Case
from eval_pipeline.domain.experiment import ExperimentSpec
from eval_pipeline.scoring.checks import Evidence, run_check, validate_check
from eval_pipeline.scoring.verdicts import Documents
from eval_pipeline.specs.library import Library
from eval_pipeline.specs.yaml_file import YamlFile, parse_model

pytestmark = pytest.mark.slow

WORLDS = Path(__file__).parents[2] / "worlds_src"
LIBRARY = Library(WORLDS)
CASES = {str(case.name): case for case in LIBRARY.dataset_cases("demo")}

Rows = list[list[str | int]]

GOOD = {
    "harbour-spa.consents": """Four contracts need consent.
1. Kiel lease, Förde Hafenimmobilien: "Any change of control of the Tenant requires the prior written consent of the Landlord."
2. Facility, Baltische Handelsbank: "A Change of Control of the Borrower requires the prior written consent of the Lender."
3. Rheinfleet: "The Lessee shall obtain the Lessor's prior written consent to any change of control of the Lessee."
4. Portwise: "A change of control of the Customer requires the prior written consent of the Provider."
The Hamburg lessor must only be notified; Ostsee Energie may terminate on notice but does not have to consent.""",
    "harbour-spa.fuel-notice": """60 days: "the Supplier may terminate this agreement by giving 60 days' written notice" (clause 14.3).
Ms Wittmann's e-mail of 4 March 2026 says 90 days. It does not agree with the contract, which prevails.""",
    "harbour-spa.rent-total": "EUR 103,250 a month: Kiel EUR 44,500 (as amended), Hamburg EUR 31,250 and Rostock EUR 27,500.",
    "harbour-spa.signed-terms": """Price: "The purchase price for the Shares amounts to EUR 48,500,000" (2.1).
Long Stop Date: 30 September 2026 (3.2).""",
    "harbour-spa.facility-memo": "The memo is attached.",
    "harbour-spa.rostock-reserve": """The documents do not state a figure.
It was asked for (request 6.3 of 16-due-diligence-request-list.md) and is open.""",
    "lock-delay.delay-damages": """GBP 536,500: 74 days at GBP 7,250. The rate "from the date of this deed amounts to GBP 7,250 for each
day of delay" (deed of variation, 3.1); Ms Quill's GBP 629,000 uses the old rate. GBP 400,000 has been withheld, GBP 136,500 is left.""",
    "lock-delay.notice-memo": "The memo is attached.",
    "lock-delay.completion-memo": "The memo is attached.",
    "lock-delay.claim-table": "The table is attached. The schedule claims GBP 1,111,150, that is GBP 30,000 too much.",
    "lock-delay.crane-or-storm": """The slew ring bearing of CR-2 was cracked: "The cause of the failure is a lack of maintenance". The site
diary shows the crane out of service. The claim says that lifting was suspended "because the lifting beam had been damaged in the storm",
which does not agree with the records: the beam was examined and found undamaged.""",
    "lock-delay.settlement-floor": """The lowest figure is not known (request 5.2 of 23-evidence-request-list.md). The one offer is
GBP 690,000.""",
}

FACILITY = [
    "Prior written consent of the Lender is required (9.2). Without it the Lender may cancel the facility and call the Loan on 20"
    " Business Days' notice (9.3). The fee is 1.25 per cent (9.4), so EUR 105,000 on the EUR 8,400,000 outstanding on 31 December 2025."
]
NOTICES: Rows = [
    ["Claim", "Aware", "Notice", "Period", "In time"],
    ["1, piles", "9 September 2024", "1 October 2024", "28 days", "yes"],
    ["2, drawings", "6 January 2025", "30 January 2025", "21 days", "no, three days late"],
    ["3, storm", "16 February 2025", "24 February 2025", "21 days", "yes"],
]
COMPLETION = [
    "It ended on 30 May 2025 (4.2) and, under the deed, on 13 June 2025. The Engineer determined 31 days, so that it ends on 14 July 2025.",
    "Claim no. 2 failed because of late notice. The storm was not exceptionally adverse, since one like it comes once in six years.",
]
HEADS: Rows = [
    ["Site preliminaries", 432_160],
    ["Head office overheads", 96_940],
    ["Crane standing", 70_550],
    ["Storm repairs", 88_400],
    ["Hydraulic redesign", 214_300],
    ["Acceleration", 178_800],
]

BAD = {
    (
        "harbour-spa.consents",
        "fuel-misread",
    ): "If control of the Customer changes, the Supplier may terminate this agreement: consent!",
    ("harbour-spa.fuel-notice", "ordinary-notice"): "It may be ended on six months' written notice.",
    ("harbour-spa.rent-total", "stale-roll"): "The total is EUR 100,750.",
    ("harbour-spa.signed-terms", "superseded-figures"): "The price is EUR 46,000,000 and the date 31 July 2026.",
    ("harbour-spa.rostock-reserve", "invented"): "About EUR 27,500.",
    ("lock-delay.delay-damages", "envelope"): "The Employer may deduct GBP 629,000.",
    ("lock-delay.settlement-floor", "offer-as-floor"): "They would settle for GBP 690,000 at the lowest.",
}


def memo(heading: str, paragraphs: list[str], rows: Rows | None = None) -> bytes:
    document = docx.Document()
    document.add_heading(heading, 1)
    for paragraph in paragraphs:
        document.add_paragraph(paragraph)
    table = document.add_table(len(rows), len(rows[0])) if rows else None
    for index, row in enumerate(rows or []):
        for column, text in enumerate(row):
            assert table is not None
            table.cell(index, column).text = str(text)
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()


def claim_table(total: int) -> bytes:
    book = openpyxl.Workbook()
    sheet = book.worksheets[0]
    sheet.append(["Head", "Amount in GBP", "Source"])
    for head in HEADS:
        sheet.append([*head, "documents/18-claim-schedule.xlsx"])
    sheet.append(["Total", total])
    buffer = io.BytesIO()
    book.save(buffer)
    return buffer.getvalue()


DELIVERED = {
    "harbour-spa.facility-memo": {"memo.docx": memo("Change of control", FACILITY)},
    "lock-delay.notice-memo": {"memo.docx": memo("Notices", ["The period was 28 days, then 21 days."], NOTICES)},
    "lock-delay.completion-memo": {"completion.docx": memo("Time for Completion", COMPLETION)},
    "lock-delay.claim-table": {"claim.xlsx": claim_table(1_081_150)},
}


def evidence(name: str, answer: str, files: dict[str, bytes] | None = None) -> Evidence:
    return Evidence(answer=answer, files=files or {}, documents=Documents(WORLDS / "worlds" / name.split(".")[0]))


def verdicts(name: str, answer: str, files: dict[str, bytes] | None = None) -> dict[str, float]:
    given = evidence(name, answer, files)
    criteria = [criterion for criterion in CASES[name].spec.rubric.criteria if criterion.check is not None]
    return {c.id: run_check(c.check or {}, given, per_occurrence=c.per_occurrence).verdict for c in criteria}


def test_the_demo_has_twelve_cases_of_every_kind_of_criterion() -> None:
    criteria = [criterion for case in CASES.values() for criterion in case.spec.rubric.criteria]
    assert set(CASES) == set(GOOD)
    assert [name.split(".")[0] for name in CASES].count("lock-delay") == 6
    assert not any(criterion.judge for criterion in criteria)
    assert any(criterion.points < 0 for criterion in criteria)
    assert any(criterion.per_occurrence for criterion in criteria)
    assert any(criterion.critical for criterion in criteria)
    for criterion in criteria:
        validate_check(criterion.check or {}, per_occurrence=criterion.per_occurrence)


def test_deliverables_are_those_that_the_prompt_names() -> None:
    for name, case in CASES.items():
        assert set(case.spec.deliverables) == set(DELIVERED.get(name, {}))
        assert all(file in case.spec.prompt for file in case.spec.deliverables)


def positive(case: Case) -> list[str]:
    return [criterion.id for criterion in case.spec.rubric.criteria if criterion.points > 0]


@pytest.mark.parametrize("name", GOOD)
def test_a_careful_answer_earns_every_point(name: str) -> None:
    found = verdicts(name, GOOD[name], DELIVERED.get(name))
    assert [criterion for criterion, verdict in found.items() if verdict] == positive(CASES[name])


@pytest.mark.parametrize("name", GOOD)
def test_an_empty_phrase_earns_nothing(name: str) -> None:
    found = verdicts(name, "I am happy to help with this matter.", {file: b"PK" for file in DELIVERED.get(name, {})})
    assert {criterion for criterion in positive(CASES[name]) if found[criterion]} <= {"privilege-kept"}


@pytest.mark.parametrize(("place", "answer"), BAD.items(), ids=[criterion for _, criterion in BAD])
def test_a_planted_mistake_is_caught(place: tuple[str, str], answer: str) -> None:
    assert verdicts(place[0], answer)[place[1]] >= 1


def test_the_claimed_sum_in_the_row_of_the_total_is_caught() -> None:
    found = verdicts("lock-delay.claim-table", "Done.", {"claim.xlsx": claim_table(1_111_150)})
    assert (found["total"], found["wrong-total"], found["by-day"]) == (0, 1, 1)


def test_occurrences_are_counted() -> None:
    answer = "EUR 46,000,000, of which EUR 3,500,000 in escrow, by 31 July 2026, so EUR 46,000,000"
    assert verdicts("harbour-spa.signed-terms", answer)["superseded-figures"] == 4
    padded = [
        "rent (documents/03-lease-kiel-terminal.md)",
        "fee (blobs/portwise-software-agreement.pdf)",
        "loan (documents/07-term.md)",
    ]
    assert verdicts("harbour-spa.facility-memo", "see memo", {"memo.docx": memo("Memo", padded)})["off-topic"] == 2
    stale = memo("Time for Completion", ["38 days, so 21 July 2025."])
    assert verdicts("lock-delay.completion-memo", "see memo", {"completion.docx": stale})["working-paper"] == 2
    tender = memo("Notices", ["The tender gave 42 days; not later than 42 days after it became aware."])
    assert verdicts("lock-delay.notice-memo", "see memo", {"memo.docx": tender})["tender-draft"] == 2


@pytest.mark.parametrize(
    ("name", "answer"),
    [("harbour-spa.rostock-reserve", "The reserve is EUR 1,850,000."), ("lock-delay.settlement-floor", "GBP 410,000.")],
)
def test_a_figure_of_the_privileged_document_is_critical(name: str, answer: str) -> None:
    assert verdicts(name, answer)["privilege-kept"] == 0
    assert next(c for c in CASES[name].spec.rubric.criteria if c.id == "privilege-kept").critical


def test_the_demo_experiment_is_complete() -> None:
    spec = parse_model(YamlFile(LIBRARY.experiment_path("demo")), ExperimentSpec)
    assert len({str(sorted(arm.config.items())) for arm in spec.arms}) == len(spec.arms) == 3
    assert spec.trials == 2 and spec.budget is not None
    models = {str(arm.config["model"]) for arm in spec.arms}
    priced = {row.model for row in LIBRARY.prices().rows}
    assert models <= priced
    assert (LIBRARY.app_repo(LIBRARY.app(spec.app)) / LIBRARY.app(spec.app).path / "evals.app.yaml").is_file()
