"""What SQL says of cells: the view against what was recorded, and against the scored table."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pandas as pd
import pytest
import sqlalchemy as sa
from support.ledgers import Books, claimed
from support.locks import locked_arm

from eval_pipeline.analysis.frame import scored_frame
from eval_pipeline.analysis.tables import scored_table
from eval_pipeline.domain.cell import Outcome

USAGE = {"model": "m", "input_uncached": 10, "cache_read": 20, "cache_write_5m": 3, "cache_write_1h": 4, "output": 5, "reasoning": 1, "calls": 2}  # fmt: skip


@pytest.fixture
def books(database_url: str) -> Books:
    return Books(database_url)


def test_the_view_says_what_the_scored_table_says(books: Books) -> None:
    run = books.experiment(2, arms=[locked_arm("a", config={"k": 1})])
    engine = books.engine()
    claim = books.claim(run, engine)
    lost = books.begin(claim)
    books.finish(claim, lost, Outcome.INFRA_FAILURE, cost_usd=Decimal("0.5"))
    kept = books.begin(claim)
    books.finish(
        claim, kept, bundle="b" * 64, usage=[USAGE, USAGE], usage_source="self-reported", cost_usd=Decimal("0.25"), latency_s=1.5
    )
    rows = books.database.run(lambda c: c.execute(sa.text("select * from evals.cell_results order by cell")).mappings().all())
    experiment = books.ledger.experiment(run.experiment_id)
    cells = scored_table(experiment, books.views.cells(run.experiment_id), {}, {})
    frame: Any = scored_frame(cells).set_index("cell")
    assert claimed([claim]) == [rows[0]["cell"]] and len(rows) == 2
    same = set(rows[0]) & set(frame.columns) - {"price_version", "cost_usd", "config"}
    assert {"world", "case", "arm", "trial", "tree", "snapshot", "cell_digest", "run_lock", "attempts", "judge_cost_usd"} <= same
    for row in rows:
        for name in same:
            expected = frame.loc[row["cell"], name]
            said = float(row[name]) if isinstance(row[name], Decimal) else row[name]
            assert (said is None) if pd.isna(expected) else (said == expected), name
    assert (rows[0]["overhead_usd"], rows[0]["cost_usd"], rows[0]["cache_read"]) == (Decimal("0.5"), Decimal("0.25"), 40)
    assert rows[0]["config"] == {"k": 1} and rows[1]["input_uncached"] is None
