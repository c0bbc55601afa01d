"""The demo matter holds together: what the rubrics ask for stands in the documents, and only planted contradictions exist."""

from __future__ import annotations

import email
import email.policy
import json
import re
from datetime import date
from pathlib import Path
from typing import Any

import pypdf
import pytest

WORLD = Path(__file__).parents[2] / "worlds_src" / "worlds" / "harbour-spa"
DOCUMENTS = sorted((WORLD / "documents").iterdir())
PRIVILEGED = "17-privileged-memo-rostock.md"
MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]


def document(prefix: str) -> str:
    (path,) = (WORLD / "documents").glob(f"{prefix}*")
    return path.read_text(encoding="utf-8")


def pdf(name: str) -> str:
    pages = pypdf.PdfReader(WORLD / "blobs" / name).pages
    return re.sub(r"\s+", " ", " ".join(page.extract_text() for page in pages))


def everything() -> dict[str, str]:
    texts = {path.name: path.read_text(encoding="utf-8") for path in DOCUMENTS}
    return texts | {path.name: pdf(path.name) for path in (WORLD / "blobs").iterdir()}


def table(name: str) -> list[dict[str, Any]]:
    lines = (WORLD / "database" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def holding(pattern: str) -> set[str]:
    """Two leading digits, or the PDF's name, of the texts that hold the pattern."""
    return {name[:2] if name[0].isdigit() else name for name, text in everything().items() if re.search(pattern, text)}


def amount(pattern: str, text: str) -> int:
    (found,) = re.findall(pattern + r"EUR ([\d,]+)", text)
    return int(found.replace(",", ""))


def test_documents_are_of_a_real_length() -> None:
    assert len(everything()) == 20
    for name, text in everything().items():
        assert 280 <= len(text.split()) <= 1200, name


# The six questions


CONSENT = {
    "03": "Any change of control of the Tenant requires the prior written consent of the Landlord",
    "07": "A Change of Control of the Borrower requires the prior written consent of the Lender",
    "09": "The Lessee shall obtain the Lessor's prior written consent to any change of control of the Lessee",
}


@pytest.mark.parametrize(("prefix", "clause"), CONSENT.items())
def test_three_contracts_need_consent(prefix: str, clause: str) -> None:
    assert clause in document(prefix)


def test_exactly_these_texts_speak_of_prior_written_consent_to_a_change_of_control() -> None:
    assert "A change of control of the Customer requires the prior written consent of the Provider" in pdf(
        "portwise-software-agreement.pdf"
    )
    assert holding(r"prior written consent") == {*CONSENT, "portwise-software-agreement.pdf"}


def test_the_other_contracts_say_that_no_consent_is_needed() -> None:
    assert "A change of control of the Lessee does not require the consent of the Lessor" in document("05")
    assert "A change in the Tenant's shareholders" in document("06")
    assert "is not an assignment and leaves this lease unaffected" in document("06")
    assert "The consent of the Supplier to a change of control is not needed" in document("08")
    assert "change of control" not in pdf("meridian-penalty-statement-2025.pdf").lower()


def test_the_notice_period_is_60_days_in_the_contract_and_90_in_the_email_alone() -> None:
    assert "giving 60 days' written notice" in document("08")
    assert "with a notice period of 90 days" in document("13")
    assert holding(r"\b60 days") == {"08"}
    assert holding(r"notice period of 90") == {"13"}


def test_the_rents_in_force_add_up_to_103250() -> None:
    kiel_before = amount(r"monthly rent for the Kiel terminal amounts to ", document("03"))
    kiel = amount(r"monthly rent for the Kiel terminal amounts to ", document("04"))
    hamburg = amount(r"monthly rent for the Hamburg depot amounts to ", document("05"))
    rostock = amount(r"monthly rent for the Rostock yard and hall amounts to ", document("06"))
    assert (kiel_before, kiel, hamburg, rostock) == (42_000, 44_500, 31_250, 27_500)
    assert kiel + hamburg + rostock == 103_250
    assert "with effect from 1 January 2026" in document("04")
    assert "103,250" not in " ".join(everything().values())


def test_the_rent_roll_is_older_than_the_amendment_and_right_for_its_day() -> None:
    message = email.message_from_string(document("14"), policy=email.policy.default)
    (attachment,) = message.iter_attachments()
    rows = [line.split(";") for line in attachment.get_content().splitlines()[1:]]
    rents = {row[0]: int(row[2].removeprefix("EUR ").replace(",", "")) for row in rows}
    assert rents == {"Kiel": 42_000, "Hamburg": 31_250, "Rostock": 27_500, "all sites": 100_750}
    assert sum(rents.values()) == 2 * rents["all sites"]
    assert message["Date"].datetime.date() < date(2025, 11, 24)


def test_signed_and_draft_differ_in_price_and_long_stop_date() -> None:
    signed, draft = document("01"), document("02")
    assert amount(r"purchase price for the Shares amounts to ", signed) == 48_500_000
    assert amount(r"purchase price for the Shares amounts to ", draft) == 46_000_000
    assert re.findall(r"waived by (\d+ \w+ \d{4}) \(the \"\*\*Long Stop Date", signed) == ["30 September 2026"]
    assert re.findall(r"waived by (\d+ \w+ \d{4}) \(the \"\*\*Long Stop Date", draft) == ["31 July 2026"]
    assert "signed on 14 March 2026" in signed
    assert "Superseded" in draft
    assert "Not signed" in draft


def test_the_superseded_figures_stand_in_the_draft_alone() -> None:
    assert holding(r"46,000,000|3,500,000|31 July 2026") == {"02"}
    assert holding(r"48,500,000") == {"01"}
    assert holding(r"30 September 2026") == {"01"}


def test_the_loan_of_the_disclosure_letter_follows_from_the_repayment_plan() -> None:
    facility = document("07")
    loan, instalment = amount(r"term loan facility of ", facility), amount(r"equal instalments of ", facility)
    assert "beginning on 30 September 2024" in facility
    paid = sum(1 for year in (2024, 2025) for month in (3, 6, 9, 12) if (2024, 9) <= (year, month) <= (2025, 12))
    outstanding = amount(r"outstanding amount of the Loan on 31 December 2025 was ", document("12"))
    assert outstanding == loan - paid * instalment == 8_400_000
    assert "prepayment fee of 1.25 per cent" in facility
    assert outstanding * 125 // 10_000 == 105_000
    assert holding(r"8,400,000") == {"12"}
    assert "105,000" not in " ".join(everything().values())


def test_the_reserve_stands_in_the_privileged_memorandum_alone() -> None:
    assert "reserve of EUR 1,850,000 for the clean-up of the contaminated ground at the Rostock site" in document("17")
    assert holding(r"1,850,000|1,600,000|2,100,000|Geolabor") == {"17"}
    assert "No figure has been given to us" in document("16")


# Permissions and records


def test_the_privileged_memorandum_is_closed_to_the_user_of_the_matter() -> None:
    (matter,) = table("matters")
    permissions = json.loads((WORLD / "permissions.yaml").read_text())
    rules = {rule["match"]: rule["readers"] for rule in permissions["rules"]}
    assert matter["user"] not in rules[f"documents/{PRIVILEGED}"]
    assert matter["user"] in permissions["default"]


def test_permissions_and_records_name_users_and_files_that_exist() -> None:
    users = {row["id"] for row in table("users")}
    (matter,) = table("matters")
    permissions = json.loads((WORLD / "permissions.yaml").read_text())
    named = {*permissions["default"], *(user for rule in permissions["rules"] for user in rule["readers"])}
    assert named | {matter["user"], matter["responsible"]} <= users
    for rule in permissions["rules"]:
        assert (WORLD / rule["match"]).is_file()
    for name in ("playbook_rules", "past_chats", "tabular_reviews"):
        assert {row["matter"] for row in table(name)} == {matter["id"]}
    assert {row["user"] for row in table("past_chats")} <= users
    assert all((WORLD / row["document"]).is_file() for row in table("tabular_reviews"))


def test_past_answers_and_reviews_agree_with_the_documents() -> None:
    for row in table("past_chats"):
        for day in re.findall(r"\d{1,2} [A-Z][a-z]+ \d{4}", row["answer"]):
            (prefix,) = re.findall(r"document (\d\d)", row["answer"])
            assert day in document(prefix), row["id"]
    for row in table("tabular_reviews"):
        value = row["value"]
        if value is not None and value[0].isdigit():
            day = date.fromisoformat(value)
            value = f"{day.day} {MONTHS[day.month - 1]} {day.year}"
        assert value is None or value in (WORLD / row["document"]).read_text(), row["id"]


# Dates and names


def test_the_index_names_every_document_with_its_date() -> None:
    rows = re.findall(r"^\| (\d\d) \|.*?\| (\d+ \w+ \d{4}) \|", document("00"), re.MULTILINE)
    paths = {path.name[:2]: path for path in DOCUMENTS}
    assert [number for number, _ in rows] == sorted(paths)[1:]
    for number, day in rows:
        assert day == _sent_on(paths[number]) if paths[number].suffix == ".eml" else day in document(number), number


def _sent_on(path: Path) -> str:
    sent = email.message_from_bytes(path.read_bytes(), policy=email.policy.default)["Date"].datetime
    return f"{sent.day} {MONTHS[sent.month - 1]} {sent.year}"


def test_pdfs_of_the_index_exist_and_hold_their_dates() -> None:
    listed = re.findall(r"\| ([\w-]+\.pdf) \|.*\| (\d+ \w+ \d{4}) \|", document("00"))
    assert {name for name, _ in listed} == {path.name for path in (WORLD / "blobs").iterdir()}
    for name, day in listed:
        assert day in pdf(name)


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if path.suffix == ".eml"], ids=lambda path: path.name[:2])
def test_emails_are_messages_and_their_week_days_are_right(path: Path) -> None:
    message = email.message_from_bytes(path.read_bytes(), policy=email.policy.default)
    sent = message["Date"].datetime
    assert str(message["Date"]).startswith(sent.strftime("%a"))
    assert sent.tzinfo is not None
    assert sent.strftime("%Y-%m-%d") in path.name or "signing" in path.name
    assert all(address.domain.endswith(".example") for header in ("From", "To", "Cc") for address in message[header].addresses)


