"""The statistics of the product, one name each.

stat_scores     verdicts -> score, pass, value in a mean
stat_arms       cells -> an arm's mean, bounds, interval; arms -> comparable means
stat_intervals  CR2, Wilson with t, Korn-Graubard, proportions, trial noise
stat_bootstrap  resampling of clusters
stat_latency    quantiles under timeouts

None means undefined or missing, everywhere; no function returns NaN, and none puts 0 in its place.
"""

from eval_pipeline.analysis.stat_arms import (
    AdjustedMeans,
    ArmMean,
    ArmSummary,
    adjusted_means,
    arm_mean,
    experiment_summary,
    provisional_reasons,
)
from eval_pipeline.analysis.stat_bootstrap import bca_mean_ci, cluster_bootstrap, resampled_cases
from eval_pipeline.analysis.stat_intervals import (
    cr2,
    korn_graubard,
    proportion_ci,
    se_clustered_cells,
    se_fixed_cases,
    wilson_t,
    wilson_t_cr2,
)
from eval_pipeline.analysis.stat_latency import LatencyCell, LatencySummary, censored_latency, latency_summary, quantiles
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
    score_range,
)

__all__ = [
    "STATUS_RULES",
    "AdjustedMeans",
    "ArmMean",
    "ArmSummary",
    "CellScore",
    "CriterionVerdict",
    "LatencyCell",
    "LatencySummary",
    "adjusted_means",
    "arm_mean",
    "bca_mean_ci",
    "cell_value",
    "censored_latency",
    "cluster_bootstrap",
    "cr2",
    "critical_ok",
    "experiment_summary",
    "healthbench_aggregate",
    "korn_graubard",
    "latency_summary",
    "median_count",
    "pass_cell",
    "proportion_ci",
    "provisional_reasons",
    "quantiles",
    "resampled_cases",
    "score_cell",
    "score_range",
    "se_clustered_cells",
    "se_fixed_cases",
    "wilson_t",
    "wilson_t_cr2",
]
