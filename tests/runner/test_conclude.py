"""What an agent says of its own cost is believed only as far as it could be."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pytest
from support.ledgers import Books, keys
from support.locks import MANIFEST, locked_arm, run_lock, score_lock
from support.tables import experiment_row

from eval_pipeline.domain.cell import AttemptResult
from eval_pipeline.domain.handover import Handover, Measured
from eval_pipeline.domain.ids import CellKey
from eval_pipeline.domain.outcome import AgentResult
from eval_pipeline.domain.usage import Usage
from eval_pipeline.runner.conclude import concluded
from eval_pipeline.runner.output import TranscriptReader
from eval_pipeline.runner.persist import Persisted
from eval_pipeline.scoring.prices import PriceBook
from eval_pipeline.store.spending import Spending

DAY = date(2026, 6, 1)
ROW = {"provider": "p", "model": "m", "effective_from": "2020-01-01", "source": "invented", "output": "15"}
PRICES = PriceBook.from_rows(
    [ROW | dict.fromkeys(["input_uncached", "cache_read", "cache_write_5m", "cache_write_1h"], "0")], "p"
)
MILLION = 10**6
END = Handover(
    exit_code=0,
    elapsed_s=1.0,
    stop=None,
    faults=[],
    limits=[],
    service=None,
    state_before=None,
    day=DAY,
    evidence={},
    measured=None,
)


def after(books: Books, output: int, *, budget_usd: str | None, measured: bool = False) -> tuple[AttemptResult, Decimal, Decimal]:
    """The result of an attempt that holds 0.50 USD, and what is committed then: in its experiment, in its month."""
    run = books.experiment(1, budget_usd=budget_usd)
    usage = Usage(model="m", output=output)
    seen = Measured(usages=[usage], calls=1, unmeasured=0, retried=0, n_faults=0, faults=[], stop=None)
    end = END.model_copy(update={"measured": seen if measured else None})
    left = Persisted(bundle="0" * 64, result=AgentResult(status="ok", answer="x"), usages=[usage], calls=1, evidence={})
    key = keys(run)[0]
    result = concluded(books.ledger.experiment(run.experiment_id), CellKey.parse(key), PRICES, end, left)
    claim = books.claim(run)
    attempt = books.begin(claim, reserve_usd="0.5")
    books.ledger.finish_attempt(claim, attempt.id, result, last=True)
    return result, books.committed_usd(run), Spending(books.database).month().committed_usd


@pytest.mark.slow
def test_a_cost_beyond_belief_is_unknown_and_what_was_held_stays_held(books: Books) -> None:
    result, experiment, month = after(books, 700_000 * MILLION, budget_usd="0.5")
    assert result.cost_usd is None and (experiment, month) == (Decimal("0.5"), Decimal("0.5"))
    assert result.evidence["implausible_cost"] == {"self_reported_usd": "10500000", "at_most_usd": "5.000000000"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("millions", "budget_usd", "measured", "believed"),
    [
        (0.3, "0.5", False, True),
        (0.35, "0.5", False, False),
        (0.35, "0.5", True, True),
        (66, None, False, True),
        (67, None, False, False),
    ],
)
def test_how_much_is_believed(books: Books, millions: float, budget_usd: str | None, measured: bool, believed: bool) -> None:
    """Ten times what was held, or 1000 USD where nothing was; what the gateway measured always."""
    output = int(millions * MILLION)
    result, experiment, _ = after(books, output, budget_usd=budget_usd, measured=measured)
    cost = Decimal(15) * output / MILLION
    assert (result.cost_usd, experiment) == ((cost, cost) if believed else (None, Decimal("0.5")))
    assert ("implausible_cost" in result.evidence) is not believed


@pytest.mark.parametrize("count", ["NaN", "Infinity", "-1", "1e400", "1000000000000", "9" * 5000, "true", '"7"', "1.5"])
def test_a_count_that_is_none_is_a_bad_line(count: str) -> None:
    reader = TranscriptReader()
    reader.feed(f'{{"type":"usage","model":"m","output":{count}}}\n'.encode())
    assert (reader.usages, reader.bad_lines) == ([], 1)


@pytest.mark.parametrize("status", ["ok", "refusal", "error", None])
@pytest.mark.parametrize("egress", [(), ("models.example:443",)])
def test_an_agent_that_reported_nothing_used_nothing_only_if_it_answered_and_could_reach_nobody(
    status: str | None, egress: tuple[str, ...]
) -> None:
    run = run_lock(arms=[locked_arm(manifest=MANIFEST.model_copy(update={"egress": egress}))])
    left = Persisted(bundle="0" * 64, result=AgentResult(status=status), usages=[], calls=0, evidence={})
    (key,) = run.cell_keys()
    result = concluded(experiment_row(run, score_lock(run)), key, PRICES, END, left)
    assert result.cost_usd == (0 if status == "ok" and not egress else None)
