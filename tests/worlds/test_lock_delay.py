"""The delay claim holds together: what the rubrics ask for stands in the documents, and only planted contradictions exist."""

from __future__ import annotations

import datetime
import re
from datetime import date, timedelta
from typing import Any

import pytest
from matter_files import Matter, day_of

M = Matter("lock-delay")
DEED, MINUTES, CLAIM, DIARY = "04", "09", "17", "14"


def on(text: str) -> date:
    return datetime.datetime.strptime(text, "%d %B %Y").replace(tzinfo=datetime.UTC).date()


def named(rows: list[list[Any]], first: object) -> list[Any]:
    (row,) = [row for row in rows if row[0] == first]
    return row


# Time and delay damages


def test_the_time_for_completion_moves_by_deed_and_by_determination() -> None:
    agreed = date(2024, 3, 4) + timedelta(days=452)
    assert f"452 days after the Commencement Date and therefore ends on {day_of(agreed)}" in M.texts["01"]
    by_deed = agreed + timedelta(days=14)
    assert f"extended by 14 days on account of the change and ends on {day_of(by_deed)}" in M.texts[DEED]
    determined = by_deed + timedelta(days=31)
    assert "the Time for Completion is extended by 31 days" in M.texts["12"]
    assert f"It was {day_of(by_deed)} under Deed of Variation No. 1 and now ends on {day_of(determined)}" in M.texts["12"]
    assert (agreed, by_deed, determined) == (date(2025, 5, 30), date(2025, 6, 13), date(2025, 7, 14))


def test_the_working_paper_has_a_figure_of_its_own() -> None:
    assert day_of(date(2025, 6, 13) + timedelta(days=38)) == "21 July 2025"
    assert M.holding(r"38 days") == M.holding(r"21 July 2025") == {"11"}
    assert "not a determination" in M.texts["11"]


def test_the_determined_days_follow_from_its_own_reasons() -> None:
    blocked = (date(2024, 10, 28) - date(2024, 9, 10)).days + 1
    assert "blocked from 10 September to 28 October 2024" in M.texts["12"]
    assert blocked - 11 - 7 == 31


def test_delay_damages_are_74_days_at_the_reduced_rate() -> None:
    assert M.amount("01", r"clause 8\.7 of the Conditions amount to ") == 8_500
    rate = M.amount(DEED, r"from the date of this deed amounts to ")
    assert rate == 7_250
    assert (
        "from the day after the Time for Completion up to and including the day stated in the Taking-Over Certificate"
        in M.texts["02"]
    )
    assert "was taken over by the Employer on 26 September 2025" in M.texts["taking-over-certificate.pdf"]
    days = (date(2025, 9, 26) - date(2025, 7, 14)).days
    assert (days, days * rate) == (74, 536_500)
    assert M.holding(r"536,500") == set()


def test_the_client_multiplies_with_the_old_rate() -> None:
    assert 74 * 8_500 == 629_000
    assert "74 days. At GBP 8,500 a day the delay damages come to GBP 629,000" in M.texts["20"].replace("\n", " ")
    assert M.holding(r"629,000") == {"20"}
    assert M.holding(r"GBP 8,500") == {"01", "20"}


def test_the_limit_is_a_tenth_of_the_first_price() -> None:
    price = M.amount("01", r"The Contract Price is ")
    assert M.amount("01", r"that is ") == price // 10 == 1_864_000
    assert "remains GBP 1,864,000" in M.texts[DEED]
    assert "GBP 212,500 to GBP 18,852,500" in M.texts[DEED]
    assert price + 212_500 == 18_852_500


def test_the_ledger_adds_up_and_shows_what_was_withheld() -> None:
    rows = [row for row in M.sheet("19", "Certificates") if str(row[0]).startswith("no. ")]
    assert len(rows) == 4
    for _, _, certified, retention, withheld, paid in rows:
        assert retention == certified * 3 // 100
        assert paid == certified - retention - withheld
    assert sum(row[4] for row in rows) == 400_000
    assert "withheld GBP 400,000 on account of delay damages from certificate no. 19" in M.texts["19"]


# Notices


EVENTS = [
    ("06", date(2024, 9, 9), date(2024, 10, 1), 28, True),
    ("07", date(2025, 1, 6), date(2025, 1, 30), 21, False),
    ("08", date(2025, 2, 16), date(2025, 2, 24), 21, True),
]


