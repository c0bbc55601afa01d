"""Cells before their judge: which criteria are asked, in how many votes, how often again, and what stops all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

from eval_pipeline.domain.experiment import JudgeSpec
from eval_pipeline.domain.ids import CellKey
from eval_pipeline.domain.verdict import VerdictRow
from eval_pipeline.errors import BudgetExceeded, OutputUnreadable, StoreError
from eval_pipeline.runner.judge_desk import LATER_MAX_S, AlreadySaid, Desk, Matter
from eval_pipeline.runner.judging import Examined
from eval_pipeline.runner.services import Services
from eval_pipeline.scoring.judge_client import CallFailed, JudgeUnusable
from eval_pipeline.scoring.judge_prompt import Asked, Exam, ToAsk
from eval_pipeline.scoring.judge_reply import Refused
from eval_pipeline.scoring.judge_votes import judge_version, wanted
from eval_pipeline.store.ledger import ExperimentRow

TRIES = 3
_PATIENCE = 10
"""How often a provider may say "later" to one question, which is no try."""
_PAUSE_S = 1.0
_REFUSED_MAX = 20
"""Cells whose calls the budget can't hold are left out: a smaller one may fit. After so many nothing more is asked."""


@dataclass(frozen=True, kw_only=True)
class Open:
    """A valid cell with criteria that its judge has still to decide. asked: all of its judge's criteria. n_calls: that these take at most."""

    key: str
    bundle: str
    state_before: str | None
    asked: tuple[ToAsk, ...]
    n_calls: int = 0


def still_wanted(given: Sequence[VerdictRow], judge: JudgeSpec, per_occurrence: bool) -> int:
    """How many votes."""
    return wanted([row.verdict for row in given if row.status != "failed"], judge.votes, per_occurrence)


class Asking:
    def __init__(self, services: Services, experiment: ExperimentRow, judge: JudgeSpec, desk: Desk) -> None:
        self._services = services
        self._records = services.records
        self._experiment = experiment
        self._judge = judge
        self._desk = desk
        self._version = judge_version(judge)
        self._asked_now: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._too_dear: BudgetExceeded | None = None
        self._refused: set[str] = set()
        self.n_failed = 0

    @property
    def stopped(self) -> BudgetExceeded | JudgeUnusable | None:
        """Why not all were asked."""
        return self._desk.stopped or self._too_dear

    async def all(self, cells: Sequence[Open]) -> None:
        ahead = asyncio.Semaphore(2 * await self._desk.open())
        await asyncio.gather(*(self._cell(cell, ahead) for cell in cells))

    async def _cell(self, cell: Open, ahead: asyncio.Semaphore) -> None:
        async with ahead:
            if self._desk.stopped is not None:
                return
            key = CellKey.parse(cell.key)
            case = self._experiment.run.case(key.case_name)
            examined = Examined(
                task=case.prompt,
                reference=self._experiment.score.cases[key.case_name].reference,
                deliverables=case.deliverables,
                asked=cell.asked,
            )
            try:
                exam = await self._services.persister.examine(cell.bundle, self._experiment, key, cell.state_before, examined)
            except (OutputUnreadable, StoreError) as error:
                await asyncio.to_thread(self._unreadable, cell, str(error))
                return
            given = await asyncio.to_thread(self._linked, exam)
            matter = Matter(cell.key, cell.bundle, exam)
            await asyncio.gather(*(self._criterion(matter, asked, given.get(asked.request_digest, [])) for asked in exam.asked))

    def _linked(self, exam: Exam) -> Mapping[str, Sequence[VerdictRow]]:
        """The votes that there are, by request."""
        links = {one.question_digest: one.request_digest for one in exam.asked}
        self._records.judge_calls.link(links, exam.unseen)
        return self._records.verdicts.votes(links.values(), self._version)

    def _unreadable(self, cell: Open, why: str) -> None:
        """The request could not be written: the question itself stands for it."""
        digests = [one.question_digest for one in cell.asked]
        self._records.judge_calls.link(dict(zip(digests, digests, strict=True)), [])
        before = self._records.verdicts.votes(digests, self._version)
        rows = [
            self._desk.row(cell.bundle, one.criterion, one.question_digest, before.get(one.question_digest, []), Refused(why))
            for one in cell.asked
        ]
        self._records.verdicts.add(rows)
        self.n_failed += len(rows)

    async def _criterion(self, matter: Matter, asked: Asked, given: Sequence[VerdictRow]) -> None:
        """Equal requests of several cells are asked once: who comes second finds the verdict."""
        async with self._asked_now.setdefault(asked.request_digest, asyncio.Lock()):
            while self._desk.stopped is None and matter.cell_key not in self._refused:
                if not still_wanted(given, self._judge, asked.per_occurrence):
                    return
                try:
                    row = await self._vote(matter, asked, given)
                except AlreadySaid:
                    given = await asyncio.to_thread(self._votes, asked.request_digest)
                    continue
                except BudgetExceeded as why:
                    self._leave_out(matter.cell_key, why)
                    return
                except JudgeUnusable:
                    return
                if row.status == "failed":
                    self.n_failed += 1
                    return
                given = [*given, row]

    def _votes(self, request: str) -> Sequence[VerdictRow]:
        return self._records.verdicts.votes([request], self._version).get(request, [])

    def _leave_out(self, cell: str, why: BudgetExceeded) -> None:
        self._too_dear = self._too_dear or why
        self._refused.add(cell)
        if len(self._refused) >= _REFUSED_MAX:
            self._desk.stopped = why

    async def _vote(self, matter: Matter, asked: Asked, given: Sequence[VerdictRow]) -> VerdictRow:
        """Durable when it returns. Raises AlreadySaid, BudgetExceeded and JudgeUnusable."""
        said = await self._said(matter, asked, given)
        if isinstance(said, VerdictRow):
            return said
        row = self._desk.row(matter.bundle, asked.criterion, asked.request_digest, given, said)
        await self._desk.keep(row)
        return row

    async def _said(self, matter: Matter, asked: Asked, given: Sequence[VerdictRow]) -> VerdictRow | Refused:
        """Refused: there is none, and why."""
        why = ""
        tries = later = 0
        while tries < TRIES:
            question = f"{asked.text}\n\nYour last reply was refused: {why}" if why else asked.text
            try:
                return await self._desk.call(matter, asked, given, question)
            except Refused as refused:
                why, tries = str(refused), tries + 1
            except CallFailed as failed:
                if failed.kind == "rejected":
                    return Refused(f"the provider refused the request: {failed}")
                waits = failed.retry_after_s is not None and failed.kind in ("rate_limit", "provider")
                tries, later = tries + (not waits), later + waits
                if later > _PATIENCE or (failed.retry_after_s or 0) > LATER_MAX_S:
                    return Refused(f"the provider said `later` too often: {failed}")
                if tries == TRIES:
                    return Refused(f"{tries} calls failed, the last one: {failed}")
                if failed.retry_after_s is None and failed.kind != "unreadable":
                    await asyncio.sleep(_PAUSE_S * 2 ** (tries - 1))
        return Refused(f"{tries} replies were refused, the last one: {why}")
