"""One arm's row: every number from its own cells alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from eval_pipeline.analysis import measures
from eval_pipeline.analysis.board import ArmRow, Latency, Money, Span, Trials
from eval_pipeline.analysis.measures import mean_over_cases
from eval_pipeline.analysis.stats import (
    ArmSummary,
    LatencyCell,
    arm_mean,
    case_clusters,
    cost_per_solved,
    latency_summary,
    pass_k,
    quantile_ci,
)
from eval_pipeline.analysis.tables import ScoredCell, count_failures
from eval_pipeline.domain.cell import Outcome

Worlds = Mapping[str, str] | None
ZERO = (Outcome.AGENT_ERROR, Outcome.AGENT_TIMEOUT, Outcome.BUDGET_EXCEEDED)


def arm_row(name: str, cells: Sequence[ScoredCell], summary: ArmSummary, trials: int, worlds: Worlds, model: object) -> ArmRow:
    """summary: of the arm's scores. score_common, ranks and front are of all arms together: they are added later."""
    mean, valid = summary.mean, [cell for cell in cells if cell.valid]
    latency, above = _latency(valid, worlds)
    money = _money(cells, worlds)
    passes = _rate(cells, measures.passed, worlds)
    failures = count_failures(cells)
    ended = len(valid) + (n_infra := sum(cell.status == Outcome.INFRA_FAILURE for cell in cells))
    return ArmRow(
        arm=name,
        score=mean.mean,
        ci_low=mean.ci_lower,
        ci_high=mean.ci_upper,
        bound_low=mean.bound_lower,
        bound_high=mean.bound_upper,
        pass_rate=passes.value,
        n_cases=mean.n_cases_planned,
        n_cells=len(cells),
        n_valid=len(valid),
        n_infra=n_infra,
        n_not_judged=sum(cell.score is None for cell in valid),
        n_agent_failed=sum(cell.status in ZERO for cell in cells),
        n_discarded=sum(attempt.discarded is not None for cell in cells for attempt in cell.view.attempts),
        n_unpriced=sum(cell.cost_usd is None for cell in valid),
        cost_unknown=list(dict.fromkeys(cell.cost_unknown for cell in valid if cell.cost_unknown is not None)),
        cost_usd_mean=money.a_case.value,
        sandbox_usd_mean=mean_over_cases(cells, measures.sandbox_usd),
        latency_p50_s=latency.p50.value,
        latency_p95_s=latency.p95.value,
        latency_above=above,
        stand_in=model == "stand-in",
        flags=list(mean.flags),
        failures=failures,
        rates={kind: count / ended if ended else None for kind, count in failures.items()},
        discard_reasons=list(dict.fromkeys(one.discarded for cell in cells for one in cell.view.attempts if one.discarded)),
        score_common=None,
        se=mean.se,
        se_same_cases=mean.se_fixed_cases,
        n_clusters=mean.n_clusters,
        coverage=mean.n_cells / mean.n_cells_planned if mean.n_cells_planned else 0.0,
        passed=passes,
        all_passed=_rate(cells, measures.all_passed, worlds),
        trials=_trials(cells, trials, worlds),
        money=money,
        latency=latency,
    )


def _rate(cells: Sequence[ScoredCell], measure: measures.Measure, worlds: Worlds) -> Span:
    mean = arm_mean([(cell.key.case_name, cell.key.trial, measure(cell)) for cell in cells], worlds)
    return Span(value=mean.mean, low=mean.ci_lower, high=mean.ci_upper)


def _trials(cells: Sequence[ScoredCell], k: int, worlds: Worlds) -> Trials:
    """A case without a known trial counts as one with too few."""
    known: dict[str, list[bool]] = {cell.key.case_name: [] for cell in cells}
    for cell in cells:
        if cell.passed is not None:
            known[cell.key.case_name].append(cell.passed)
    found = pass_k([len(one) for one in known.values()], [sum(one) for one in known.values()], k, case_clusters(known, worlds))
    if not found.complete:
        return Trials(k=k, all_k=Span(), any_k=Span())
    return Trials(
        k=k,
        all_k=Span(value=found.pass_hat_k, low=found.ci_hat_lower, high=found.ci_hat_upper),
        any_k=Span(value=found.pass_at_k, low=found.ci_at_lower, high=found.ci_at_upper),
    )


def _money(cells: Sequence[ScoredCell], worlds: Worlds) -> Money:
    valid = [cell for cell in cells if cell.valid]
    rows = [(cell.key.case_name, cell.key.trial, measures.cost_usd(cell), measures.passed(cell)) for cell in valid]
    # As if every cell were solved: the mean cost of a case, with the same interval
    a_case = cost_per_solved([(case, trial, cost, 1.0) for case, trial, cost, _ in rows], world=worlds)
    solved = cost_per_solved([row for row in rows if row[3] is not None], world=worlds)
    usages = [usage for cell in valid if cell.untold.isdisjoint({"cache_read", "input_tokens"}) for usage in cell.usages]
    cached = sum(usage.cache_read for usage in usages)
    sent = sum(usage.tokens - usage.output for usage in usages)
    return Money(
        a_case=Span(value=a_case.mean_cost, low=a_case.ci_lower, high=a_case.ci_upper),
        a_solved=Span(value=_finite(solved.cost_per_solved), low=solved.ci_lower, high=_finite(solved.ci_upper)),
        cold=mean_over_cases(valid, measures.cold_cost_usd),
        cache_share=cached / sent if sent else None,
        flags=list(solved.flags),
    )


def _finite(value: float | None) -> float | None:
    return None if value is None or math.isinf(value) else value


def _one_limit(timed: Sequence[tuple[ScoredCell, float]]) -> bool:
    """Whether what was censored is longer than all the rest, and so has its place among it."""
    limits = {value for cell, value in timed if cell.censored}
    return not limits or (len(limits) == 1 and all(value <= max(limits) for _, value in timed))


def _latency(valid: Sequence[ScoredCell], worlds: Worlds) -> tuple[Latency, list[str]]:
    """With the quantiles that lie above the longest limit."""
    timed = [(cell, cell.latency_s) for cell in valid if cell.latency_s is not None]
    found = latency_summary(
        LatencyCell(case=cell.key.case_name, latency_s=value, completed=not cell.censored) for cell, value in timed
    )
    rows: dict[str, list[float]] = {}
    for cell, value in timed:
        rows.setdefault(cell.key.case_name, []).append(math.inf if cell.censored else value)
    comparable = _one_limit(timed)
    shown = {"p50": (0.5, found.p50), "p95": (0.95, found.p95)}
    spans = dict.fromkeys(shown, Span())
    for level, (q, quantile) in shown.items():
        if quantile is None:
            continue
        interval = quantile_ci(list(rows.values()), q, clusters=case_clusters(rows, worlds)) if comparable else None
        low, high = (None, None) if interval is None else (_finite(interval.ci_lower), _finite(interval.ci_upper))
        spans[level] = Span(value=quantile.value_s, low=low, high=high)
    latency = Latency(**spans, rmst_s=found.rmst_s, tau_s=found.tau_s, timeout_rate=found.timeout_rate)
    return latency, [level for level, (_, quantile) in shown.items() if quantile is not None and quantile.above]