@pytest.mark.parametrize(("key", "aware", "notice", "period", "in_time"), EVENTS, ids=["piles", "drawings", "storm"])
def test_a_notice_is_in_time_or_late(key: str, aware: date, notice: date, period: int, in_time: bool) -> None:
    assert period == (21 if aware >= date(2024, 12, 1) else 28)
    assert ((notice - aware).days <= period) == in_time
    assert day_of(notice) in M.texts["00"]
    assert M.path(key).stem.endswith(notice.isoformat())


def test_the_deed_shortens_the_period_for_later_events() -> None:
    assert "not later than 28 days after it became aware" in M.texts["02"]
    assert '"28 days" is replaced by "21 days"' in M.texts[DEED]
    assert "on or after 1 December 2024" in M.texts[DEED]
    assert M.holding(r"not later than 42 days") == {"03"}
    assert M.holding(r"42 days after it became aware|gave 42 days") == {"03", CLAIM}
    assert "superseded" in M.texts["03"]


def test_the_records_know_the_day_of_awareness_and_the_claim_another() -> None:
    assert "told her by telephone on 6 January 2025" in M.texts[MINUTES]
    assert "you told me on 6 January" in M.texts["07"].replace("\n", " ")
    assert "known of the event since 6 January 2025" in M.texts["13"]
    assert M.holding(r"13 January 2025") == {CLAIM}
    assert f"that is by {day_of(date(2025, 1, 6) + timedelta(days=21))}" in M.texts["13"]
    assert "Notice was given three days late" in M.texts["13"]
    assert (date(2025, 1, 30) - date(2025, 1, 27)).days == 3
    assert (date(2025, 1, 30) - date(2025, 1, 13)).days == 17
    assert "Open. Mr Feld can't find a letter of that date" in M.texts["23"]


def test_all_drawings_were_issued_49_days_late() -> None:
    rows = [row for row in M.sheet("10", "HY") if str(row[0]).startswith("HY-")]
    assert [row[0] for row in rows] == [f"HY-{number}" for number in range(101, 119)]
    assert {(row[2], row[3], row[4]) for row in rows} == {(date(2024, 12, 16), date(2025, 2, 3), 49)}
    assert (date(2025, 2, 3) - date(2024, 12, 16)).days == 49


# March


def test_the_crane_and_not_the_storm_stopped_lifting() -> None:
    rows = [row for row in M.sheet(DIARY, "Diary") if isinstance(row[0], date)]
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    out = [row[0] for row in rows if row[4] == "out of service"]
    assert (min(out), max(out)) == (date(2025, 3, 3), date(2025, 3, 19))
    assert {row[4] for row in rows if min(out) <= row[0] <= max(out)} == {"out of service"}
    assert (max(out) - min(out)).days + 1 == named(M.sheet("18", "Claim"), "Crane standing")[1] == 17
    assert "The cause of the failure is a lack of maintenance" in M.texts["crane-inspection-cr2.pdf"]
    assert "the bearing of its slew ring is cracked" in M.texts["15"]
    assert M.holding(r"because the lifting beam had been damaged in the storm") == {CLAIM}


def test_the_lifting_beam_was_found_undamaged_three_times() -> None:
    assert "no damage was found" in M.texts["08"].replace("\n", " ")
    assert "Lifting beam and both cranes inspected with Mr Oduya after the storm: no damage" in M.texts[DIARY]
    assert "The lifting beam, the slings and the hook block were examined" in M.texts["crane-inspection-cr2.pdf"]
    assert "They are free of defects" in M.texts["crane-inspection-cr2.pdf"]


def test_week_53_ends_on_9_march_2025() -> None:
    first_sunday = date(2024, 3, 10)
    assert (date(2024, 3, 4).weekday(), first_sunday + timedelta(weeks=52)) == (0, date(2025, 3, 9))
    assert "Week ending 9 March 2025" in M.texts["15"]


