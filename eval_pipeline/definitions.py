"""The code location: everything Dagster knows of this project."""

import dagster as dg

from eval_pipeline.defs.app_image import app_image, build_app_image_hourly, image_job
from eval_pipeline.defs.artifacts import collect_artifacts, collect_artifacts_hourly
from eval_pipeline.defs.asset_checks import completeness, infra_rate, leaked_sandboxes
from eval_pipeline.defs.assets import cell_results, leaderboard, scored_table, world_snapshots
from eval_pipeline.defs.automation import repair_records, results_job, score_finished_experiments, snapshot_job
from eval_pipeline.defs.notifications import send_notifications
from eval_pipeline.defs.reaping import reap_sandboxes
from eval_pipeline.defs.report import report, report_job
from eval_pipeline.defs.resources import EvalsResource
from eval_pipeline.defs.retention import archive_experiments
from eval_pipeline.defs.runs import rerun_failed_cells, run_cells
from eval_pipeline.defs.scheduled import start_due_experiments, start_experiment
from eval_pipeline.defs.secrets import sandbox_secrets, secrets_job, sync_secrets_hourly
from eval_pipeline.defs.warm import warm_sandboxes

defs = dg.Definitions(
    assets=[world_snapshots, sandbox_secrets, app_image, warm_sandboxes, cell_results, scored_table, leaderboard, report],
    asset_checks=[completeness, infra_rate, leaked_sandboxes],
    jobs=[
        snapshot_job,
        secrets_job,
        image_job,
        run_cells,
        rerun_failed_cells,
        results_job,
        report_job,
        collect_artifacts,
        start_experiment,
    ],
    sensors=[
        score_finished_experiments,
        repair_records,
        reap_sandboxes,
        send_notifications,
        archive_experiments,
        start_due_experiments,
    ],
    schedules=[sync_secrets_hourly, build_app_image_hourly, collect_artifacts_hourly],
    resources={"evals": EvalsResource()},
    executor=dg.in_process_executor,
)
