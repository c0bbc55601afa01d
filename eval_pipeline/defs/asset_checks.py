import warnings

import dagster as dg

from eval_pipeline.defs.assets import scored_table, shown_count
from eval_pipeline.defs.partitions import EXPERIMENTS
from eval_pipeline.defs.resources import EvalsResource
from eval_pipeline.domain.cell import CellState
from eval_pipeline.domain.outcome import MAX_INFRA_RATE

# An unpartitioned check would let one experiment hide another. Dagster calls partitioned ones a preview and warns at each load.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", dg.PreviewWarning)

    @dg.asset_check(asset=scored_table, partitions_def=EXPERIMENTS, description="Every planned cell has a valid result.")
    def completeness(context: dg.AssetCheckExecutionContext, evals: EvalsResource) -> dg.AssetCheckResult:
        name = context.op_execution_context.partition_key
        with evals.records() as records:
            tally = records.views.tallies(name)[name]
        n_cells = sum(tally.states.values())
        states = {str(state): tally.states[state] for state in CellState if state in tally.states}
        return dg.AssetCheckResult(passed=tally.n_done == n_cells, metadata={"cells": n_cells, **states})

    @dg.asset_check(
        asset=scored_table,
        partitions_def=EXPERIMENTS,
        description=f"At most {MAX_INFRA_RATE:.0%} of the ended attempts were infrastructure failures.",
    )
    def infra_rate(context: dg.AssetCheckExecutionContext, evals: EvalsResource) -> dg.AssetCheckResult:
        with evals.records() as records:
            n_ended, n_infra = records.views.ended(context.op_execution_context.partition_key)
        return dg.AssetCheckResult(
            passed=n_infra <= MAX_INFRA_RATE * n_ended,
            severity=dg.AssetCheckSeverity.WARN,
            metadata={"attempts": n_ended, "infra_failures": n_infra},
        )

    @dg.asset_check(
        asset=scored_table,
        partitions_def=EXPERIMENTS,
        description="No sandbox of this installation is left that nobody owns. Of all experiments: what is leaked may have lost its name.",
    )
    def leaked_sandboxes(context: dg.AssetCheckExecutionContext, evals: EvalsResource) -> dg.AssetCheckResult:
        with evals.records() as records:
            leaked = records.views.leaked()
        show = dg.MetadataValue.md("`evals sandbox list`, `evals sandbox reap`")
        return dg.AssetCheckResult(
            passed=leaked == 0,
            severity=dg.AssetCheckSeverity.WARN,
            metadata={"leaked_sandboxes": shown_count(leaked), "show": show},
        )
