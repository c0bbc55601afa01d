"""Which limit a usage is above."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pytest

from eval_pipeline.domain.case import Limits
from eval_pipeline.domain.outcome import AgentResult, Stop, decide
from eval_pipeline.domain.usage import Usage
from eval_pipeline.runner.meter import exceeded
from eval_pipeline.scoring.prices import PriceBook

DAY = date(2026, 6, 1)
ROW = {"provider": "p", "model": "m", "effective_from": "2020-01-01", "source": "invented", "output": "1000"}
PRICES = PriceBook.from_rows(
    [ROW | dict.fromkeys(["input_uncached", "cache_read", "cache_write_5m", "cache_write_1h"], "0")], "p"
)
USED = Usage(model="m", input_uncached=1, cache_read=2, cache_write_5m=3, cache_write_1h=4, output=1000, reasoning=500)  # 1 USD


@pytest.mark.parametrize(
    ("limits", "stop"),
    [
        (Limits(tokens=1010, cost_usd=1.0, turns=1), None),
        (Limits(tokens=1009), Stop.TOKENS),
        (Limits(cost_usd=0.999), Stop.COST),
        (Limits(turns=1), None),
        (Limits(), None),
    ],
)
def test_a_limit_is_reached_by_what_is_above_it(limits: Limits, stop: Stop | None) -> None:
    assert exceeded(limits, PRICES, [USED], 1, DAY) is stop


def test_tokens_are_summed_over_models_and_classes() -> None:
    other = Usage(model="unpriced", output=1)
    assert exceeded(Limits(tokens=1010), PRICES, [USED], 1, DAY) is None
    assert exceeded(Limits(tokens=1010), PRICES, [USED, other], 2, DAY) is Stop.TOKENS
    decision = decide(AgentResult(status="ok", answer="x"), exit_code=0, stop=Stop.TOKENS, platform_faults=[])
    assert (decision.outcome, decision.error) == ("budget_exceeded", "the limit on tokens was reached")
    assert PRICES.known_cost([USED], DAY) == Decimal(1)