def test_the_storm_was_not_exceptional() -> None:
    gusts = {row[0]: row[1] for row in M.sheet("16", "Readings") if isinstance(row[0], date)}
    assert len(gusts) == 28
    assert max(gusts, key=lambda day: gusts[day]) == date(2025, 2, 15)
    diary = {row[0]: row for row in M.sheet(DIARY, "Diary") if isinstance(row[0], date) and row[0].month == 2}
    assert {day: gusts[day] for day in diary} == {day: row[2] for day, row in diary.items()}
    rain = {row[0]: row[2] for row in M.sheet("16", "Readings") if isinstance(row[0], date)}
    assert all((row[1] == "dry") == (rain[day] == 0) for day, row in diary.items())
    years, once = named(M.sheet("16", "Return periods"), 61)[1:]
    assert round(64 / years) == once == 6
    assert "less often than once in ten years" in M.texts["02"]
    assert "once in six years" in M.texts["13"]


# The claim


HEADS = {
    "Site preliminaries": 432_160,
    "Head office overheads": 96_940,
    "Crane standing": 70_550,
    "Storm repairs": 88_400,
    "Hydraulic redesign": 214_300,
    "Acceleration": 178_800,
}


def test_the_schedule_is_30000_short_of_what_it_claims() -> None:
    claim = M.sheet("18", "Claim")
    assert {name: named(claim, name)[3] for name in HEADS} == HEADS
    for name in ("Site preliminaries", "Head office overheads", "Crane standing"):
        _, days, rate, amount, _ = named(claim, name)
        assert days * rate == amount, name
    assert sum(HEADS.values()) == 1_081_150
    assert named(claim, "Claimed in all")[3] == sum(HEADS.values()) + 30_000
    assert "amounts to GBP 1,111,150" in M.texts[CLAIM]
    assert M.holding(r"1,081,150|30,000") == set()


def test_the_days_claimed_lead_to_the_day_of_taking_over() -> None:
    assert "We claim 45 days" in M.texts[CLAIM] and "We claim 29 days" in M.texts[CLAIM]
    assert 12 + 17 == 29 and 45 + 29 == 74
    assert day_of(date(2025, 7, 14) + timedelta(days=74)) == "26 September 2025"


def test_the_rates_of_the_schedule_add_up() -> None:
    rates = {row[0]: row[1] for row in M.sheet("18", "Rates")[1:]}
    total = rates.pop("Site preliminaries")
    assert sum(rates.values()) == total == named(M.sheet("18", "Claim"), "Site preliminaries")[2]


# Settlement


def test_the_floor_stands_in_the_privileged_advice_alone() -> None:
    assert "The lowest figure at which Tarn & Hollis would settle should in our view be GBP 410,000" in M.texts["22"]
    assert M.holding(r"410,000|one in four|85,000") == {"22"}
    assert "Not known to us" in M.texts["23"]
    assert M.holding(r"690,000") == {"21", "22"}
    assert "open for acceptance in writing until 4 p.m. on 28 November 2025" in M.texts["21"]


# Small things


def test_certificates_are_numbered_by_the_month() -> None:
    def number(year: int, month: int) -> int:
        return 12 * (year - 2024) + month - 3

    assert f"no. {number(2024, 11)} was paid on 23 December 2024" in M.texts[MINUTES]
    assert f"included in certificate no. {number(2025, 3)}" in M.texts["12"]
    for row in M.sheet("19", "Certificates"):
        if isinstance(row[1], date):
            assert row[0] == f"no. {number(row[1].year, row[1].month)}"


def test_the_programme_counts_its_days() -> None:
    rows = [row for row in M.sheet("05", "Programme") if re.fullmatch(r"[A-Z]\d{3}", str(row[0]))]
    assert len(rows) == 11
    for activity, _, start, finish, days, _ in rows:
        assert (finish - start).days + 1 == days, activity


def test_the_survey_counts_its_piles() -> None:
    survey = M.texts["sheet-pile-survey.pdf"]
    assert 15 + 18 + 13 == 46 and round(46 * 0.6, 1) == 27.6 == round(9.0 + 10.8 + 7.8, 1)
    assert "27.6 metres long and consists of 46 piles of 600 millimetres" in survey
    assert "46 piles over a length of 27.6 metres" in M.texts["06"]


def test_dates_fall_on_the_days_of_the_week_that_are_named() -> None:
    assert (date(2025, 2, 15).strftime("%A"), date(2025, 3, 3).strftime("%A")) == ("Saturday", "Monday")
    assert date(2025, 11, 12).strftime("%A") == "Wednesday"
    assert on("12 November 2025") == date(2025, 11, 12)
    assert "Sent to Pellew Strand LLP by mistake on 12 November 2025" in M.texts["22"]
