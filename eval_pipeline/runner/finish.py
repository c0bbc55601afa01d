"""The end of an experiment, as often as one likes: every valid cell judged under the score lock as it is now."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

from eval_pipeline.domain.ids import CellKey
from eval_pipeline.domain.usage import Usage
from eval_pipeline.domain.verdict import VerdictRow
from eval_pipeline.runner.judges import JudgeReport, ask_judge
from eval_pipeline.runner.repricing import settle_unpriced
from eval_pipeline.runner.services import Services
from eval_pipeline.scoring.verdicts import compared_state, questions
from eval_pipeline.store.cell_views import AttemptView
from eval_pipeline.store.ledger import ExperimentRow
from eval_pipeline.store.records import Records

MAX_TRIES = 3


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What is stored of a valid attempt, by digest. state_before: None when there is no state to compare with. measured: by the gateway."""

    bundle: str
    state_before: str | None
    measured: tuple[Usage, ...] | None = None


def _measured(attempt: AttemptView) -> tuple[Usage, ...] | None:
    return tuple(Usage.model_validate(one) for one in attempt.usage) if attempt.usage_source == "measured" else None


def unjudged(records: Records, experiment: ExperimentRow) -> dict[str, Kept]:
    """Valid cells that lack a verdict: the rubric changed, a crash came between, or a check failed itself."""
    kept = {
        cell.key: Kept(
            bundle=cell.counted.bundle, state_before=compared_state(cell.counted.evidence), measured=_measured(cell.counted)
        )
        for cell in records.views.cells(experiment.id, whole=False)
        if cell.counted is not None and cell.counted.bundle is not None
    }
    have = records.verdicts.of_bundles(one.bundle for one in kept.values())
    return {key: one for key, one in kept.items() if _missing(experiment, key, one, have)}


def _missing(experiment: ExperimentRow, key: str, kept: Kept, have: Mapping[str, VerdictRow]) -> bool:
    cell = CellKey.parse(key)
    rubric, world = experiment.score.cases[cell.case_name].rubric, experiment.run.worlds[cell.world]
    asked = questions(rubric, world, kept.bundle, kept.state_before)
    return any(_worth_asking(have.get(question.request_digest)) for question in asked)


def _worth_asking(verdict: VerdictRow | None) -> bool:
    """Nobody was asked yet, or who was asked failed and has not had all tries."""
    return verdict is None or (verdict.status != "ok" and verdict.vote + 1 < MAX_TRIES)


async def judge_missing(services: Services, experiment: ExperimentRow, *, ask: bool = True, again: bool = False) -> JudgeReport:
    """Answer the checks that are open, then, if wanted, ask the judge. again: also what it was asked in vain before."""
    await asyncio.to_thread(settle_unpriced, services.records.database, experiment)
    open_cells = await asyncio.to_thread(unjudged, services.records, experiment)
    if open_cells:
        await services.restore_worlds(experiment, list(open_cells))
        await asyncio.gather(
            *(
                services.persister.judge(kept.bundle, experiment, CellKey.parse(key), kept.state_before, kept.measured)
                for key, kept in open_cells.items()
            )
        )
    report = await ask_judge(services, experiment, again=again) if ask else JudgeReport()
    return replace(report, n_cells=max(report.n_cells, len(open_cells)))
