"""The leaderboard: one row an arm, with what is missing counted beside it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from eval_pipeline.analysis.standing import ArmAlarm
from eval_pipeline.analysis.stats import LatencyCell, experiment_summary, latency_summary, provisional_reasons, score_range
from eval_pipeline.analysis.tables import ScoredCell, count_failures
from eval_pipeline.domain.cell import Outcome
from eval_pipeline.domain.failure import MAX_PROVIDER_GAP, Failure
from eval_pipeline.store.ledger import ExperimentRow


@dataclass(frozen=True, kw_only=True)
class ArmRow:
    """None: could not be had, or too few cells to say (p95 below 100).

    score: mean over cases of the mean over trials. ci_*: 95% CI for new cases. cost_usd_mean (models), sandbox_usd_mean, pass_rate:
    means over cases likewise.
    latency_above: quantiles that lie above the longest time limit. n_not_judged: valid cells without a score.
    failures: cells by kind of failure, each kind apart; n_agent_failed: those that count as zero.
    discard_reasons: that were given for discarded results, each once.
    stand_in: the arm's model is the stand-in, so its numbers say nothing about a real model.
    """

    arm: str
    score: float | None
    ci_low: float | None
    ci_high: float | None
    bound_low: float | None
    bound_high: float | None
    pass_rate: float | None
    n_cases: int
    n_cells: int
    n_valid: int
    n_infra: int
    n_not_judged: int
    n_agent_failed: int
    n_discarded: int
    n_unpriced: int
    cost_usd_mean: float | None
    sandbox_usd_mean: float | None
    latency_p50_s: float | None
    latency_p95_s: float | None
    latency_above: list[str]
    stand_in: bool
    flags: list[str]
    failures: dict[str, int] = field(default_factory=dict[str, int])
    discard_reasons: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, kw_only=True)
class JudgeLine:
    """Who judged, and what this experiment paid for it so far. n_unpriced: calls whose cost is not known, left out of `cost_usd`."""

    model: str
    version: str
    n_calls: int
    n_failed_calls: int
    cost_usd: float
    n_unpriced: int
    latency_s: float


@dataclass(frozen=True, kw_only=True)
class Leaderboard:
    """status: final, or provisional with the reasons; arms in the experiment's order. n_unsafe: cells that ran without isolation.

    n_cells: expected. missing: those without a valid result, by state.
    leaked_sandboxes: of the whole installation, by the last surveys; None when nobody has looked yet.
    open_egress: what did not hold of the lists of hosts that agents might reach; None when they held, or nothing was to be reached.
    spent_usd: for models; sandbox_spent_usd: for sandboxes; both of all attempts whose cost is known. n_sandbox_unknown: attempts whose
    sandbox has no known cost. overhead_usd: of spent_usd, what went into attempts that don't count; n_overhead_unknown: those of unknown cost.
    alarms: arms that failed as a whole: their scores say nothing about the model.
    n_measured: cells whose usage the model gateway measured; that of the others is self-reported.
    """

    experiment: str
    status: str
    reasons: list[str]
    policy: str
    baseline: str | None
    arms: list[ArmRow]
    spent_usd: float
    sandbox_spent_usd: float
    n_sandbox_unknown: int
    n_open: int
    n_unsafe: int
    n_cells: int = 0
    missing: dict[str, int] = field(default_factory=dict[str, int])
    leaked_sandboxes: int | None = None
    open_egress: str | None = None
    judge: JudgeLine | None = None
    overhead_usd: float = 0.0
    n_overhead_unknown: int = 0
    n_measured: int = 0
    alarms: list[ArmAlarm] = field(default_factory=list["ArmAlarm"])

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


def leaderboard(experiment: ExperimentRow, cells: Sequence[ScoredCell], leaked_sandboxes: int | None = None) -> Leaderboard:
    worlds = {case.name: case.world for case in experiment.run.cases}
    span = score_range(experiment.score.policy, [case.rubric for case in experiment.score.cases.values()])
    table = [(cell.key.arm, cell.key.case_name, cell.key.trial, _judged_status(cell), cell.score) for cell in cells]
    summaries = experiment_summary(table, worlds, span)
    by_arm: dict[str, list[ScoredCell]] = defaultdict(list)
    for cell in cells:
        by_arm[cell.key.arm].append(cell)
    arms = [_arm_row(arm.name, by_arm[arm.name], summaries[arm.name], arm.config.get("model")) for arm in experiment.run.arms]
    reasons = [*provisional_reasons(summaries), *_provider_gap(arms)]
    return Leaderboard(
        experiment=experiment.id,
        status="provisional" if reasons else "final",
        reasons=reasons,
        policy=experiment.score.policy,
        baseline=experiment.baseline,
        arms=arms,
        spent_usd=float(sum(cell.spent_usd for cell in cells)),
        sandbox_spent_usd=float(sum(cell.sandbox_spent_usd for cell in cells)),
        n_sandbox_unknown=sum(cell.n_sandbox_unknown for cell in cells),
        n_open=sum(not cell.valid for cell in cells),
        n_unsafe=sum(cell.view.unsafe for cell in cells),
        n_cells=len(cells),
        missing=dict(Counter(cell.state for cell in cells if not cell.valid)),
        leaked_sandboxes=leaked_sandboxes,
        open_egress=next(filter(None, (cell.view.open_egress for cell in cells)), None),
        overhead_usd=float(sum(cell.overhead_usd for cell in cells)),
        n_overhead_unknown=sum(cell.n_overhead_unknown for cell in cells),
        n_measured=sum(cell.usage_source == "measured" for cell in cells),
    )


def _provider_gap(arms: Sequence[ArmRow]) -> list[str]:
    """An arm whose provider failed more often looks worse than it is. Rates are of the cells that ended."""
    ended = [(arm, arm.n_valid + arm.n_infra) for arm in arms]
    rates = [arm.failures[Failure.PROVIDER] / n for arm, n in ended if n]
    if not rates or max(rates) - min(rates) <= MAX_PROVIDER_GAP + 1e-12:
        return []
    return [f"provider errors differ between arms: {min(rates):.1%} to {max(rates):.1%}, 2 points are allowed"]


def _judged_status(cell: ScoredCell) -> str:
    """A valid cell without a score is missing for its judge's sake, not for the platform's."""
    return "judge_failure" if cell.valid and cell.score is None else cell.status


def _arm_row(name: str, cells: list[ScoredCell], summary: Any, model: object) -> ArmRow:
    mean = summary.mean
    valid = [cell for cell in cells if cell.valid]
    latency = latency_summary(
        LatencyCell(case=cell.key.case_name, latency_s=cell.latency_s, completed=not cell.censored)
        for cell in valid
        if cell.latency_s is not None
    )
    quantiles = {"p50": latency.p50, "p95": latency.p95}
    return ArmRow(
        arm=name,
        score=mean.mean,
        ci_low=mean.ci_lower,
        ci_high=mean.ci_upper,
        bound_low=mean.bound_lower,
        bound_high=mean.bound_upper,
        pass_rate=_mean_over_cases(cells, lambda cell: None if cell.passed is None else float(cell.passed)),
        n_cases=mean.n_cases_planned,
        n_cells=len(cells),
        n_valid=len(valid),
        n_infra=sum(cell.status == Outcome.INFRA_FAILURE for cell in cells),
        n_not_judged=sum(cell.score is None for cell in valid),
        n_agent_failed=sum(
            cell.status in (Outcome.AGENT_ERROR, Outcome.AGENT_TIMEOUT, Outcome.BUDGET_EXCEEDED) for cell in cells
        ),
        n_discarded=sum(attempt.discarded is not None for cell in cells for attempt in cell.view.attempts),
        n_unpriced=sum(cell.cost_usd is None for cell in valid),
        cost_usd_mean=_mean_over_cases(cells, lambda cell: None if cell.cost_usd is None else float(cell.cost_usd)),
        sandbox_usd_mean=_mean_over_cases(
            cells, lambda cell: None if cell.sandbox_cost_usd is None else float(cell.sandbox_cost_usd)
        ),
        latency_p50_s=latency.p50.value_s if latency.p50 else None,
        latency_p95_s=latency.p95.value_s if latency.p95 else None,
        latency_above=[level for level, value in quantiles.items() if value is not None and value.above],
        stand_in=model == "stand-in",
        flags=list(mean.flags),
        failures=count_failures(cells),
        discard_reasons=list(dict.fromkeys(one.discarded for cell in cells for one in cell.view.attempts if one.discarded)),
    )


def _mean_over_cases(cells: Sequence[ScoredCell], value: Any) -> float | None:
    """Mean over cases of the mean over their valid cells with a known value; None without any."""
    known: dict[str, list[float]] = defaultdict(list)
    for cell in cells:
        if cell.valid and (number := value(cell)) is not None:
            known[cell.key.case_name].append(number)
    return fmean(fmean(numbers) for numbers in known.values()) if known else None
