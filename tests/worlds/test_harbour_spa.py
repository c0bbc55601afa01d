"""The demo matter holds together: what the rubrics ask for stands in the documents, and only planted contradictions exist."""

from __future__ import annotations

import re
from datetime import date

import pytest
from matter_files import Matter, message

M = Matter("harbour-spa")
SOFTWARE, PENALTIES, REGISTER = (
    "portwise-software-agreement.pdf",
    "meridian-penalty-statement-2025.pdf",
    "commercial-register-extract.pdf",
)
holding, amount = M.holding, M.amount


# The six questions


CONSENT = {
    "03": "Any change of control of the Tenant requires the prior written consent of the Landlord",
    "07": "A Change of Control of the Borrower requires the prior written consent of the Lender",
    "09": "The Lessee shall obtain the Lessor's prior written consent to any change of control of the Lessee",
}


@pytest.mark.parametrize(("prefix", "clause"), CONSENT.items())
def test_three_contracts_need_consent(prefix: str, clause: str) -> None:
    assert clause in M.texts[prefix]


def test_exactly_these_texts_speak_of_prior_written_consent_to_a_change_of_control() -> None:
    assert "A change of control of the Customer requires the prior written consent of the Provider" in M.texts[SOFTWARE]
    assert holding(r"prior written consent") == {*CONSENT, SOFTWARE}


def test_the_other_contracts_say_that_no_consent_is_needed() -> None:
    assert "A change of control of the Lessee does not require the consent of the Lessor" in M.texts["05"]
    assert "A change in the Tenant's shareholders" in M.texts["06"]
    assert "is not an assignment and leaves this lease unaffected" in M.texts["06"]
    assert "The consent of the Supplier to a change of control is not needed" in M.texts["08"]
    assert "change of control" not in M.texts[PENALTIES].lower()


def test_the_notice_period_is_60_days_in_the_contract_and_90_in_the_email_alone() -> None:
    assert "giving 60 days' written notice" in M.texts["08"]
    assert "with a notice period of 90 days" in M.texts["13"]
    assert holding(r"\b60 days") == {"08"}
    assert holding(r"notice period of 90") == {"13"}


def test_the_rents_in_force_add_up_to_103250() -> None:
    kiel_before = amount("03", r"monthly rent for the Kiel terminal amounts to ")
    kiel = amount("04", r"monthly rent for the Kiel terminal amounts to ")
    hamburg = amount("05", r"monthly rent for the Hamburg depot amounts to ")
    rostock = amount("06", r"monthly rent for the Rostock yard and hall amounts to ")
    assert (kiel_before, kiel, hamburg, rostock) == (42_000, 44_500, 31_250, 27_500)
    assert kiel + hamburg + rostock == 103_250
    assert "with effect from 1 January 2026" in M.texts["04"]
    assert "103,250" not in " ".join(M.texts.values())


def test_the_rent_roll_is_older_than_the_amendment_and_right_for_its_day() -> None:
    found = message(M.path("14").read_bytes())
    (attachment,) = found.iter_attachments()
    rows = [line.split(";") for line in attachment.get_content().splitlines()[1:]]
    rents = {row[0]: int(row[2].removeprefix("EUR ").replace(",", "")) for row in rows}
    assert rents == {"Kiel": 42_000, "Hamburg": 31_250, "Rostock": 27_500, "all sites": 100_750}
    assert sum(rents.values()) == 2 * rents["all sites"]
    assert found["Date"].datetime.date() < date(2025, 11, 24)


def test_signed_and_draft_differ_in_price_and_long_stop_date() -> None:
    signed, draft = M.texts["01"], M.texts["02"]
    assert amount("01", r"purchase price for the Shares amounts to ") == 48_500_000
    assert amount("02", r"purchase price for the Shares amounts to ") == 46_000_000
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
    facility = M.texts["07"]
    loan, instalment = amount("07", r"term loan facility of "), amount("07", r"equal instalments of ")
    assert "beginning on 30 September 2024" in facility
    paid = sum(1 for year in (2024, 2025) for month in (3, 6, 9, 12) if (2024, 9) <= (year, month) <= (2025, 12))
    outstanding = amount("12", r"outstanding amount of the Loan on 31 December 2025 was ")
    assert outstanding == loan - paid * instalment == 8_400_000
    assert "prepayment fee of 1.25 per cent" in facility
    assert outstanding * 125 // 10_000 == 105_000
    assert holding(r"8,400,000") == {"12"}
    assert "105,000" not in " ".join(M.texts.values())


def test_the_reserve_stands_in_the_privileged_memorandum_alone() -> None:
    assert "reserve of EUR 1,850,000 for the clean-up of the contaminated ground at the Rostock site" in M.texts["17"]
    assert holding(r"1,850,000|1,600,000|2,100,000|Geolabor") == {"17"}
    assert "No figure has been given to us" in M.texts["16"]


# Figures and dates


