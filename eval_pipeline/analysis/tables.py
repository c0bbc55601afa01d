"""The scored table: one row a cell, a view over attempts and verdicts under one score lock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from eval_pipeline.analysis.cell_cost import cost_of, why_unknown
from eval_pipeline.analysis.human import HUMAN_VERSION
from eval_pipeline.analysis.origin import Origin, origins
from eval_pipeline.analysis.stat_scores import CriterionVerdict, cell_value, critical_ok, pass_cell, score_cell, score_groups
from eval_pipeline.domain.budget import cost_over_usd
from eval_pipeline.domain.cell import CellState, Outcome
from eval_pipeline.domain.failure import Failure, failure_of
from eval_pipeline.domain.ids import CellKey
from eval_pipeline.domain.lock import ScoredCase
from eval_pipeline.domain.rubric import Criterion, Policy
from eval_pipeline.domain.usage import Usage
from eval_pipeline.domain.verdict import VerdictRow
from eval_pipeline.scoring.judge_questions import judge_questions
from eval_pipeline.scoring.prices import PriceBook
from eval_pipeline.scoring.verdicts import compared_state, questions
from eval_pipeline.store.cell_views import AttemptView, CellView
from eval_pipeline.store.judge_calls import JudgeSpend
from eval_pipeline.store.ledger import ExperimentRow


@dataclass(frozen=True, kw_only=True)
class CriterionRow:
    """status: ok, failed (asked, no verdict could be had), abstained (the judge could not tell) or not_judged (nobody was asked yet).

    quotes: what a judge quoted of the work. judge: it is a judge's; by_hand: people decided it
    in the judge's place.
    """

    id: str
    text: str
    points: float
    group: str | None
    verdict: float | None
    status: str
    reason: str | None
    quotes: list[str] = field(default_factory=list[str])
    by_hand: bool = False
    judge: bool = False


# slots: an object of more than 30 attributes would carry a dictionary of its own, four times as large
@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredCell:
    """status: the outcome; infra_failure for a cell without attempts left; cancelled for one that is still open.

    score: what the cell counts as, None when it could not be had; lower and upper bound it then. cost_usd: of the counted attempt.
    all_passed: every criterion is satisfied, whatever the policy; an agent's failure satisfies none. cold_cost_usd: cost_usd, had nothing
    come from a cache. cost_over_usd: how far cost_usd is above the case's limit, None without both. spent_usd: of all attempts whose cost is known; both are
    for models. sandbox_*: likewise for the sandbox; sandbox_spent_s and
    sandbox_spent_usd are of all attempts, as far as they are known, and n_sandbox_unknown counts those whose sandbox has no known cost.
    n_satisfied, n_unsatisfied: of the criteria that were decided; a tie is neither. judge_cost_usd: of all calls of judges about the
    cell that this experiment paid for; None when that of one is unknown, or nobody looked.
    groups: the score by each group's criteria alone, by the same policy. censored: the latency is the time limit, not a measurement.
    cost_unknown: why a valid cell has no cost_usd, in words.
    untold: columns of tokens that usages count as 0 and nobody told; of imported cells alone.
    """

    key: CellKey
    state: str
    status: str
    score: float | None
    lower: float | None
    upper: float | None
    passed: bool | None
    all_passed: bool | None
    n_criteria: int
    n_not_judged: int
    n_judge_failed: int
    n_satisfied: int
    n_unsatisfied: int
    cost_usd: Decimal | None
    cold_cost_usd: Decimal | None
    cost_over_usd: Decimal | None
    spent_usd: Decimal
    sandbox_s: float | None
    sandbox_cost_usd: Decimal | None
    sandbox_spent_s: float
    sandbox_spent_usd: Decimal
    n_sandbox_unknown: int
    judge_cost_usd: Decimal | None
    latency_s: float | None
    censored: bool
    usages: list[Usage]
    criteria: list[CriterionRow]
    groups: dict[str, float | None]
    counted: AttemptView | None
    view: CellView
    origin: Origin
    cost_unknown: str | None = None
    untold: frozenset[str] = frozenset()

    @property
    def usage_source(self) -> str | None:
        """Who says what the counted attempt used: `measured` by the model gateway, or `self-reported` by the agent."""
        return self.counted.usage_source if self.counted else None

    @property
    def lacks_verdicts_as_refusal(self) -> bool:
        """Then it counts 0, where any other cell has no score."""
        return self.status == Outcome.REFUSAL and any(row.verdict is None for row in self.criteria)

    @property
    def n_by_hand(self) -> int:
        """Criteria that people decided in the judge's place."""
        return sum(row.by_hand for row in self.criteria)

    @property
    def overhead_usd(self) -> Decimal:
        """For models, in the attempts that don't count, as far as it is known."""
        return sum((one.cost_usd for one in self._uncounted if one.cost_usd is not None), Decimal(0))

    @property
    def n_overhead_unknown(self) -> int:
        return sum(one.cost_usd is None and one.ended_at is not None for one in self._uncounted)

    @property
    def _uncounted(self) -> list[AttemptView]:
        return [one for one in self.view.attempts if self.counted is None or one.id != self.counted.id]

    @property
    def valid(self) -> bool:
        return self.counted is not None

    @property
    def _last(self) -> AttemptView | None:
        return self.counted or (self.view.attempts[-1] if self.view.attempts else None)

    @property
    def error(self) -> str | None:
        return self._last.error if self._last else None

    @property
    def error_class(self) -> str | None:
        return self._last.error_class if self._last else None

    @property
    def failure(self) -> Failure | None:
        """Why there is no good result: how the cell ended, or else its judge. None also while it is open."""
        return next(iter(self.failures), None)

    @property
    def failures(self) -> list[Failure]:
        """More than one when a refusal could not be judged either."""
        ended = failure_of(self.status, self.error_class)
        judge = Failure.JUDGE if self.valid and self.score is None and self.n_judge_failed else None
        return [one for one in (ended, judge) if one is not None]


