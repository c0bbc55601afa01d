"""Whether a job's run before has ended: for schedules that must not overlap themselves."""

import dagster as dg

_UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


def unfinished_run(instance: dg.DagsterInstance, job: str) -> str | None:
    """The id of one of the job's runs that has not ended; None when all have."""
    found = instance.get_run_records(dg.RunsFilter(job_name=job, statuses=_UNFINISHED), limit=1)
    return found[0].dagster_run.run_id if found else None
