"""Asking judges: what cells still lack, with retries, votes, limits and the budget. No agent is run here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal

from eval_pipeline.domain.cell import Outcome
from eval_pipeline.domain.experiment import JudgeSpec
from eval_pipeline.domain.ids import CellKey
from eval_pipeline.domain.usage import Usage
from eval_pipeline.errors import BudgetExceeded, OutputUnreadable, StoreError
from eval_pipeline.runner.judging import Examined
from eval_pipeline.runner.services import Services
from eval_pipeline.scoring.judge_client import Answered, CallFailed, JudgeClient, JudgeUnusable, key_name, pool_of
from eval_pipeline.scoring.judge_prompt import Asked, Exam, ToAsk
from eval_pipeline.scoring.judge_questions import judge_questions
from eval_pipeline.scoring.judge_reply import Refused, Vote, read_reply
from eval_pipeline.scoring.judge_votes import MAX_TOKENS, judge_version, wanted
from eval_pipeline.scoring.prices import PriceBook
from eval_pipeline.scoring.verdicts import compared_state
from eval_pipeline.store.buckets import Bucket
from eval_pipeline.store.judge_calls import CALLS, CALLS_PER_MINUTE, CallEnd, CallIntent
from eval_pipeline.store.ledger import ExperimentRow
from eval_pipeline.store.records import Records
from eval_pipeline.store.verdicts import VerdictRow
from eval_pipeline.store.views import CellView
from eval_pipeline.vault.redaction import Redactor
from eval_pipeline.vault.sources import local_sources, read_secrets

log = logging.getLogger(__name__)

TRIES = 3
_PATIENCE = 10
"""How often a provider may say "later" to one question, which is no try."""
_LATER_MAX_S = 300.0
_PAUSE_S = 1.0
_BUSY_S = 0.2
_REFUSED_MAX = 20
"""Cells whose calls the budget can't hold are left out: a smaller one may fit. After so many nothing more is asked."""
_FORM_TOKENS = 2000
"""Above what the request itself takes: the tool's form and what a provider wraps around it."""


@dataclass(frozen=True, kw_only=True)
class Open:
    """A valid cell with criteria that its judge has still to decide. asked: all of its judge's criteria. n_calls: that these take at most."""

    key: str
    bundle: str
    state_before: str | None
    asked: tuple[ToAsk, ...]
    n_calls: int = 0


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
    cells = [found for cell in records.views.cells(experiment.id) if (found := _to_judge(experiment, cell)) is not None]
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
    return _wanted(given, judge, one.per_occurrence)


def _wanted(given: Sequence[VerdictRow], judge: JudgeSpec, per_occurrence: bool) -> int:
    return wanted([row.verdict for row in given if row.status != "failed"], judge.votes, per_occurrence)


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
    async with JudgeClient(judge, key, services.settings.judge.timeout_s) as client:
        return await _Asking(services, experiment, judge, client, Redactor({} if key is None else {name: key})).all(cells)