def counted_status(cell: ScoredCell) -> str:
    """What its score is to be taken as: a score is what the cell counts as, however it ended; a valid cell without one is missing for
    its judge's sake, not for the platform's."""
    if cell.score is not None:
        return Outcome.OK
    return "judge_failure" if cell.valid else cell.status


def count_failures(cells: Iterable[ScoredCell]) -> dict[str, int]:
    """Of every kind, also of those that did not happen."""
    counts = Counter(failure for cell in cells for failure in cell.failures)
    return {str(failure): counts[failure] for failure in Failure}


def scored_table(
    experiment: ExperimentRow,
    cells: list[CellView],
    verdicts: Mapping[str, VerdictRow],
    judge_spend: Mapping[str, JudgeSpend] | None = None,
) -> list[ScoredCell]:
    """One row a planned cell, in tensor order. verdicts: by request digest. judge_spend: by cell; None: not looked up."""
    prices = PriceBook.from_rows(experiment.score.prices, f"{experiment.id}: prices")
    origin = origins(experiment, prices)
    return [_scored(experiment, cell, verdicts, prices, origin, judge_spend) for cell in cells]


def _scored(
    experiment: ExperimentRow,
    cell: CellView,
    verdicts: Mapping[str, VerdictRow],
    prices: PriceBook,
    origin: Callable[[CellKey], Origin],
    judge_spend: Mapping[str, JudgeSpend] | None,
) -> ScoredCell:
    key = CellKey.parse(cell.key)
    rubric = experiment.score.cases[key.case_name]
    status = _status(cell)
    asked = {} if cell.counted is None else asked_of(experiment, key, cell.counted)
    rows = [_criterion(criterion, verdicts.get(asked.get(criterion.id, ""))) for criterion in rubric.rubric.criteria]
    decided = [CriterionVerdict.of(criterion, row.verdict) for criterion, row in zip(rubric.rubric.criteria, rows, strict=True)]
    raw = score_cell(decided, experiment.score.policy)
    score = cell_value(status, raw.score)
    known = score is not None
    attempts = cell.attempts
    usages = [Usage.model_validate(usage) for usage in cell.counted.usage] if cell.counted else []
    limits = experiment.run.case(key.case_name).limits
    at_most_usd = experiment.believed_usd(limits)
    cost = cost_of(cell.counted, usages, prices, at_most_usd)
    cold = [_cold(usage) for usage in usages]
    return ScoredCell(
        key=key,
        state=cell.state,
        status=status,
        score=score,
        lower=score if known else raw.lower,
        upper=score if known else raw.upper,
        passed=_passed(status, score, rubric, decided),
        all_passed=_all_passed(status, decided),
        n_criteria=len(rows),
        n_not_judged=sum(row.status == "not_judged" for row in rows) if status in (Outcome.OK, Outcome.REFUSAL) else 0,
        n_judge_failed=sum(row.status in ("failed", "abstained") for row in rows),
        n_satisfied=sum(one.satisfied is True for one in decided),
        n_unsatisfied=sum(one.satisfied is False for one in decided),
        cost_usd=cost,
        cold_cost_usd=prices.cost(cold, cell.counted.created_at.date()) if cell.counted and cold and cost is not None else None,
        cost_over_usd=cost_over_usd(limits, cost),
        spent_usd=sum((one.cost_usd for one in attempts if one.cost_usd is not None), Decimal(0)),
        sandbox_s=cell.counted.sandbox_s if cell.counted else None,
        sandbox_cost_usd=cell.counted.sandbox_cost_usd if cell.counted else None,
        sandbox_spent_s=sum(one.sandbox_s for one in attempts if one.sandbox_s is not None),
        sandbox_spent_usd=sum((one.sandbox_cost_usd for one in attempts if one.sandbox_cost_usd is not None), Decimal(0)),
        n_sandbox_unknown=sum(one.sandbox_cost_usd is None for one in attempts),
        judge_cost_usd=None if judge_spend is None else _judge_cost(judge_spend.get(cell.key)),
        latency_s=_latency(status, cell.counted, experiment, key),
        censored=status == Outcome.AGENT_TIMEOUT,
        usages=usages,
        criteria=rows,
        groups=_groups(status, rubric, decided, experiment.score.policy),
        counted=cell.counted,
        view=cell,
        origin=origin(key),
        cost_unknown=None if cell.counted is None or cost is not None else why_unknown(cell.counted, usages, prices, at_most_usd),
    )


