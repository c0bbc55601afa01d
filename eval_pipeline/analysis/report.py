"""The report of an experiment: a folder with `index.html` and a page a cell, complete without a network or a script."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from eval_pipeline.analysis import plots, report_figures, report_tables
from eval_pipeline.analysis.load import load_leaderboard
from eval_pipeline.analysis.load_tables import load_tables
from eval_pipeline.analysis.report_cells import page_name, write_cell
from eval_pipeline.analysis.report_pages import page
from eval_pipeline.analysis.report_tables import Data
from eval_pipeline.analysis.tables import ScoredCell
from eval_pipeline.errors import SpecError
from eval_pipeline.settings import Settings
from eval_pipeline.store.artifacts import ArtifactStore
from eval_pipeline.store.ledger import ExperimentRow
from eval_pipeline.store.records import Records

INDEX = "index.html"
MARK = '<meta name="generator" content="evals report">'
LISTED = 50


@dataclass(frozen=True, kw_only=True)
class Report:
    """index: its path. n_pages: of cells, those of long transcripts included."""

    experiment: str
    status: str
    index: Path
    n_cells: int
    n_pages: int
    size_bytes: int


def report_folder(settings: Settings, experiment: str) -> Path:
    return settings.state_dir / "reports" / experiment


def no_news(done: int, of: int) -> None:
    pass


def write_report(
    records: Records, store: ArtifactStore, experiment: ExperimentRow, folder: Path, on_cell: Callable[[int, int], None] = no_news
) -> Report:
    """`write_pages` of what the ledger has."""
    tables = load_tables(records, experiment)
    data = Data.of(experiment, load_leaderboard(records, experiment, tables), tables.decided)
    return write_pages(data, store, folder, on_cell)


def write_pages(data: Data, store: ArtifactStore, folder: Path, on_cell: Callable[[int, int], None] = no_news) -> Report:
    """Replaces the report that is in `folder`; until the new one is whole the old one stays. What is stored of cells is read one after
    the other. on_cell: is told how many cells are written, and of how many. Raises SpecError where something else is in `folder`.
    """
    if folder.exists() and not _is_report(folder):
        raise SpecError(f"{folder} holds something else than a report", hint="name a folder that is empty or not there yet")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        made = Path(scratch) / "report"
        (made / "cells").mkdir(parents=True)
        n_pages = _write_cells(data, store, made / "cells", on_cell)
        (made / INDEX).write_bytes(index_page(data))
        size = sum(path.stat().st_size for path in made.rglob("*.html"))
        if folder.exists():
            folder.rename(Path(scratch) / "old")
        made.rename(folder)
    return Report(
        experiment=data.experiment.id,
        status=data.board.status,
        index=folder / INDEX,
        n_cells=len(data.cells),
        n_pages=n_pages,
        size_bytes=size,
    )


def _is_report(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    index = folder / INDEX
    return not any(folder.iterdir()) or (index.is_file() and MARK in index.read_text("utf-8", "replace")[:4000])


def _write_cells(data: Data, store: ArtifactStore, folder: Path, on_cell: Callable[[int, int], None]) -> int:
    of_case: dict[str, list[ScoredCell]] = defaultdict(list)
    for cell in data.cells:
        of_case[cell.key.case_name].append(cell)
    n_pages = 0
    for done, cell in enumerate(data.cells, start=1):
        n_pages += write_cell(data.experiment, cell, of_case[cell.key.case_name], store, folder)
        on_cell(done, len(data.cells))
    return n_pages


def index_page(data: Data) -> bytes:
    board = data.board
    against = {one.b: one for one in board.comparisons} if board.baseline else {}
    figures = report_figures
    lacking = [cell for cell in data.cells if not cell.valid]
    unjudged = [cell for cell in data.cells if cell.valid and cell.score is None]
    return page(
        "index.html",
        data=data,
        board=board,
        experiment=data.experiment,
        headline=report_tables.headline(data),
        against=against,
        swatches=[plots.swatch(index) for index in range(len(data.arms))],
        forest=[one for one in (figures.scores(data), figures.differences(data)) if one],
        tradeoffs=[one for one in (figures.quality_cost(data), figures.quality_latency(data)) if one],
        paired=figures.paired(data),
        latency=figures.latency(data),
        heat=report_tables.heat(data),
        criteria=report_tables.criteria(data),
        sliced=report_tables.sliced(data),
        page_name=page_name,
        lacking=lacking[:LISTED],
        unjudged=unjudged[:LISTED],
        n_lacking=len(lacking),
        n_unjudged=len(unjudged),
        configs={arm.name: json.dumps(arm.config, ensure_ascii=False, sort_keys=True) for arm in data.experiment.run.arms},
    )
