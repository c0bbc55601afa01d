import asyncio
from typing import TYPE_CHECKING, Any

import dagster as dg

from eval_pipeline.analysis.frame import column_types, encoded, scored_frame
from eval_pipeline.analysis.tables import count_failures
from eval_pipeline.defs.partitions import CELLS, EXPERIMENTS, LINEAGE_ONLY, WORLDS
from eval_pipeline.defs.pools import CELLS_POOL, SCORING_POOL
from eval_pipeline.defs.resources import EvalsResource
from eval_pipeline.defs.runs import run_partitions
from eval_pipeline.environment.snapshotting import record_snapshot
from eval_pipeline.runner.finish import judge_missing
from eval_pipeline.runner.notify import tell_finished

if TYPE_CHECKING:  # the statistics are loaded when they are asked for: no agent waits for them
    from eval_pipeline.analysis.board import Leaderboard

OWNERS = ["team:evals"]


@dg.asset(partitions_def=WORLDS, group_name="worlds", kinds={"python", "postgres"}, owners=OWNERS)
def world_snapshots(context: dg.AssetExecutionContext, evals: EvalsResource) -> dg.MaterializeResult[Any]:
    """A world packed into one archive and addressed by the digest of its content; stored once, never changed."""
    world = evals.library().world(context.partition_key)
    with evals.records() as records:
        made = record_snapshot(world, evals.store(), records.ledger)
    metadata = {"digest": made.digest, "files": made.n_files, "size_bytes": made.size_bytes, "title": world.spec.title}
    return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(made.digest))


@dg.multi_asset(
    name="cell_results",
    specs=[
        dg.AssetSpec(
            "cell_results",
            deps=[
                dg.AssetDep(world_snapshots, partition_mapping=LINEAGE_ONLY),
                "sandbox_secrets",
                "app_image",
            ],
            description=(
                "One independent run a partition, `experiment/world.case/arm/trial`: an isolated sandbox, the agent, its stored output. "
                "A cell with a valid result is never run again; launching it only logs the result again."
            ),
            group_name="experiments",
            kinds={"python", "postgres"},
            owners=OWNERS,
            skippable=True,
        )
    ],
    partitions_def=CELLS,
    backfill_policy=dg.BackfillPolicy.single_run(),
    pool=CELLS_POOL,
)
def cell_results(context: dg.AssetExecutionContext, evals: EvalsResource) -> Any:
    with evals.services() as services:
        run_partitions(context.op_execution_context, services)
    yield from ()


JUDGED = "evals/judged"
"""The tag of a run before which its judge was asked."""


@dg.asset(
    partitions_def=EXPERIMENTS,
    deps=[dg.AssetDep("cell_results", partition_mapping=LINEAGE_ONLY)],
    group_name="results",
    kinds={"python", "postgres"},
    owners=OWNERS,
    pool=SCORING_POOL,
    metadata={
        "dagster/column_schema": dg.TableSchema(columns=[dg.TableColumn(name, kind) for name, kind in column_types().items()])
    },
)
def scored_table(context: dg.AssetExecutionContext, evals: EvalsResource) -> dg.MaterializeResult[Any]:
    """One row a cell: identity, outcome, score and bounds, usage, cost, latency. A view over verdicts, stored as Parquet and CSV."""
    from eval_pipeline.analysis.load import load_table

    with evals.services() as services:
        experiment = services.ledger.experiment(context.partition_key)
        judged = asyncio.run(judge_missing(services, experiment, ask=JUDGED not in context.run.tags))
        cells = load_table(services.records, experiment)
        counts = {
            "dagster/row_count": len(cells),
            "cells_valid": sum(cell.valid for cell in cells),
            "cells_not_judged": sum(cell.n_not_judged > 0 for cell in cells),
            **{f"failed_{kind}": count for kind, count in count_failures(cells).items()},
        }
        frame = scored_frame(cells)
        del cells  # of a large experiment as much memory again as its frame
        stored = {form: services.store.put_bytes(encoded(frame, form)) for form in ("parquet", "csv")}
    return dg.MaterializeResult(
        metadata={
            **counts,
            "cells_expected": experiment.n_cells,
            "cells_judged_now": judged.n_cells,
            "judge_calls": judged.n_calls,
            **({} if judged.stopped is None else {"judging_stopped": judged.stopped}),
            **{form: dg.MetadataValue.url(services.store.url(artifact.digest)) for form, artifact in stored.items()},
            "export": dg.MetadataValue.md(f"`evals export {experiment.id} --output table.parquet`"),
            "leaked_sandboxes": shown_count(services.views.leaked()),
            "score_lock": experiment.score.digest,
        }
    )


_BOARD_COLUMNS = {
    "arm": "string", "rank_best": "int", "rank_worst": "int", "score": "float", "ci_low": "float", "ci_high": "float",
    "pass_rate": "float", "cost_usd_mean": "float", "latency_p50_s": "float", "latency_p95_s": "float", "coverage": "float",
    "n_valid": "int", "n_cells": "int", "n_not_judged": "int",
}  # fmt: skip


def shown_count(count: int | None) -> int | str:
    """Dagster shows no null."""
    return "not available" if count is None else count


@dg.asset(
    partitions_def=EXPERIMENTS,
    deps=[scored_table],
    group_name="results",
    kinds={"python", "postgres"},
    owners=OWNERS,
    pool=SCORING_POOL,
)
def leaderboard(context: dg.AssetExecutionContext, evals: EvalsResource) -> dg.MaterializeResult[Any]:
    """Arms side by side: score with its interval, pass rate, cost, latency, and what is missing."""
    from eval_pipeline.analysis.board_text import detail_grid, in_order
    from eval_pipeline.analysis.forest import forest_markdown
    from eval_pipeline.analysis.load import load_leaderboard

    with evals.records() as records:
        experiment = records.ledger.experiment(context.partition_key)
        board = load_leaderboard(records, experiment)
        tell_finished(evals.settings(), records, experiment, board)
    return dg.MaterializeResult(
        metadata={
            "status": board.status,
            "reasons": dg.MetadataValue.json(board.reasons),
            "table": dg.MetadataValue.md(_board_markdown(board)),
            "picture": dg.MetadataValue.md(forest_markdown(in_order(board))),
            "details": dg.MetadataValue.md(detail_grid(board).as_markdown()),
            "arms": arm_records(board),
            "board": dg.MetadataValue.json(board.as_data()),
            "dagster/row_count": len(board.arms),
            "show": dg.MetadataValue.md(f"`evals leaderboard {experiment.id}`"),
        }
    )


def _board_markdown(board: "Leaderboard") -> str:
    from eval_pipeline.analysis.board_text import NEW_CASES, comparison_grid, main_grid, standing

    grids = [main_grid(board), *([comparison_grid(board.comparisons, board.baseline)] if board.comparisons else [])]
    tables = [f"{grid.title}\n\n{grid.as_markdown()}" for grid in grids]
    return "\n\n".join([*tables, *standing(board), NEW_CASES])


def arm_records(board: "Leaderboard") -> dg.TableMetadataValue:
    """Every row has every column, as Dagster asks of a table; what could not be had is null."""
    from eval_pipeline.analysis.board_text import in_order
    from eval_pipeline.analysis.board_text import name as name_of

    schema = dg.TableSchema(columns=[dg.TableColumn(name, kind) for name, kind in _BOARD_COLUMNS.items()])
    rows = [{name: getattr(arm, name) for name in _BOARD_COLUMNS} | {"arm": name_of(arm, board)} for arm in in_order(board)]
    return dg.TableMetadataValue(records=[dg.TableRecord(row) for row in rows], schema=schema)
