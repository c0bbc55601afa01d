"""Asking judges what cells still lack. No agent is run here."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from eval_pipeline.domain.cell import Outcome
from eval_pipeline.domain.experiment import JudgeSpec
from eval_pipeline.domain.ids import CellKey
from eval_pipeline.domain.verdict import VerdictRow
from eval_pipeline.errors import BudgetExceeded
from eval_pipeline.runner.judge_asking import Asking, Open, still_wanted
from eval_pipeline.runner.judge_desk import Desk
from eval_pipeline.runner.services import Services
from eval_pipeline.scoring.judge_client import JudgeClient, key_name
from eval_pipeline.scoring.judge_prompt import ToAsk
from eval_pipeline.scoring.judge_questions import judge_questions
from eval_pipeline.scoring.judge_votes import judge_version
from eval_pipeline.scoring.verdicts import compared_state
from eval_pipeline.store.cell_views import CellView
from eval_pipeline.store.ledger import ExperimentRow
from eval_pipeline.store.records import Records
from eval_pipeline.vault.redaction import Redactor
from eval_pipeline.vault.sources import local_sources, read_secrets


@dataclass(frozen=True, kw_only=True)
class JudgeReport:
    """n_cells: that were looked at. n_calls: made now. n_failed: criteria left without a verdict. stopped: why not all were asked.

    out_of_budget: that was it.
    """

    n_cells: int = 0
    n_calls: int = 0
    n_failed: int = 0
    stopped: str | None = None
    out_of_budget: bool = False


def open_cells(records: Records, experiment: ExperimentRow, *, again: bool) -> list[Open]:
    """again: with what was asked in vain before."""
    judge = experiment.score.judge
    if judge is None:
        return []
    every = records.views.cells(experiment.id, whole=False)
    cells = [found for cell in every if (found := _to_judge(experiment, cell)) is not None]
    linked = records.judge_calls.requests(one.question_digest for cell in cells for one in cell.asked)
    votes = records.verdicts.votes((request for request, _ in linked.values()), judge_version(judge))
    counted = [replace(cell, n_calls=sum(_lacks(one, linked, votes, judge, again) for one in cell.asked)) for cell in cells]
    return [cell for cell in counted if cell.n_calls]


def _to_judge(experiment: ExperimentRow, cell: CellView) -> Open | None:
    if cell.counted is None or cell.counted.bundle is None or cell.outcome not in (Outcome.OK, Outcome.REFUSAL):
        return None  # what else is valid counts as 0, whatever it left
    name = CellKey.parse(cell.key).case_name
    before = compared_state(cell.counted.evidence)
    asked = judge_questions(experiment.run.case(name), experiment.score.cases[name], cell.counted.bundle, before)
    return Open(key=cell.key, bundle=cell.counted.bundle, state_before=before, asked=tuple(asked)) if asked else None


def _lacks(
    one: ToAsk,
    linked: Mapping[str, tuple[str, list[str]]],
    votes: Mapping[str, Sequence[VerdictRow]],
    judge: JudgeSpec,
    again: bool,
) -> int:
    """How many votes."""
    given: Sequence[VerdictRow] = votes.get(linked[one.question_digest][0], []) if one.question_digest in linked else []
    if not again and any(row.status == "failed" for row in given):
        return 0
    return still_wanted(given, judge, one.per_occurrence)


async def ask_judge(services: Services, experiment: ExperimentRow, *, again: bool = False) -> JudgeReport:
    """Ask what is open. Nothing raised here is about one cell: that is counted."""
    judge = experiment.score.judge
    cells = await asyncio.to_thread(open_cells, services.records, experiment, again=again)
    if judge is None or not cells:
        return JudgeReport()
    name = key_name(judge)
    found = read_secrets(local_sources(services.settings), [name])
    if name not in found and judge.base_url is None:
        why = f"the judge {judge.model} was not asked: {name} is neither in {services.settings.secrets_file} nor exported"
        return JudgeReport(n_cells=len(cells), stopped=why)
    await services.restore_worlds(experiment, [cell.key for cell in cells])
    key = found[name].value if name in found else None
    own = Redactor({} if key is None else {name: key})
    async with JudgeClient(judge, key, services.settings.judge.timeout_s) as client:
        desk = Desk(services, experiment, judge, client, own)
        asking = Asking(services, experiment, judge, desk)
        try:
            await asking.all(cells)
        finally:
            await desk.close()
    return JudgeReport(
        n_cells=len(cells),
        n_calls=desk.n_calls,
        n_failed=asking.n_failed,
        stopped=None if (why := asking.stopped) is None else desk.redacted(str(why)),
        out_of_budget=isinstance(why, BudgetExceeded),
    )
