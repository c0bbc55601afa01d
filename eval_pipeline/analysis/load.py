"""The scored table and the leaderboard of an experiment, read from the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from eval_pipeline.analysis.board import JudgeLine, Leaderboard
from eval_pipeline.analysis.leaderboard import leaderboard
from eval_pipeline.analysis.load_calibration import badge_and_means
from eval_pipeline.analysis.load_tables import Tables, load_tables
from eval_pipeline.analysis.origin import judged_by
from eval_pipeline.analysis.standing import alarms
from eval_pipeline.analysis.tables import ScoredCell
from eval_pipeline.store.ledger import ExperimentRow
from eval_pipeline.store.records import Records


def load_table(
    records: Records, experiment: ExperimentRow, keys: Sequence[str] | None = None, *, whole: bool = False
) -> list[ScoredCell]:
    """The table that counts: people's verdicts win. keys: only those cells; None means all. whole: see `read_cells`."""
    return load_tables(records, experiment, keys, whole=whole).decided


def load_leaderboard(records: Records, experiment: ExperimentRow, tables: Tables | None = None) -> Leaderboard:
    """tables: of the whole experiment, where they have been read already."""
    tables = tables or load_tables(records, experiment)
    board = leaderboard(experiment, tables.decided, records.views.leaked())
    return replace(board, judge=_judge_line(records, experiment, tables), alarms=alarms(records.database, experiment.id))


def _judge_line(records: Records, experiment: ExperimentRow, tables: Tables) -> JudgeLine | None:
    judge = experiment.score.judge
    version = judged_by(experiment.score)
    if judge is None or version is None:
        return None
    spent = records.judge_calls.spend(experiment.id, version).values()
    badge, means = badge_and_means(records, experiment, tables)
    return JudgeLine(
        model=judge.model,
        version=version,
        n_calls=sum(one.n_calls for one in spent),
        n_failed_calls=sum(one.n_failed for one in spent),
        cost_usd=float(sum(one.cost_usd for one in spent)),
        n_unpriced=sum(one.n_unpriced for one in spent),
        latency_s=sum(one.latency_s for one in spent),
        badge=badge.badge.removeprefix("judge "),
        badge_reasons=list(badge.reasons),
        n_by_hand=sum(cell.n_by_hand for cell in tables.decided),
        corrected=means,
    )
