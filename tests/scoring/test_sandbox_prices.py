"""Sandbox prices by hand."""

from __future__ import annotations

from decimal import Decimal

import pytest

from eval_pipeline.domain.budget import reservation_usd, sandbox_terms
from eval_pipeline.domain.case import Limits
from eval_pipeline.scoring.sandbox_prices import SandboxRates, billed, listed


def rates(backend: str, region: str | None = None) -> SandboxRates:
    found = listed(backend, region)
    assert found is not None
    return found


def test_two_thousand_cells_of_half_an_hour_cost_what_was_worked_out_beforehand() -> None:
    cost = 2000 * 1800 * rates("modal").usd_per_s(2, 4096)
    assert float(cost) == pytest.approx(380, rel=0.001)  # 0.00003942 a core-second, 0.0000067 a GiB-second


def test_a_rate_by_hand() -> None:
    assert rates("modal").usd_per_s(2, 512) * 3600 == pytest.approx(Decimal("0.2958"))  # 2 * 0.1419 + 0.5 * 0.024


@pytest.mark.parametrize(
    ("region", "factor"), [(None, "1"), ("us", "1.5"), ("eu", "1.5"), ("us-west", "1.75"), ("ap-south", "1.75")]
)
def test_a_chosen_region_costs_more_and_a_narrow_one_most(region: str | None, factor: str) -> None:
    assert rates("modal", region).usd_per_s(1, 1024) == rates("modal").usd_per_s(1, 1024) * Decimal(factor)


def test_this_machine_costs_nothing_and_another_backend_is_not_known() -> None:
    assert rates("local").usd_per_s(64, 2**20) == 0
    assert rates("local").source.startswith("this machine")
    assert listed("elsewhere") is None


def test_an_accounts_own_rates_take_the_rows_place_and_keep_the_regions_factor() -> None:
    own = billed(
        rates("modal", "us"), {"cpu_hour_cost_sandbox": Decimal("0.1"), "mem_gib_hour_cost_sandbox": Decimal("0.02")}, "d"
    )
    assert own is not None
    assert own.usd_per_s(1, 1024) * 3600 == Decimal("0.18")
    assert own.version == "billing-d"
    assert billed(rates("modal"), {"cpu_hour_cost": Decimal("0.0473"), "mem_gib_hour_cost_sandbox": Decimal("0.02")}, "d") is None


def test_held_is_what_the_wall_limit_costs_and_the_budgets_share_makes_room_for_it() -> None:
    terms = sandbox_terms(Limits(wall_s=600), Decimal("0.0001"), "r")
    assert (terms.reserve_usd, terms.rate) == (Decimal("0.06"), "r")
    assert reservation_usd(Limits(), Decimal(1), 1, terms.reserve_usd) == Decimal("0.94")  # one cell fits in its whole budget
    assert reservation_usd(Limits(), Decimal("0.05"), 1, terms.reserve_usd) == 0
    assert reservation_usd(Limits(cost_usd=0.5), Decimal(1), 1, terms.reserve_usd) == Decimal("0.5")
    unknown = sandbox_terms(Limits(), None, None)
    assert (unknown.usd_per_s, unknown.reserve_usd) == (None, 0)
