"""Dagster's run launcher, as dagster.yaml names it."""

import dagster as dg


class RunLauncher(dg.DefaultRunLauncher):
    """Dagster's own says that it can't end what it did not launch. A run that `evals` launched sees by itself that it is to end."""

    def terminate(self, run_id: str) -> bool:
        if super().terminate(run_id):
            return True
        run = self._instance.get_run_by_id(run_id)
        return run is not None and run.remote_job_origin is None and run.status is dg.DagsterRunStatus.CANCELING
