import warnings

import dagster as dg

from eval_pipeline.analysis.tables import ScoredCell
from eval_pipeline.defs.assets import scored_table, shown_count
from eval_pipeline.defs.partitions import EXPERIMENTS
from eval_pipeline.defs.resources import EvalsResource
from eval_pipeline.domain.cell import CellState, Outcome
from eval_pipeline.domain.outcome import MAX_INFRA_RATE

# An unpartitioned check would let one experiment hide another. Dagster calls partitioned ones a preview and warns at each load.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", dg.PreviewWarning)

    @dg.asset_check(asset=scored_table, partitions_def=EXPERIMENTS, description="Every planned cell has a valid result.")
    def completeness(context: dg.AssetCheckExecutionContext, evals: EvalsResource) -> dg.AssetCheckResult:
        cells = _cells(context, evals)
        by_state = {state: sum(cell.state == state for cell in cells) for state in CellState}
        states = {str(state): count for state, count in by_state.items() if count}
        return dg.AssetCheckResult(passed=by_state[CellState.DONE] == len(cells), metadata={"cells": len(cells), **states})

    @dg.asset_check(
        asset=scored_table,
        partitions_def=EXPERIMENTS,
        description=f"At most {MAX_INFRA_RATE:.0%} of the ended attempts were infrastructure failures.",
    )
    def infra_rate(context: dg.AssetCheckExecutionContext, evals: EvalsResource) -> dg.AssetCheckResult:
        outcomes = [attempt.outcome for cell in _cells(context, evals) for attempt in cell.view.attempts]
        ended = [outcome for outcome in outcomes if outcome is not None and outcome != Outcome.CANCELLED]
        failures = sum(outcome == Outcome.INFRA_FAILURE for outcome in ended)
        return dg.AssetCheckResult(
            passed=failures <= MAX_INFRA_RATE * len(ended),
            severity=dg.AssetCheckSeverity.WARN,
            metadata={"attempts": len(ended), "infra_failures": failures},
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


def _cells(context: dg.AssetCheckExecutionContext, evals: EvalsResource) -> list[ScoredCell]:
    from eval_pipeline.analysis.load import load_table

    with evals.records() as records:
        return load_table(records, records.ledger.experiment(context.op_execution_context.partition_key))
