"""A name that a reader gave: one of our experiments, or an imported table."""

from __future__ import annotations

from eval_pipeline.analysis.board import Leaderboard
from eval_pipeline.analysis.comparable import Side, imported_side, side
from eval_pipeline.analysis.imported.board import imported_board
from eval_pipeline.analysis.imported.shelf import Shelf
from eval_pipeline.analysis.imported.table import ImportedTable
from eval_pipeline.analysis.load import load_leaderboard, load_table
from eval_pipeline.analysis.load_tables import Tables
from eval_pipeline.analysis.tables import ScoredCell
from eval_pipeline.errors import NotFound, SpecError
from eval_pipeline.settings import Settings
from eval_pipeline.store.ledger import ExperimentRow
from eval_pipeline.store.records import Records

Source = ExperimentRow | ImportedTable


def source_of(settings: Settings, records: Records, name: str) -> Source:
    """Raises NotFound, and SpecError for a name that both have."""
    imported = Shelf(settings.state_dir).get(name)
    if imported is None:
        return records.ledger.experiment(name)
    try:
        other = records.ledger.experiment(name)
    except NotFound:
        return imported
    if name not in (other.name, other.id):  # the beginning of an id is no name
        return imported
    hint = f"name the experiment by its id: {other.id}; the import can be read once it has a name of its own (--as)"
    raise SpecError(f"{name!r} is an experiment and an import", hint=hint)


def board_of(records: Records, source: Source, tables: Tables | None = None) -> Leaderboard:
    """tables: of the experiment, where they have been read already."""
    return imported_board(source) if isinstance(source, ImportedTable) else load_leaderboard(records, source, tables)


def cells_of(records: Records, source: Source) -> list[ScoredCell]:
    return source.cells if isinstance(source, ImportedTable) else load_table(records, source)


def side_of(records: Records, source: Source, arm: str) -> Side:
    """Raises NotFound for an arm that it has not."""
    if isinstance(source, ImportedTable):
        return imported_side(source, arm)
    if arm not in (names := [one.name for one in source.run.arms]):
        raise NotFound(f"{source.id} has no arm {arm!r}", hint=f"its arms: {', '.join(names)}")
    return side(source, load_table(records, source), arm)
