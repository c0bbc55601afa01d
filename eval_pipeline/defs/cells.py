"""What a run of `cell_results` does, whoever launched it: the CLI, the UI or a backfill."""

import asyncio
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import dagster as dg

from eval_pipeline.analysis.load import load_table
from eval_pipeline.analysis.tables import ScoredCell
from eval_pipeline.defs.events import CELL_RESULTS, CellEvents, Described
from eval_pipeline.runner.engine import Engine, RunReport
from eval_pipeline.runner.services import Services
from eval_pipeline.store.ledger import ExperimentRow
from eval_pipeline.store.records import Records

_ENDING = {dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED}


def run_cells(context: dg.AssetExecutionContext, services: Services, keys: Sequence[str]) -> None:
    """Drive the cells to an end, log each, and raise dg.Failure when some have no valid result.

    A cell that is done already is not run: its result is logged again.
    """
    failed: dict[str, str] = {}
    for experiment_id, group in groupby(keys, key=lambda key: key.partition("/")[0]):
        failed |= _run_experiment(context, services, experiment_id, list(group))
    if failed:
        raise dg.Failure(
            f"{len(failed)} of {len(keys)} cells have no valid result",
            metadata={"cells": dg.MetadataValue.json(failed)},
            allow_retries=False,
        )


def _run_experiment(context: dg.AssetExecutionContext, services: Services, experiment_id: str, keys: list[str]) -> dict[str, str]:
    experiment = services.ledger.experiment(experiment_id)
    events = CellEvents(context.instance, context.run, services.ledger, lambda keys: describe(services.records, experiment, keys))
    engine = Engine(
        services,
        experiment,
        run_id=context.run_id,
        on_done=lambda done: events.put(done.key) if done.outcome is not None and done.outcome.valid else None,
        cancelled=lambda: _run_status(context) in _ENDING,
    )
    try:
        before = set(services.views.keys(experiment_id, ["done"]))
        for key in before.intersection(keys):
            events.put(key)
        report = asyncio.run(engine.run([key for key in keys if key not in before]))
        failed = _without_result(services.records, experiment, keys, report)
        events.failed([key for key in failed if key in report.done])
    finally:
        events.close()
    context.log.info(f"{experiment_id}: {len(report.done)} cells driven, {len(before & set(keys))} were done before")
    return failed


def _run_status(context: dg.AssetExecutionContext) -> dg.DagsterRunStatus | None:
    run = context.instance.get_run_by_id(context.run_id)
    return run.status if run else None


def _without_result(records: Records, experiment: ExperimentRow, keys: list[str], report: RunReport) -> dict[str, str]:
    done = set(records.views.keys(experiment.id, ["done"]))
    why = {key: cell.error or "no valid result" for key, cell in report.done.items()}
    return {key: why.get(key, report.stopped or "not started") for key in keys if key not in done}


def describe(records: Records, experiment: ExperimentRow, keys: Sequence[str]) -> Described:
    """The materializations of those of `keys` that have a valid result, as the ledger knows it."""
    return [
        (
            dg.AssetMaterialization(
                asset_key=CELL_RESULTS,
                partition=str(cell.key),
                metadata=_metadata(cell),
                tags={"dagster/data_version": f"attempt-{cell.counted.id}"},
            ),
            cell.counted.id,
        )
        for cell in load_table(records, experiment, keys)
        if cell.counted is not None
    ]


def _metadata(cell: ScoredCell) -> dict[str, Any]:
    values: dict[str, Any] = {
        "outcome": cell.status,
        "score": cell.score,
        "passed": cell.passed,
        "not_judged": cell.n_not_judged,
        "latency_s": cell.latency_s,
        "cost_usd": None if cell.cost_usd is None else float(cell.cost_usd),
        "bundle": cell.counted.bundle if cell.counted else None,
        "error": cell.error,
    }
    return {**_shown(values), **_links(str(cell.key))}


def _shown(values: dict[str, Any]) -> dict[str, Any]:
    """Dagster shows no null: what could not be had is said in words."""
    return {
        name: "not available" if value is None else value
        for name, value in values.items()
        if value is not None or name != "error"
    }


def _links(key: str) -> dict[str, Any]:
    return {
        "show": dg.MetadataValue.md(f"`evals cell show {key}`"),
        "rerun": dg.MetadataValue.md(f"`evals experiment rerun {key.partition('/')[0]} --cell {key}`"),
    }
