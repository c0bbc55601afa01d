"""One call of a judge: its place and its money are held before it is made, and its end is written down with the verdict it gave."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property

from eval_pipeline.domain.experiment import JudgeSpec
from eval_pipeline.domain.usage import Usage
from eval_pipeline.domain.verdict import VerdictRow
from eval_pipeline.errors import BudgetExceeded
from eval_pipeline.runner.services import Services
from eval_pipeline.runner.together import Together
from eval_pipeline.scoring.judge_client import Answered, CallFailed, JudgeClient, JudgeUnusable, pool_of
from eval_pipeline.scoring.judge_prompt import Asked, Exam
from eval_pipeline.scoring.judge_reply import Refused, Vote, Work, read_reply
from eval_pipeline.scoring.judge_votes import MAX_TOKENS, judge_version
from eval_pipeline.store.judge_calls import CALLS, CALLS_PER_MINUTE
from eval_pipeline.store.judge_turns import CallEnd, CallIntent, Ended, JudgeTurns, Turn
from eval_pipeline.store.ledger import ExperimentRow
from eval_pipeline.vault.redaction import Redactor

LATER_MAX_S = 300.0
_BUSY_S = 0.2
_FORM_TOKENS = 2000
"""Above what the request itself takes: the tool's form and what a provider wraps around it."""
_LOST = CallEnd(status="lost", error="nobody waited for its end", usage=None, cost_usd=None, latency_s=None)

_NEVER_MADE = CallEnd(status="cancelled", error="it was not made", usage=None, cost_usd=Decimal(0), latency_s=None)


class AlreadySaid(Exception):
    """That vote is there: somebody else asked meanwhile."""


@dataclass(frozen=True)
class Matter:
    """A cell's work, as its judge is shown it."""

    cell_key: str
    bundle: str
    exam: Exam

    @cached_property
    def n_bytes(self) -> int:
        return len(self.exam.text.encode())

    @cached_property
    def work(self) -> Work:
        return Work(self.exam.shown)


