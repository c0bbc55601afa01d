"""The leaderboard of an imported table: the same statistics on what it holds, and nothing that it does not know."""

from __future__ import annotations

from collections import Counter

from eval_pipeline.analysis.board import ImportedFrom, Leaderboard
from eval_pipeline.analysis.imported.shelf import sources_of
from eval_pipeline.analysis.imported.table import ImportedTable
from eval_pipeline.analysis.leaderboard import RESAMPLES, Ground, stand
from eval_pipeline.analysis.measures import by_arm


def imported_board(table: ImportedTable, resamples: int = RESAMPLES) -> Leaderboard:
    """resamples: of the bootstrap for the front."""
    cells, found = table.cells, by_arm(table.cells)
    ground = Ground(worlds={}, span=(table.low, table.high), trials=table.trials, baseline=None, resamples=resamples)
    placed = stand({arm.name: found[arm.name] for arm in table.arms}, {arm.name: None for arm in table.arms}, ground)
    absent = table.n_absent + sum(arm.n_absent or 0 for arm in table.arms)
    lost = [f"planned cells that are not in the files, which do not say of which cases: {absent}"] if absent else []
    reasons = [*placed.reasons, *lost]
    return Leaderboard(
        experiment=table.name,
        status="provisional" if reasons else "final",
        reasons=reasons,
        policy="as imported",
        baseline=None,
        arms=placed.arms,
        spent_usd=float(sum(cell.spent_usd for cell in cells)),
        sandbox_spent_usd=0.0,
        n_sandbox_unknown=0,
        n_open=sum(not cell.valid for cell in cells),
        n_unsafe=0,
        n_cells=len(cells),
        missing=dict(Counter(cell.status for cell in cells if not cell.valid)),
        leaked_sandboxes=None,
        open_egress=None,
        overhead_usd=0.0,
        n_overhead_unknown=0,
        n_measured=0,
        comparisons=placed.comparisons,
        unranked=placed.unranked,
        coverage=sum(cell.score is not None for cell in cells) / len(cells),
        n_cases=placed.n_cases,
        n_common_cases=placed.n_common,
        versions=None,
        imported=ImportedFrom(
            system=table.system,
            score=table.score,
            low=table.low,
            high=table.high,
            pass_at=table.pass_at,
            digest=table.digest,
            files=sources_of(table),
            notes=table.notes,
            n_unknown_cost=sum(row.ran and row.cost_usd is None for arm in table.arms for row in arm.rows),
        ),
    )
