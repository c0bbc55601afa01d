"""The code location: everything Dagster knows of this project."""

import dagster as dg

from eval_pipeline.defs.assets import cell_results, leaderboard, scored_table, world_snapshots
from eval_pipeline.defs.automation import cells_job, repair_records, results_job, score_finished_experiments, snapshot_job
from eval_pipeline.defs.resources import EvalsResource

defs = dg.Definitions(
    assets=[world_snapshots, cell_results, scored_table, leaderboard],
    jobs=[snapshot_job, cells_job, results_job],
    sensors=[score_finished_experiments, repair_records],
    resources={"evals": EvalsResource()},
    executor=dg.in_process_executor,
)
