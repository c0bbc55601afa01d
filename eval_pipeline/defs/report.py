from typing import Any

import dagster as dg

from eval_pipeline.defs.assets import OWNERS, leaderboard
from eval_pipeline.defs.partitions import EXPERIMENTS
from eval_pipeline.defs.pools import SCORING_POOL
from eval_pipeline.defs.resources import EvalsResource


@dg.asset(
    partitions_def=EXPERIMENTS, deps=[leaderboard], group_name="results", kinds={"python"}, owners=OWNERS, pool=SCORING_POOL
)
def report(context: dg.AssetExecutionContext, evals: EvalsResource) -> dg.MaterializeResult[Any]:
    """The whole result as pages for a browser, on the machine that wrote them: tables, plots, and a page a cell."""
    from eval_pipeline.analysis.report import report_folder, write_report  # slow to load, and few runs write one

    with evals.records() as records:
        experiment = records.ledger.experiment(context.partition_key)
        made = write_report(records, evals.store(), experiment, report_folder(evals.settings(), experiment.id))
    return dg.MaterializeResult(
        metadata={
            "index": dg.MetadataValue.path(made.index),
            "link": dg.MetadataValue.url(made.index.as_uri()),
            "status": made.status,
            "pages": made.n_pages + 1,
            "size_bytes": made.size_bytes,
            "dagster/row_count": made.n_cells,
            "write": dg.MetadataValue.md(f"`evals report {experiment.id}`"),
        }
    )


report_job = dg.define_asset_job("report_experiment", selection=[report], description="Write an experiment's report.")