class Desk:
    """stopped: why no further call is made. own: of the key that the judge is asked with."""

    def __init__(
        self, services: Services, experiment: ExperimentRow, judge: JudgeSpec, client: JudgeClient, own: Redactor
    ) -> None:
        self._services = services
        self._own = own
        self._experiment = experiment
        self._judge = judge
        self._client = client
        self._version = judge_version(judge)
        self._prices = services.prices_of(experiment)
        self.stopped: BudgetExceeded | JudgeUnusable | None = None
        self.n_calls = 0

    async def open(self) -> int:
        """How many calls are made at once. Before the first."""
        calls, pool = self._services.records.judge_calls, pool_of(self._judge)
        at_once = await asyncio.to_thread(calls.limit, CALLS, pool)
        self._turns = JudgeTurns(
            self._services.records.database,
            self._experiment.id,
            judge_version=self._version,
            pool=pool,
            per_minute=await asyncio.to_thread(calls.limit, CALLS_PER_MINUTE, pool),
            deadline_s=self._services.settings.judge.timeout_s,
        )
        self._together = Together(self._take)
        self._room = asyncio.Semaphore(at_once)
        return at_once

    async def close(self) -> None:
        """Every end is durable when it returns."""
        await self._together.close()

    def _take(self, items: list[Ended | CallIntent]) -> list[Turn | None]:
        ended = [one for one in items if isinstance(one, Ended)]
        turns = iter(self._turns.take(ended, [one for one in items if isinstance(one, CallIntent)]))
        return [next(turns) if isinstance(one, CallIntent) else None for one in items]

    def redacted(self, said: str) -> str:
        """Of the secrets of sandboxes, and of the key that the judge is asked with."""
        return self._own.text(self._services.secrets.redactor().text(said))

    def row(self, bundle: str, criterion: str, request: str, given: Sequence[VerdictRow], vote: Vote | Refused) -> VerdictRow:
        """given: the votes before it."""
        failed = isinstance(vote, Refused)
        return VerdictRow(
            request_digest=request,
            judge_version=self._version,
            vote=_next_vote(given),
            bundle=bundle,
            criterion=criterion,
            verdict=None if failed else vote.verdict,
            status="failed" if failed else "ok" if vote.verdict is not None else "abstained",
            reason=self.redacted(str(vote) if failed else vote.reason),
            quotes=() if failed else tuple(map(self.redacted, vote.quotes)),
        )

    async def keep(self, row: VerdictRow) -> None:
        await self._together.ask(Ended(call=None, end=None, verdict=row))

    async def call(self, matter: Matter, asked: Asked, given: Sequence[VerdictRow], question: str) -> VerdictRow:
        """Durable when it returns. Raises Refused, CallFailed, AlreadySaid, BudgetExceeded and JudgeUnusable."""
        async with self._room:
            if self.stopped is not None:  # while we waited
                raise self.stopped
            call = await self._begin(matter, asked, given, question)
            try:
                end, said = await self._ended(matter, asked, given, question)
            except BaseException:
                self._together.ask(Ended(call=call, end=_LOST, verdict=None))
                raise
            verdict = said if isinstance(said, VerdictRow) else None
            durable = self._together.ask(Ended(call=call, end=end, verdict=verdict))
        # Its place is free: who takes it begins in the transaction in which this one ends
        await durable
        if not isinstance(said, VerdictRow):
            raise said
        return said

    async def _ended(
        self, matter: Matter, asked: Asked, given: Sequence[VerdictRow], question: str
    ) -> tuple[CallEnd, VerdictRow | Refused | CallFailed | JudgeUnusable]:
        try:
            answered = await self._client.ask(matter.exam.text, question, per_occurrence=asked.per_occurrence)
        except CallFailed as failed:
            if failed.retry_after_s is not None:  # the provider's word to every process, before anybody calls again
                await self._turns.bucket.close_for(min(failed.retry_after_s, LATER_MAX_S))
            cost, error = Decimal(0) if failed.unbilled else None, self.redacted(str(failed))
            return CallEnd(status=failed.kind, error=error, usage=None, cost_usd=cost, latency_s=failed.latency_s), failed
        except JudgeUnusable as unusable:
            self.stopped = unusable
            error = self.redacted(str(unusable))
            return CallEnd(status="unusable", error=error, usage=None, cost_usd=Decimal(0), latency_s=None), unusable
        end, vote = self._read(answered, asked, matter.work)
        row = vote if isinstance(vote, Refused) else self.row(matter.bundle, asked.criterion, asked.request_digest, given, vote)
        return end, row

    async def _begin(self, matter: Matter, asked: Asked, given: Sequence[VerdictRow], question: str) -> int:
        intent = CallIntent(
            cell_key=matter.cell_key,
            criterion=asked.criterion,
            request_digest=asked.request_digest,
            vote=_next_vote(given),
            reserve_usd=self._most(matter.n_bytes + len(question.encode())),
        )
        while True:
            turn = await self._turn(intent)
            if turn.call is not None:
                self.n_calls += 1
                return turn.call
            if turn.said:
                raise AlreadySaid
            if turn.refused is not None:
                raise turn.refused
            intent = replace(intent, has_token=True)
            await asyncio.sleep(_BUSY_S if turn.wait_s is None else turn.wait_s)

    async def _turn(self, intent: CallIntent) -> Turn:
        answer = self._together.ask(intent)
        try:
            turn = await asyncio.shield(answer)
        except asyncio.CancelledError:
            answer.add_done_callback(self._never_made)
            raise
        assert turn is not None
        return turn

    def _never_made(self, answer: asyncio.Future[Turn | None]) -> None:
        if not answer.cancelled() and answer.exception() is None and (turn := answer.result()) and turn.call is not None:
            self._together.ask(Ended(call=turn.call, end=_NEVER_MADE, verdict=None))

    def _most(self, n_bytes: int) -> Decimal:
        """What the call can cost at most: no token is shorter than a byte. 0 when the model has no price."""
        usage = Usage(model=self._judge.model_name, cache_write_5m=n_bytes + _FORM_TOKENS, output=MAX_TOKENS)
        dearest = Usage(model=self._judge.model_name, input_uncached=n_bytes + _FORM_TOKENS, output=MAX_TOKENS)
        today = datetime.now(UTC).date()
        return max(self._prices.cost([one], today) or Decimal(0) for one in (usage, dearest))

    def _read(self, answered: Answered, asked: Asked, work: Work) -> tuple[CallEnd, Vote | Refused]:
        cost = None if answered.usage is None else self._prices.cost([answered.usage], datetime.now(UTC).date())
        vote: Vote | Refused
        try:
            if answered.arguments is None:
                raise Refused(str(answered.why))
            vote = read_reply(answered.arguments, asked, work)
        except Refused as why:
            vote = why
        usage = None if answered.usage is None else answered.usage.model_dump()
        refused = self.redacted(str(vote)) if isinstance(vote, Refused) else None
        status = "ok" if refused is None else "refused"
        return CallEnd(status=status, error=refused, usage=usage, cost_usd=cost, latency_s=answered.latency_s), vote


def _next_vote(given: Sequence[VerdictRow]) -> int:
    return max((row.vote for row in given), default=-1) + 1
