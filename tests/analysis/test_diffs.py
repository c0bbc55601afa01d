"""Why nothing is known of what an agent changed."""

from __future__ import annotations

from typing import Any

import pytest
from support.locks import run_lock, score_lock
from support.tables import attempt, cell_view, experiment_row

from eval_pipeline.analysis.diffs import dump_error, not_compared
from eval_pipeline.analysis.tables import ScoredCell, scored_table
from eval_pipeline.store.cell_views import AttemptView


def cell(*attempts: AttemptView) -> ScoredCell:
    run = run_lock()
    key = run.cell_keys()[0]
    return scored_table(experiment_row(run, score_lock(run)), [cell_view(key, *attempts)], {})[0]


@pytest.mark.parametrize(
    ("ended", "dumps", "why"),
    [
        ({}, False, "an app's manifest says with `dump` how its state is written"),
        ({"evidence": {"dump_error": "no room"}}, True, "no room"),
        ({"outcome": "infra_failure", "error": "disk full: limit 64 MiB"}, True, "`dump`: disk full: limit 64 MiB"),
    ],
)
def test_nothing_was_compared_for_a_reason(ended: dict[str, Any], dumps: bool, why: str) -> None:
    found = cell(attempt(**ended))
    assert not_compared(found, dumps=dumps).endswith(why)
    assert dump_error(found) == ended.get("evidence", {}).get("dump_error")


def test_a_cell_that_was_never_tried_says_so() -> None:
    assert not_compared(cell(), dumps=True).endswith("none has ended")
