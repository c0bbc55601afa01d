"""The statistics of the product, one name each.

stat_scores          verdicts -> score, pass, value in a mean
stat_arms            cells -> an arm's mean, bounds, interval; arms -> comparable means
stat_intervals       CR2, Wilson with t, Korn-Graubard, proportions, trial noise
stat_bootstrap       resampling of clusters
stat_pairs           two arms on shared cases: difference, sign flips, effect sizes
stat_family          several comparisons: Holm, rank intervals
stat_noninferiority  no worse than by a margin
stat_ratio           ratios of cost and latency, cost per solved case
stat_power           detectable effects, required cases, trials against cases
stat_sequential      planned and unplanned looks, queries of a holdout
stat_holdout         dev and holdout cases of a search
stat_passk           pass@k, pass^k
stat_cost            token classes and what they cost
stat_latency         quantiles under timeouts, and their intervals
stat_pareto          arms that none dominates
stat_judges          votes and biases of judges
stat_agreement       agreement with humans
stat_correction      rates and means corrected by human labels

None means undefined or missing, everywhere; no function returns NaN, and none puts 0 in its place. Randomness comes from
numpy's default generator with the stated seed, 0 unless given.
"""

from eval_pipeline.analysis.stat_agreement import (
    AgreementIntervals,
    Alpha,
    ArmDifference,
    Badge,
    Kappa,
    agreement_ci,
    arm_differences,
    cohen_kappa,
    fleiss_kappa,
    judge_badge,
    krippendorff_alpha,
)
from eval_pipeline.analysis.stat_arms import (
    AdjustedMeans,
    ArmMean,
    ArmSummary,
    adjusted_means,
    arm_mean,
    experiment_summary,
    provisional_reasons,
)
from eval_pipeline.analysis.stat_bootstrap import (
    bca_mean_ci,
    bootstrap_means,
    bootstrap_sums,
    cluster_bootstrap,
    percentiles,
)
from eval_pipeline.analysis.stat_correction import (
    PpiMean,
    RoganGladen,
    ppi_mean,
    rogan_gladen,
    rogan_gladen_point,
)
from eval_pipeline.analysis.stat_cost import (
    CallCost,
    call_cost,
    disjoint_tokens,
    token_cost,
)
from eval_pipeline.analysis.stat_family import (
    Adjusted,
    Contrast,
    contrasts,
    holm,
    mcnemar_exact,
    rank_intervals,
)
from eval_pipeline.analysis.stat_holdout import (
    Split,
    loop_value,
    split_holdout,
)
from eval_pipeline.analysis.stat_intervals import (
    case_clusters,
    cr2,
    korn_graubard,
    proportion_ci,
    se_clustered_cells,
    se_fixed_cases,
    wilson_t,
    wilson_t_cr2,
)
from eval_pipeline.analysis.stat_judges import (
    OrderCheck,
    PositionBias,
    Votes,
    aggregate_votes,
    family_gaps,
    order_check,
    position_bias,
    verbosity_spearman,
)
from eval_pipeline.analysis.stat_latency import (
    LatencyCell,
    LatencySummary,
    QuantileInterval,
    censored_latency,
    latency_summary,
    quantile_ci,
    quantiles,
)
from eval_pipeline.analysis.stat_noninferiority import (
    NonInferiority,
    non_inferiority,
)
from eval_pipeline.analysis.stat_pairs import (
    PairedDifference,
    paired_difference,
    prob_superiority_trials,
    sign_flip_p,
)
from eval_pipeline.analysis.stat_pareto import (
    front_label,
    pareto_front,
    prob_on_front,
    probs_on_fronts,
)
from eval_pipeline.analysis.stat_passk import (
    PassK,
    pass_k,
)
from eval_pipeline.analysis.stat_power import (
    DetectableEffect,
    OptimalTrials,
    RequiredCases,
    Variances,
    mde,
    optimal_trials,
    pilot_variances,
    required_cases,
)
from eval_pipeline.analysis.stat_ratio import (
    CostPerSolved,
    LogRatio,
    cost_per_solved,
    paired_log_ratio,
)
from eval_pipeline.analysis.stat_scores import (
    STATUS_RULES,
    CellScore,
    CriterionVerdict,
    cell_value,
    critical_ok,
    healthbench_aggregate,
    median_count,
    pass_cell,
    score_cell,
    score_groups,
    score_range,
)
from eval_pipeline.analysis.stat_sequential import (
    HOLDOUT_QUERIES,
    Boundaries,
    ConfidenceSequence,
    asymptotic_cs,
    confirm_alpha,
    group_sequential_boundaries,
)

__all__ = [
    "HOLDOUT_QUERIES",
    "STATUS_RULES",
    "Adjusted",
    "AdjustedMeans",
    "AgreementIntervals",
    "Alpha",
    "ArmDifference",
    "ArmMean",
    "ArmSummary",
    "Badge",
    "Boundaries",
    "CallCost",
    "CellScore",
    "ConfidenceSequence",
    "Contrast",
    "CostPerSolved",
    "CriterionVerdict",
    "DetectableEffect",
    "Kappa",
    "LatencyCell",
    "LatencySummary",
    "LogRatio",
    "NonInferiority",
    "OptimalTrials",
    "OrderCheck",
    "PairedDifference",
    "PassK",
    "PositionBias",
    "PpiMean",
    "QuantileInterval",
    "RequiredCases",
    "RoganGladen",
    "Split",
    "Variances",
    "Votes",
    "adjusted_means",
    "aggregate_votes",
    "agreement_ci",
    "arm_differences",
    "arm_mean",
    "asymptotic_cs",
    "bca_mean_ci",
    "bootstrap_means",
    "bootstrap_sums",
    "call_cost",
    "case_clusters",
    "cell_value",
    "censored_latency",
    "cluster_bootstrap",
    "cohen_kappa",
    "confirm_alpha",
    "contrasts",
    "cost_per_solved",
    "cr2",
    "critical_ok",
    "disjoint_tokens",
    "experiment_summary",
    "family_gaps",
    "fleiss_kappa",
    "front_label",
    "group_sequential_boundaries",
    "healthbench_aggregate",
    "holm",
    "judge_badge",
    "korn_graubard",
    "krippendorff_alpha",
    "latency_summary",
    "loop_value",
    "mcnemar_exact",
    "mde",
    "median_count",
    "non_inferiority",
    "optimal_trials",
    "order_check",
    "paired_difference",
    "paired_log_ratio",
    "pareto_front",
    "pass_cell",
    "pass_k",
    "percentiles",
    "pilot_variances",
    "position_bias",
    "ppi_mean",
    "prob_on_front",
    "prob_superiority_trials",
    "probs_on_fronts",
    "proportion_ci",
    "provisional_reasons",
    "quantile_ci",
    "quantiles",
    "rank_intervals",
    "required_cases",
    "rogan_gladen",
    "rogan_gladen_point",
    "score_cell",
    "score_groups",
    "score_range",
    "se_clustered_cells",
    "se_fixed_cases",
    "sign_flip_p",
    "split_holdout",
    "token_cost",
    "verbosity_spearman",
    "wilson_t",
    "wilson_t_cr2",
]
