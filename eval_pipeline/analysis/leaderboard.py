"""The leaderboard: one row an arm, with what is missing counted beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eval_pipeline.analysis.arm_rows import arm_row
from eval_pipeline.analysis.board import ArmRow, Comparison, Leaderboard, Versions
from eval_pipeline.analysis.measures import by_arm, span_of, worlds_of
from eval_pipeline.analysis.origin import judged_by
from eval_pipeline.analysis.ranking import gaps, ranked
from eval_pipeline.analysis.stats import experiment_summary, provisional_reasons
from eval_pipeline.analysis.tables import ScoredCell, counted_status
from eval_pipeline.scoring.prices import PriceBook
from eval_pipeline.store.ledger import ExperimentRow

RESAMPLES = 10_000

__all__ = ["ArmRow", "Ground", "Leaderboard", "leaderboard", "stand", "versions_of"]


@dataclass(frozen=True, kw_only=True)
class Ground:
    """What arms in one table have in common. span: lowest and highest score. resamples: of the bootstrap for the front."""

    worlds: Mapping[str, str]
    span: tuple[float, float]
    trials: int
    baseline: str | None
    resamples: int = RESAMPLES


@dataclass(frozen=True, kw_only=True)
class Stand:
    """arms: in the order given. reasons: why the table is provisional; empty when it is final. The rest: see `Leaderboard`."""

    arms: list[ArmRow]
    comparisons: list[Comparison]
    reasons: list[str]
    unranked: list[str]
    n_cases: int
    n_common: int


def stand(of_arm: Mapping[str, Sequence[ScoredCell]], models: Mapping[str, object], ground: Ground) -> Stand:
    """of_arm: by the name that the arm has in the table, a cell for each that is planned. models: likewise, what each says it runs."""
    worlds, span = ground.worlds, ground.span
    summaries = experiment_summary(
        (
            (arm, cell.key.case_name, cell.key.trial, counted_status(cell), cell.score)
            for arm, cells in of_arm.items()
            for cell in cells
        ),
        worlds,
        span,
    )
    rows = [arm_row(arm, cells, summaries[arm], ground.trials, worlds, models[arm]) for arm, cells in of_arm.items()]
    placed = ranked(rows, of_arm, ground.baseline, worlds, span, ground.resamples)
    return Stand(
        arms=placed.arms,
        comparisons=placed.comparisons,
        reasons=list(dict.fromkeys([*provisional_reasons(summaries), *gaps(rows)])),
        unranked=placed.unranked,
        n_cases=placed.n_cases,
        n_common=placed.n_common,
    )


def leaderboard(
    experiment: ExperimentRow, cells: Sequence[ScoredCell], leaked_sandboxes: int | None = None, resamples: int = RESAMPLES
) -> Leaderboard:
    """cells: one for each that is planned. resamples: of the bootstrap for the front."""
    found = by_arm(cells)
    ground = Ground(
        worlds=worlds_of(experiment),
        span=span_of(experiment),
        trials=experiment.run.trials,
        baseline=experiment.baseline,
        resamples=resamples,
    )
    arms = experiment.run.arms
    placed = stand({arm.name: found[arm.name] for arm in arms}, {arm.name: arm.config.get("model") for arm in arms}, ground)
    return Leaderboard(
        experiment=experiment.id,
        status="provisional" if placed.reasons else "final",
        reasons=placed.reasons,
        policy=experiment.score.policy,
        baseline=experiment.baseline,
        arms=placed.arms,
        spent_usd=float(sum(cell.spent_usd for cell in cells)),
        sandbox_spent_usd=float(sum(cell.sandbox_spent_usd for cell in cells)),
        n_sandbox_unknown=sum(cell.n_sandbox_unknown for cell in cells),
        n_open=sum(not cell.valid for cell in cells),
        n_unsafe=sum(cell.view.unsafe for cell in cells),
        n_cells=len(cells),
        missing=dict(Counter(cell.state for cell in cells if not cell.valid)),
        leaked_sandboxes=leaked_sandboxes,
        open_egress=next(filter(None, (cell.view.open_egress for cell in cells)), None),
        overhead_usd=float(sum(cell.overhead_usd for cell in cells)),
        n_overhead_unknown=sum(cell.n_overhead_unknown for cell in cells),
        n_measured=sum(cell.usage_source == "measured" for cell in cells),
        comparisons=placed.comparisons,
        unranked=placed.unranked,
        coverage=sum(cell.score is not None for cell in cells) / len(cells) if cells else 0.0,
        n_cases=placed.n_cases,
        n_common_cases=placed.n_common,
        versions=versions_of(experiment),
    )


def versions_of(experiment: ExperimentRow) -> Versions:
    return Versions(
        run=experiment.run.digest,
        score=experiment.score.digest,
        judge=judged_by(experiment.score),
        prices=PriceBook.from_rows(experiment.score.prices, f"{experiment.id}: prices").version,
        scoring=experiment.score.scoring_version,
    )