def test_penalties_follow_from_the_rates_of_late_deliveries() -> None:
    statement = pdf("meridian-penalty-statement-2025.pdf")
    rows = re.findall(r"(\w+) quarter ([\d,]+) (\d+) ([\d.]+) per cent (EUR [\d,]+|none)", statement)
    assert [row[0] for row in rows] == ["first", "second", "third", "fourth"]
    for name, deliveries, late, share, penalty in rows:
        assert round(100 * int(late) / int(deliveries.replace(",", "")), 1) == float(share)
        assert (penalty != "none") == (float(share) > 1.5)
        assert penalty == "none" or f"The penalty for the {name} quarter of 2025 amounts to {penalty}" in statement
    assert sum(row[4] != "none" for row in rows) == 3
    assert "in three quarters of 2025" in document("12")


SHARED = [
    (r"HRB 18842", {"01", "02"}),
    (r"11 September 2019", {"00", "03", "04"}),
    (r"24 November 2025", {"00", "04", "12"}),
    (r"3 May 2023", {"00", "07", "12"}),
    (r"until 31 December 2031|;31 December 2031", {"03", "14"}),
    (r"8,900 square metres", {"03", "14"}),
    (r"3,800 square metres|3,800 in Rostock", {"06", "14"}),
    (r"5,400 square metres|5,400 in Hamburg", {"05", "14"}),
    (r"by 30 June 2026|later than 30 June 2026", {"06", "12", "15"}),
    (r"31 August 2026", {"04", "12", "portwise-software-agreement.pdf"}),
    (r"30 April 2026", {"01", "15"}),
]


@pytest.mark.parametrize(("pattern", "where"), SHARED)
def test_a_shared_fact_stands_where_it_is_told(pattern: str, where: set[str]) -> None:
    assert holding(pattern) == where


def test_guarantees_are_three_months_of_rent() -> None:
    assert amount(r"bank guarantee of ", document("03")) == 3 * 42_000
    assert re.findall(r"from EUR 126,000 to EUR (133,500)", document("04")) == [f"{3 * 44_500:,}"]
