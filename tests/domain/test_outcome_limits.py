from __future__ import annotations

import pytest

from eval_pipeline.domain.cell import Outcome
from eval_pipeline.domain.outcome import AgentResult, Stop, decide

NOTHING = AgentResult(status=None, error="wrote no result.json")


@pytest.mark.parametrize("exit_code", [None, 0, 137])
def test_an_own_limit_is_never_the_platforms_fault(exit_code: int | None) -> None:
    decision = decide(
        NOTHING, exit_code=exit_code, stop=None, platform_faults=["the proxy was down"], limits_hit=["out of memory"]
    )
    assert decision.outcome is Outcome.AGENT_ERROR
    assert decision.error is not None and decision.error.startswith("out of memory; ")


def test_a_limit_takes_no_answer_away_and_no_time_limit() -> None:
    answered = AgentResult(status="ok", answer="yes")
    assert decide(answered, exit_code=0, stop=None, platform_faults=[], limits_hit=["disk full"]).outcome is Outcome.OK
    late = decide(NOTHING, exit_code=137, stop=Stop.DEADLINE, platform_faults=[], limits_hit=["disk full"])
    assert late.outcome is Outcome.AGENT_TIMEOUT
