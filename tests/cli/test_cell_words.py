from __future__ import annotations

import pytest
from support.locks import run_lock, score_lock
from support.tables import attempt, cell_view, experiment_row

from eval_pipeline.analysis.tables import scored_table
from eval_pipeline.cli.cell import Shown, show_cell


def test_what_is_the_same_of_all_attempts_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    run = run_lock()
    full, none = {"isolation": {"level": "full", "missing": {}}}, {"isolation": {"level": "none", "missing": {"user": "off"}}}
    lost = [attempt(n, "infra_failure", evidence=full) for n in (1, 2)]
    view = cell_view(run.cell_keys()[0], *lost, attempt(3, evidence={**none, "dump_error": "no room\nat all"}))
    (cell,) = scored_table(experiment_row(run, score_lock(run)), [view], {})
    show_cell(Shown(cell, None, None, {}))
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if line.startswith("isolation")] == [
        "isolation of attempt 1, 2: full",
        "isolation of attempt 3: none, without: user",
    ]
    assert "changed in the application: not known: no room" in said
