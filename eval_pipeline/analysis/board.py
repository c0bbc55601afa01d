"""What a leaderboard holds: an arm a row, the comparisons between them, and what all of it stands on."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from eval_pipeline.analysis.corrected import CorrectedArm
from eval_pipeline.analysis.standing import ArmAlarm


@dataclass(frozen=True, kw_only=True)
class Span:
    """A number with its 95% CI for new cases. None: could not be had; of the ends also: nothing bounds it."""

    value: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Money:
    """US dollars for models, means over cases. a_case, a_solved: with a log interval; the mean cost, over the mean pass rate.

    a_solved.value is None with the flag none_solved: nothing was solved, and it is infinite. cold: a case, had nothing come from a
    cache. cache_share: of all input tokens. flags: no_data, none_solved, zero_cost, one_case, one_cluster.
    """

    a_case: Span
    a_solved: Span
    cold: float | None
    cache_share: float | None
    flags: list[str]


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Seconds. p50, p95: intervals only where all cases share one limit, or nothing was censored. rmst_s: the mean of min(latency, tau_s)."""

    p50: Span
    p95: Span
    rmst_s: float | None
    tau_s: float | None
    timeout_rate: float | None


@dataclass(frozen=True, kw_only=True)
class Trials:
    """k: the experiment's trials. all_k: all of them pass (pass^k); any_k: one does (pass@k). None when a case has fewer that are known."""

    k: int
    all_k: Span
    any_k: Span


@dataclass(frozen=True, kw_only=True)
class Front:
    """The share of joint bootstraps over clusters, on the cases all arms have, in which no arm beats this one in every respect.

    cost: by score and cost; latency: by score, cost and latency. on: what `cost` says. None: fewer than two arms or clusters, or
    something is unknown.
    """

    cost: float | None = None
    latency: float | None = None
    on: Literal["on", "off", "undetermined"] | None = None


@dataclass(frozen=True, kw_only=True)
class ArmRow:
    """None: could not be had, or too few cells to say (p95 below 100).

    score: mean over cases of the mean over trials. ci_*: 95% CI for new cases. cost_usd_mean (models), sandbox_usd_mean, pass_rate:
    means over cases likewise. all_pass_rate: of cells that satisfy every criterion, whatever the policy. score_common: over the
    cases that all arms have. se_same_cases: of the trials' noise alone.
    rank_*: best and worst rank that the comparisons leave open; None without ranks (`Leaderboard.unranked` says why).
    latency_above: quantiles that lie above the longest time limit. n_not_judged: valid cells without a score.
    coverage: share of the planned cells that have a score.
    failures: cells by kind of failure, each kind apart; n_agent_failed: those that count as zero. rates: of the cells that ended.
    discard_reasons: that were given for discarded results, each once. n_unpriced: valid cells of unknown cost; cost_unknown: why,
    each reason once.
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
    cost_unknown: list[str]
    cost_usd_mean: float | None
    sandbox_usd_mean: float | None
    latency_p50_s: float | None
    latency_p95_s: float | None
    latency_above: list[str]
    stand_in: bool
    flags: list[str]
    failures: dict[str, int]
    rates: dict[str, float | None]
    discard_reasons: list[str]
    score_common: float | None
    se: float | None
    se_same_cases: float | None
    n_clusters: int
    coverage: float
    passed: Span
    all_passed: Span
    trials: Trials
    money: Money
    latency: Latency
    rank_best: int | None = None
    rank_worst: int | None = None
    front: Front = Front()


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """b against a, paired by case: diff is positive when b is better. p_holm: adjusted for all comparisons of the family.

    significant None: there is no p. flags: no_shared_cases, one_cluster, insufficient_discordance, zero_variance.
    """

    a: str
    b: str
    n_shared: int
    diff: float | None
    ci_low: float | None
    ci_high: float | None
    p: float | None
    p_holm: float | None
    significant: bool | None
    wins: int | None
    losses: int | None
    ties: int | None
    flags: list[str]


@dataclass(frozen=True, kw_only=True)
class JudgeLine:
    """Who judged, and what this experiment paid for it so far. n_unpriced: calls whose cost is not known, left out of `cost_usd`.

    badge: `validated`, or `unvalidated` for badge_reasons. n_by_hand: criteria that people decided in its place.
    corrected: an arm each, by the cells that people labelled; none without such.
    """

    model: str
    version: str
    n_calls: int
    n_failed_calls: int
    cost_usd: float
    n_unpriced: int
    latency_s: float
    badge: str
    badge_reasons: list[str]
    n_by_hand: int
    corrected: list[CorrectedArm]


@dataclass(frozen=True, kw_only=True)
class Versions:
    """Two boards compare when these are equal. judge None: no criterion is judged. prices: of the price book."""

    run: str
    score: str
    judge: str | None
    prices: str
    scoring: int


@dataclass(frozen=True, kw_only=True)
class ImportedFrom:
    """system: that wrote the files. score: what was read as the score; low, high: its range. digest: of the imported table.

    pass_at None: nobody said from where on a cell passes. n_unknown_cost: cells that ran, whose cost is not told; it is not in spent_usd.
    """

    system: str
    score: str
    low: float
    high: float
    pass_at: float | None
    digest: str
    files: list[str]
    notes: list[str]
    n_unknown_cost: int


@dataclass(frozen=True, kw_only=True)
class Leaderboard:
    """imported: where the table is from, when it is not ours; nothing is known then of versions, isolation, egress and judges.

    status: final, or provisional with the reasons; arms in the experiment's order. n_unsafe: cells that ran without isolation.

    unranked: why no arm has a rank; empty when they have, or when there is one arm alone.
    comparisons: with the baseline when one is named, else of all pairs.
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
    n_cells: int
    missing: dict[str, int]
    leaked_sandboxes: int | None
    open_egress: str | None
    overhead_usd: float
    n_overhead_unknown: int
    n_measured: int
    comparisons: list[Comparison]
    unranked: list[str]
    coverage: float
    n_cases: int
    n_common_cases: int
    versions: Versions | None
    imported: ImportedFrom | None = None
    judge: JudgeLine | None = None
    alarms: list[ArmAlarm] = field(default_factory=list["ArmAlarm"])

    def as_data(self) -> dict[str, Any]:
        return asdict(self)
