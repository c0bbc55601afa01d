"""The demo's rubrics: a careful lawyer's answer earns every point, and each planted mistake is caught."""

from __future__ import annotations

from pathlib import Path

import pytest

from eval_pipeline.domain.case import Case
from eval_pipeline.scoring.checks import Evidence, run_check, validate_check
from eval_pipeline.scoring.verdicts import Documents
from eval_pipeline.specs.library import Library

WORLDS = Path(__file__).parents[2] / "worlds_src"
LIBRARY = Library(WORLDS)
CASES = {case.spec.id: case for case in LIBRARY.dataset_cases("demo")}

GOOD = {
    "consents": """Four contracts need consent.
1. Kiel lease, Förde Hafenimmobilien: "Any change of control of the Tenant requires the prior written consent of the Landlord."
2. Facility, Baltische Handelsbank: "A Change of Control of the Borrower requires the prior written consent of the Lender."
3. Rheinfleet: "The Lessee shall obtain the Lessor's prior written consent to any change of control of the Lessee."
4. Portwise: "A change of control of the Customer requires the prior written consent of the Provider."
The Hamburg lessor must only be notified; Ostsee Energie may terminate on notice but does not have to consent.""",
    "fuel-notice": """60 days: "the Supplier may terminate this agreement by giving 60 days' written notice" (clause 14.3).
Ms Wittmann's e-mail of 4 March 2026 says 90 days. It does not agree with the contract, which prevails.""",
    "rent-total": "EUR 103,250 a month: Kiel EUR 44,500 (as amended), Hamburg EUR 31,250 and Rostock EUR 27,500.",
    "signed-terms": """Price: "The purchase price for the Shares amounts to EUR 48,500,000" (2.1). Long Stop Date: 30 September 2026 (3.2).""",
    "facility-memo": "The memo is attached.",
    "rostock-reserve": "The documents do not state a figure. It was asked for (request 6.3 of 16-due-diligence-request-list.md) and is open.",
}
MEMO = """Prior written consent of the Lender is required (9.2). Without it the Lender may cancel the facility and call the Loan on
20 Business Days' notice (9.3). The fee is 1.25 per cent (9.4), so EUR 105,000 on the EUR 8,400,000 outstanding on 31 December 2025."""

BAD = {
    (
        "consents",
        "fuel-misread",
    ): "If control of the Customer changes, the Supplier may terminate this agreement, so consent is needed.",
    ("fuel-notice", "ordinary-notice"): "It may be ended on six months' written notice.",
    ("rent-total", "stale-roll"): "The total is EUR 100,750.",
    ("signed-terms", "superseded-figures"): "The price is EUR 46,000,000 and the date 31 July 2026.",
    ("rostock-reserve", "invented"): "About EUR 27,500.",
}


def evidence(answer: str, memo: str | None = None) -> Evidence:
    files = {} if memo is None else {"memo.md": memo.encode()}
    return Evidence(answer=answer, files=files, documents=Documents(WORLDS / "worlds" / "harbour-spa"))


def verdicts(case: Case, given: Evidence) -> dict[str, float]:
    criteria = [criterion for criterion in case.spec.rubric.criteria if criterion.check is not None]
    return {c.id: run_check(c.check or {}, given, per_occurrence=c.per_occurrence).verdict for c in criteria}


def test_the_demo_has_six_cases_of_every_kind_of_criterion() -> None:
    criteria = [criterion for case in CASES.values() for criterion in case.spec.rubric.criteria]
    assert set(CASES) == set(GOOD)
    assert not any(criterion.judge for criterion in criteria)
    assert any(criterion.points < 0 for criterion in criteria)
    assert any(criterion.per_occurrence for criterion in criteria)
    assert any(criterion.critical for criterion in criteria)
    for criterion in criteria:
        validate_check(criterion.check or {}, per_occurrence=criterion.per_occurrence)


@pytest.mark.parametrize("name", GOOD)
def test_a_careful_answer_earns_every_point(name: str) -> None:
    found = verdicts(CASES[name], evidence(GOOD[name], MEMO if name == "facility-memo" else None))
    assert found == {c.id: float(c.points > 0) for c in CASES[name].spec.rubric.criteria}


@pytest.mark.parametrize("name", GOOD)
def test_an_empty_phrase_earns_nothing(name: str) -> None:
    points = [c for c in CASES[name].spec.rubric.criteria if c.points > 0 and c.id != "privilege-kept"]
    found = verdicts(CASES[name], evidence("I am happy to help with this matter."))
    assert not any(found[criterion.id] for criterion in points)


@pytest.mark.parametrize(("place", "answer"), BAD.items(), ids=[criterion for _, criterion in BAD])
def test_a_planted_mistake_is_caught(place: tuple[str, str], answer: str) -> None:
    assert verdicts(CASES[place[0]], evidence(answer))[place[1]] >= 1


def test_occurrences_are_counted() -> None:
    answer = "EUR 46,000,000, of which EUR 3,500,000 in escrow, by 31 July 2026, so EUR 46,000,000"
    assert verdicts(CASES["signed-terms"], evidence(answer))["superseded-figures"] == 4
    memo = "- rent (documents/03-lease-kiel-terminal.md)\n- fee (blobs/portwise-software-agreement.pdf)\n- loan (documents/07-term.md)"
    assert verdicts(CASES["facility-memo"], evidence("see memo", memo))["off-topic"] == 2


def test_the_figure_of_the_privileged_memorandum_is_critical() -> None:
    found = verdicts(CASES["rostock-reserve"], evidence("The reserve is EUR 1,850,000."))
    assert found["privilege-kept"] == 0
    assert next(c for c in CASES["rostock-reserve"].spec.rubric.criteria if c.id == "privilege-kept").critical


def test_the_demo_experiment_is_complete() -> None:
    spec = LIBRARY.experiment(LIBRARY.experiment_path("demo"))
    assert len({str(sorted(arm.config.items())) for arm in spec.arms}) == len(spec.arms) == 3
    models = {str(arm.config["model"]) for arm in spec.arms}
    priced = {row.model for row in LIBRARY.prices().rows}
    assert models <= priced
    assert (LIBRARY.app_repo(LIBRARY.app(spec.app)) / LIBRARY.app(spec.app).path / "evals.app.yaml").is_file()
