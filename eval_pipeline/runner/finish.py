"""The end of an experiment, as often as one likes: every valid cell judged under the score lock as it is now."""

from __future__ import annotations

import asyncio
from collections.abc import Container

from eval_pipeline.domain.ids import CellKey
from eval_pipeline.runner.services import Services
from eval_pipeline.scoring.verdicts import questions
from eval_pipeline.store.ledger import ExperimentRow
from eval_pipeline.store.records import Records


def unjudged(records: Records, experiment: ExperimentRow) -> dict[str, str]:
    """Valid cells (key -> bundle) that lack a verdict of a check: the rubric changed, or a crash came between."""
    cells = [cell for cell in records.views.cells(experiment.id) if cell.counted is not None and cell.counted.bundle is not None]
    bundles = {cell.key: cell.counted.bundle for cell in cells if cell.counted is not None and cell.counted.bundle is not None}
    have = records.verdicts.of_bundles(bundles.values())
    return {key: bundle for key, bundle in bundles.items() if _missing(experiment, key, bundle, have)}


def _missing(experiment: ExperimentRow, key: str, bundle: str, have: Container[str]) -> bool:
    cell = CellKey.parse(key)
    asked = questions(experiment.score.cases[cell.case_name].rubric, experiment.run.worlds[cell.world], bundle)
    return any(question.request_digest not in have for question in asked)


async def judge_missing(services: Services, experiment: ExperimentRow) -> int:
    """Judge what is unjudged; returns how many cells that were."""
    open_cells = await asyncio.to_thread(unjudged, services.records, experiment)
    if open_cells:
        await services.restore_worlds(experiment, list(open_cells))
        await asyncio.gather(
            *(services.persister.judge(bundle, experiment, CellKey.parse(key)) for key, bundle in open_cells.items())
        )
    return len(open_cells)