def _status(cell: CellView) -> str:
    if cell.state == CellState.DONE and cell.outcome is not None:
        return cell.outcome
    return Outcome.INFRA_FAILURE if cell.state == CellState.FAILED else Outcome.CANCELLED


def asked_of(experiment: ExperimentRow, key: CellKey, counted: AttemptView) -> dict[str, str]:
    """Criterion -> digest of the question that was asked about this attempt, by a check or of the judge."""
    if counted.bundle is None:
        return {}
    scored, before = experiment.score.cases[key.case_name], compared_state(counted.evidence)
    checks = questions(scored.rubric, experiment.run.worlds[key.world], counted.bundle, before)
    judged = judge_questions(experiment.run.case(key.case_name), scored, counted.bundle, before)
    return {one.criterion.id: one.request_digest for one in checks} | {one.criterion: one.question_digest for one in judged}


def _criterion(criterion: Criterion, found: VerdictRow | None) -> CriterionRow:
    return CriterionRow(
        id=criterion.id,
        text=criterion.text,
        points=criterion.points,
        group=criterion.group,
        verdict=found.verdict if found else None,
        status=found.status if found else "not_judged",
        reason=found.reason if found else None,
        quotes=list(found.quotes) if found else [],
        by_hand=found is not None and found.judge_version == HUMAN_VERSION,
        judge=criterion.judge,
    )


def _passed(status: str, score: float | None, case: ScoredCase, decided: list[CriterionVerdict]) -> bool | None:
    if status in (Outcome.AGENT_ERROR, Outcome.AGENT_TIMEOUT, Outcome.BUDGET_EXCEEDED):
        return False
    return pass_cell(score, case.rubric.pass_at, critical_ok(decided))


def _all_passed(status: str, decided: list[CriterionVerdict]) -> bool | None:
    value = cell_value(status, score_cell(decided, "all_pass").score)
    return None if value is None else value == 1.0


def _groups(status: str, case: ScoredCase, decided: list[CriterionVerdict], policy: Policy) -> dict[str, float | None]:
    """None: not decided, or a group that can only take points away."""
    found = score_groups(decided, [criterion.group for criterion in case.rubric.criteria], policy)
    return {name: None if group.lower is None else cell_value(status, group.score) for name, group in found.items()}


def _judge_cost(spent: JudgeSpend | None) -> Decimal | None:
    if spent is None:
        return Decimal(0)
    return None if spent.n_unpriced else spent.cost_usd


def _cold(usage: Usage) -> Usage:
    return usage.model_copy(update={"input_uncached": usage.input_uncached + usage.cache_read, "cache_read": 0})


def _latency(status: str, counted: AttemptView | None, experiment: ExperimentRow, key: CellKey) -> float | None:
    if counted is None:
        return None
    return experiment.run.case(key.case_name).limits.wall_s if status == Outcome.AGENT_TIMEOUT else counted.latency_s
