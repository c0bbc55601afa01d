"""The three ways to drive cells: partitions of the asset, an experiment for the first time, and what is left of one."""

from datetime import datetime

import dagster as dg

from eval_pipeline.defs.backfills import backfill_of
from eval_pipeline.defs.cells import Drive, cell_events, raise_for
from eval_pipeline.defs.partitions import EXPERIMENTS
from eval_pipeline.defs.pools import CELLS_POOL
from eval_pipeline.defs.resources import EvalsResource
from eval_pipeline.domain.cell import CellState
from eval_pipeline.runner.services import Services


class CellsConfig(dg.Config):
    """keys: only these cells; empty means all of the experiment that have no valid result.

    lift_cancel: whether the run sets aside that the experiment was cancelled before it.
    """

    keys: list[str] = []
    lift_cancel: bool = True


def run_partitions(context: dg.OpExecutionContext, services: Services) -> None:
    """The run's own partitions; in a backfill those of all its runs, which are then closed (see backfills.py)."""
    own = list(context.partition_keys)
    backfill = backfill_of(context.instance, context.run)
    with cell_events(context, services.records) as events:
        drive = Drive(context, services, events, backfill.asked_at if backfill else _created_at(context))
        left = drive.run(backfill.cells() if backfill else own)
        if backfill is not None:
            closed = backfill.close_waiting(left, events.put, drive.ending)
            context.log.info(f"closed {closed} other runs of backfill {backfill.id}")
    mine = {key: left[key] for key in own if key in left}
    raise_for(context, mine, len(own))


@dg.op(
    pool=CELLS_POOL,
    description="Drive an experiment's cells in one engine; each valid result becomes a materialization of cell_results.",
)
def drive_cells(context: dg.OpExecutionContext, config: CellsConfig, evals: EvalsResource) -> None:
    with evals.services() as services, cell_events(context, services.records) as events:
        keys = config.keys or services.views.keys(
            context.partition_key, [state for state in CellState if state != CellState.DONE]
        )
        drive = Drive(context, services, events, _created_at(context), lift_cancel=config.lift_cancel)
        left = drive.run(keys)
        events.failed(drive.failed)
    raise_for(context, left, len(keys))


@dg.job(partitions_def=EXPERIMENTS, description="Run the cells of an experiment. `evals experiment run` launches it.")
def run_cells() -> None:
    drive_cells()


@dg.job(
    partitions_def=EXPERIMENTS,
    description="Run what has no valid result: the failed and the open cells of an experiment. Valid ones are never run again.",
)
def rerun_failed_cells() -> None:
    drive_cells()


def _created_at(context: dg.OpExecutionContext) -> datetime:
    record = context.instance.get_run_record_by_id(context.run_id)
    assert record is not None
    return record.create_timestamp
