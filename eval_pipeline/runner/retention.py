"""Experiments that are put away by themselves: old ones, and the oldest of too many. Nothing is deleted, and all can be taken back."""

from __future__ import annotations

from eval_pipeline.settings import RetentionSettings
from eval_pipeline.store.records import Records
from eval_pipeline.store.views import Rested

MOST_PARTITIONS = 100_000
"""More keys of one asset make Dagster slow; half of them are a reason to say so."""


def archive_old(records: Records, rule: RetentionSettings) -> list[str]:
    """Archive what the rule says; returns the ids. What somebody began to work on meanwhile stays."""
    return [name for name in due(records.views.rested(), rule) if records.ledger.archive(name)]


def due(experiments: list[Rested], rule: RetentionSettings) -> list[str]:
    """Of experiments that are not archived, open ones among them, those to put away, oldest first."""
    newest_first = sorted(experiments, key=lambda one: (one.idle_s, one.experiment))
    old = [
        one.experiment
        for place, one in enumerate(newest_first)
        if place >= rule.keep and one.at_rest and (place >= rule.over or one.idle_s > rule.after_days * 86400)
    ]
    return old[::-1]


def partitions_warning(n_cells: int) -> str | None:
    """n_cells: of experiments that are not archived; each is a partition. None while there is room."""
    if n_cells * 2 < MOST_PARTITIONS:
        return None
    return (
        f"{n_cells} cells are partitions in Dagster, which becomes slow at {MOST_PARTITIONS}: archive experiments "
        "(evals experiment archive), or lower EVALS_ARCHIVE_AFTER_DAYS or EVALS_ARCHIVE_OVER"
    )
