"""The scored table and the leaderboard of an experiment, read from the ledger."""

from __future__ import annotations

from collections.abc import Sequence

from eval_pipeline.analysis.leaderboard import Leaderboard, leaderboard
from eval_pipeline.analysis.tables import ScoredCell, scored_table
from eval_pipeline.store.ledger import ExperimentRow
from eval_pipeline.store.records import Records


def load_table(records: Records, experiment: ExperimentRow, keys: Sequence[str] | None = None) -> list[ScoredCell]:
    """keys: only those cells; None means all."""
    cells = records.views.cells(experiment.id, keys)
    bundles = [cell.counted.bundle for cell in cells if cell.counted is not None and cell.counted.bundle is not None]
    return scored_table(experiment, cells, records.verdicts.of_bundles(bundles))


def load_leaderboard(records: Records, experiment: ExperimentRow) -> Leaderboard:
    return leaderboard(experiment, load_table(records, experiment), records.views.leaked())