def test_penalties_follow_from_the_rates_of_late_deliveries() -> None:
    statement = M.texts[PENALTIES]
    rows = re.findall(r"(\w+) quarter ([\d,]+) (\d+) ([\d.]+) per cent (EUR [\d,]+|none)", statement)
    assert [row[0] for row in rows] == ["first", "second", "third", "fourth"]
    for name, deliveries, late, share, penalty in rows:
        assert round(100 * int(late) / int(deliveries.replace(",", "")), 1) == float(share)
        assert (penalty != "none") == (float(share) > 1.5)
        assert penalty == "none" or f"The penalty for the {name} quarter of 2025 amounts to {penalty}" in statement
    assert sum(row[4] != "none" for row in rows) == 3
    assert "in three quarters of 2025" in M.texts["12"]


SHARED = [
    (r"HRB 18842", {"01", "02", REGISTER}),
    (r"11 September 2019", {"00", "03", "04"}),
    (r"24 November 2025", {"00", "04", "12"}),
    (r"3 May 2023", {"00", "07", "12", "20"}),
    (r"until 31 December 2031|;31 December 2031", {"03", "14"}),
    (r"8,900 square metres", {"03", "14"}),
    (r"3,800 square metres|3,800 in Rostock", {"06", "14"}),
    (r"5,400 square metres|5,400 in Hamburg", {"05", "14"}),
    (r"by 30 June 2026|later than 30 June 2026", {"06", "12", "15"}),
    (r"31 August 2026", {"04", "12", SOFTWARE}),
    (r"30 April 2026", {"01", "15"}),
]


@pytest.mark.parametrize(("pattern", "where"), SHARED)
def test_a_shared_fact_stands_where_it_is_told(pattern: str, where: set[str]) -> None:
    assert holding(pattern) == where


def test_guarantees_are_three_months_of_rent() -> None:
    assert amount("03", r"bank guarantee of ") == 3 * 42_000
    assert re.findall(r"from EUR 126,000 to EUR (133,500)", M.texts["04"]) == [f"{3 * 44_500:,}"]


# The books


def test_the_fleet_list_counts_what_the_framework_agreement_says() -> None:
    rows = [row for row in M.sheet("21", "Fleet") if row[1] in ("tractor unit", "semi-trailer")]
    counted = {kind: sum(row[2] for row in rows if row[1] == kind) for kind in ("tractor unit", "semi-trailer")}
    assert counted == {"tractor unit": 64, "semi-trailer": 88}
    assert "64 tractor units and 88 semi-trailers" in M.texts["09"]
    totals = {row[0]: row[4] for row in M.sheet("21", "Fleet") if str(row[0]).startswith("All ")}
    for name, kind in (("All tractor units", "tractor unit"), ("All semi-trailers", "semi-trailer")):
        assert totals[name] == sum(row[4] for row in rows if row[1] == kind)


def test_the_customers_add_up_to_the_turnover_of_the_accounts() -> None:
    rows = {row[0]: row[3] for row in M.sheet("18", "Turnover") if isinstance(row[3], int)}
    ten, others, everybody = (rows.pop(name) for name in ("Ten largest", "All other customers", "All customers"))
    assert (len(rows), sum(rows.values()), ten + others) == (10, ten, everybody)
    turnover = next(row for row in M.sheet("19", "Income") if row[0] == "Turnover")
    assert everybody == turnover[5]


def test_the_management_accounts_add_up() -> None:
    *items, ebitda = [row for row in M.sheet("19", "Income") if isinstance(row[1], int)]
    assert ebitda[1:] == [sum(row[column] for row in items) for column in range(1, 6)]
    assert all(sum(row[1:5]) == row[5] for row in items)
    debt = {row[0]: row[1] for row in M.sheet("19", "Net debt")[1:]}
    assert debt["Net debt"] == debt["Term loan, Baltische Handelsbank"] + debt["Cash at banks"]
    assert debt["Net debt / EBITDA"] == round(debt["Net debt"] / ebitda[5], 2) < 3
    assert debt["Term loan, Baltische Handelsbank"] * 1_000 == amount(
        "12", r"outstanding amount of the Loan on 31 December 2025 was "
    )


def test_the_compliance_certificate_is_a_year_older_and_right_for_its_day() -> None:
    loan, instalment = amount("07", r"term loan facility of "), amount("07", r"equal instalments of ")
    assert amount("20", r"outstanding amount of the Loan on 31 December 2024 was ") == loan - 2 * instalment
    assert holding(r"10,800,000") == {"20"}
    assert round((10_800 - 1_420) / 5_863, 2) == 1.60
    assert (date(2025, 5, 22) - date(2024, 12, 31)).days <= 150


def test_the_insurer_demands_what_the_landlord_has_undertaken() -> None:
    assert "A new sprinkler system is to be installed" in M.texts["23"]
    assert "its report of June 2025" in M.texts["04"] and "16 June 2025" in M.texts["23"]


def test_the_frame_of_schedule_6_names_all_seven_contracts_and_decides_nothing() -> None:
    parties = ["Förde Hafenimmobilien", "Elbtor", "Warnow", "Baltische Handelsbank", "Ostsee Energie", "Rheinfleet", "Portwise"]
    assert [party for party in parties if party not in M.texts["24"]] == []
    assert M.texts["24"].count("to be checked") == 7


def test_the_employees_add_up() -> None:
    *groups, everybody = [row for row in M.sheet("25", "Employees") if isinstance(row[2], int)]
    assert sum(row[2] for row in groups) == everybody[2]
    assert min(row[2] for row in groups) >= 10