class _Asking:
    def __init__(
        self, services: Services, experiment: ExperimentRow, judge: JudgeSpec, client: JudgeClient, own: Redactor
    ) -> None:
        self._services = services
        self._own = own
        self._records = services.records
        self._experiment = experiment
        self._judge = judge
        self._client = client
        self._version = judge_version(judge)
        self._pool = pool_of(judge)
        self._prices: PriceBook = services.prices_of(experiment)
        self._locks: dict[str, asyncio.Lock] = {}
        self._stopped: BudgetExceeded | JudgeUnusable | None = None
        self._too_dear: BudgetExceeded | None = None
        self._refused: set[str] = set()
        self._n_calls = 0
        self._n_failed = 0

    async def all(self, cells: Sequence[Open]) -> JudgeReport:
        at_once = await asyncio.to_thread(self._records.judge_calls.limit, CALLS, self._pool)
        per_minute = await asyncio.to_thread(self._records.judge_calls.limit, CALLS_PER_MINUTE, self._pool)
        self._bucket = Bucket(
            self._records.database, f"judge {self._pool}", per_s=per_minute / 60, burst=max(1.0, per_minute / 60)
        )
        self._room = asyncio.Semaphore(at_once)
        ahead = asyncio.Semaphore(2 * at_once)
        await asyncio.gather(*(self._cell(cell, ahead) for cell in cells))
        return JudgeReport(
            n_cells=len(cells),
            n_calls=self._n_calls,
            n_failed=self._n_failed,
            stopped=None if (why := self._stopped or self._too_dear) is None else self._redacted(str(why)),
            out_of_budget=isinstance(why, BudgetExceeded),
        )

    def _redacted(self, said: str) -> str:
        """Of the secrets of sandboxes, and of the key that the judge is asked with."""
        return self._own.text(self._services.secrets.redactor().text(said))

    async def _cell(self, cell: Open, ahead: asyncio.Semaphore) -> None:
        async with ahead:
            if self._stopped is not None:
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
            links = {one.question_digest: one.request_digest for one in exam.asked}
            await asyncio.to_thread(self._records.judge_calls.link, links, exam.unseen)
            await asyncio.gather(*(self._criterion(cell, exam, asked) for asked in exam.asked))

    def _unreadable(self, cell: Open, why: str) -> None:
        """The request could not be written: the question itself stands for it."""
        digests = [one.question_digest for one in cell.asked]
        self._records.judge_calls.link(dict(zip(digests, digests, strict=True)), [])
        before = self._records.verdicts.votes(digests, self._version)
        rows = [self._row(cell, one.criterion, one.question_digest, before, Refused(why)) for one in cell.asked]
        self._records.verdicts.add(rows)
        self._n_failed += len(rows)

    async def _criterion(self, cell: Open, exam: Exam, asked: Asked) -> None:
        """Equal requests of several cells are asked once: who comes second finds the verdict."""
        async with self._locks.setdefault(asked.request_digest, asyncio.Lock()):
            while self._stopped is None and cell.key not in self._refused:
                given = await asyncio.to_thread(self._records.verdicts.votes, [asked.request_digest], self._version)
                if not _wanted(given.get(asked.request_digest, []), self._judge, asked.per_occurrence):
                    return
                try:
                    vote = await self._vote(cell, exam, asked)
                except BudgetExceeded as why:
                    self._too_dear = self._too_dear or why
                    self._refused.add(cell.key)
                    self._stopped = why if len(self._refused) >= _REFUSED_MAX else self._stopped
                    return
                except JudgeUnusable as why:
                    self._stopped = why
                    return
                row = self._row(cell, asked.criterion, asked.request_digest, given, vote)
                await asyncio.to_thread(self._records.verdicts.add, [row])
                if row.status == "failed":
                    self._n_failed += 1
                    return

    def _row(
        self, cell: Open, criterion: str, request: str, before: Mapping[str, Sequence[VerdictRow]], vote: Vote | Refused
    ) -> VerdictRow:
        failed = isinstance(vote, Refused)
        return VerdictRow(
            request_digest=request,
            judge_version=self._version,
            vote=max((row.vote for row in before.get(request, [])), default=-1) + 1,
            bundle=cell.bundle,
            criterion=criterion,
            verdict=None if failed else vote.verdict,
            status="failed" if failed else "ok" if vote.verdict is not None else "abstained",
            reason=self._redacted(str(vote) if failed else vote.reason),
            quotes=() if failed else tuple(map(self._redacted, vote.quotes)),
        )

    async def _vote(self, cell: Open, exam: Exam, asked: Asked) -> Vote | Refused:
        """Raises BudgetExceeded and JudgeUnusable."""
        why = ""
        tries = later = 0
        while tries < TRIES:
            question = f"{asked.text}\n\nYour last reply was refused: {why}" if why else asked.text
            try:
                return await self._one_call(cell, exam, asked, question)
            except Refused as refused:
                why, tries = str(refused), tries + 1
            except CallFailed as failed:
                if failed.kind == "rejected":
                    return Refused(f"the provider refused the request: {failed}")
                waits = failed.retry_after_s is not None and failed.kind in ("rate_limit", "provider")
                tries, later = tries + (not waits), later + waits
                if later > _PATIENCE or (failed.retry_after_s or 0) > _LATER_MAX_S:
                    return Refused(f"the provider said `later` too often: {failed}")
                if tries == TRIES:
                    return Refused(f"{tries} calls failed, the last one: {failed}")
                if failed.retry_after_s is None and failed.kind != "unreadable":
                    await asyncio.sleep(_PAUSE_S * 2 ** (tries - 1))
        return Refused(f"{tries} replies were refused, the last one: {why}")

    async def _one_call(self, cell: Open, exam: Exam, asked: Asked, question: str) -> Vote:
        """Raises Refused and CallFailed, and what `_vote` raises."""
        async with self._room:
            if self._stopped is not None:  # while we waited
                raise self._stopped
            await self._bucket.take()
            call = await self._begin(cell, exam, asked, question)
            end = CallEnd(status="lost", error="nobody waited for its end", usage=None, cost_usd=None, latency_s=None)
            try:
                answered = await self._client.ask(exam.text, question, per_occurrence=asked.per_occurrence)
                end, vote = self._read(answered, asked, exam)
            except CallFailed as failed:
                cost = Decimal(0) if failed.unbilled else None
                end = CallEnd(status=failed.kind, error=str(failed), usage=None, cost_usd=cost, latency_s=failed.latency_s)
                if failed.retry_after_s is not None:  # the provider's word to every process, before anybody calls again
                    await self._bucket.close_for(min(failed.retry_after_s, _LATER_MAX_S))
                raise
            except JudgeUnusable as error:
                end = CallEnd(status="unusable", error=str(error), usage=None, cost_usd=Decimal(0), latency_s=None)
                raise
            finally:
                end = replace(end, error=end.error and self._redacted(end.error))
                await asyncio.shield(asyncio.to_thread(self._records.judge_calls.end, call, end))
        if isinstance(vote, Refused):
            raise vote
        return vote

    async def _begin(self, cell: Open, exam: Exam, asked: Asked, question: str) -> int:
        intent = CallIntent(
            experiment_id=self._experiment.id,
            cell_key=cell.key,
            criterion=asked.criterion,
            request_digest=asked.request_digest,
            judge_version=self._version,
            pool=self._pool,
            reserve_usd=self._most(len(exam.text.encode()) + len(question.encode())),
            deadline_s=self._services.settings.judge.timeout_s,
        )
        while (call := await asyncio.to_thread(self._records.judge_calls.begin, intent)) is None:
            await asyncio.sleep(_BUSY_S)
        self._n_calls += 1
        return call

    def _most(self, n_bytes: int) -> Decimal:
        """What the call can cost at most: no token is shorter than a byte. 0 when the model has no price."""
        usage = Usage(model=self._judge.model_name, cache_write_5m=n_bytes + _FORM_TOKENS, output=MAX_TOKENS)
        dearest = Usage(model=self._judge.model_name, input_uncached=n_bytes + _FORM_TOKENS, output=MAX_TOKENS)
        today = datetime.now(UTC).date()
        return max(self._prices.cost([one], today) or Decimal(0) for one in (usage, dearest))

    def _read(self, answered: Answered, asked: Asked, exam: Exam) -> tuple[CallEnd, Vote | Refused]:
        cost = None if answered.usage is None else self._prices.cost([answered.usage], datetime.now(UTC).date())
        vote: Vote | Refused
        try:
            if answered.arguments is None:
                raise Refused(str(answered.why))
            vote = read_reply(answered.arguments, asked, exam.shown)
        except Refused as why:
            vote = why
        usage = None if answered.usage is None else answered.usage.model_dump()
        refused = str(vote) if isinstance(vote, Refused) else None
        status = "ok" if refused is None else "refused"
        return CallEnd(status=status, error=refused, usage=usage, cost_usd=cost, latency_s=answered.latency_s), vote
