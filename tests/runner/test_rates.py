"""Where the rates of sandboxes come from: the account's billing, or what comes with the program and why."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from support.modal_loopback import LoopbackModal

from eval_pipeline.runner.rates import current_rates
from eval_pipeline.settings import ModalSettings, Settings

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def settings(region: str | None = None) -> Settings:
    return Settings(state_dir=Path("/nonexistent"), worlds_dir=Path("/nonexistent"), modal=ModalSettings(region=region))


async def test_the_account_is_asked_and_the_region_counts(modal_server: LoopbackModal) -> None:
    rates = await current_rates(settings(), "modal")
    assert rates is not None
    assert rates.usd_per_s(1, 2048) * 3600 == Decimal("0.26")  # 0.2 + 2 * 0.03, as the server says
    assert "bills this account" in rates.source
    far = await current_rates(settings("us-west"), "modal")
    assert far is not None
    assert far.usd_per_s(1, 2048) * 3600 == Decimal("0.455")


async def test_who_cannot_be_asked_costs_nobody_a_run(modal_server: LoopbackModal) -> None:
    modal_server.order({"method": "WorkspaceBillingRates", "kind": "exhausted", "times": 1})
    rates = await current_rates(settings(), "modal")
    modal_server.order()
    assert rates is not None
    assert rates.usd_per_s(1, 1024) * 3600 == pytest.approx(Decimal("0.1659"))
    assert "could not be asked" in rates.source


async def test_here_it_costs_nothing() -> None:
    rates = await current_rates(settings(), "local")
    assert rates is not None
    assert (rates.usd_per_s(8, 8192), rates.version) == (0, "local-1")
    assert await current_rates(settings(), "elsewhere") is None
