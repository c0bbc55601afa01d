"""The scored tables of an experiment, read from the ledger: as its judge alone has them, and as they count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eval_pipeline.analysis.questions import JudgedQuestion, load_questions
from eval_pipeline.analysis.tables import ScoredCell, scored_table
from eval_pipeline.store.ledger import ExperimentRow
from eval_pipeline.store.records import Records
from eval_pipeline.store.reviews import Label


@dataclass(frozen=True, kw_only=True)
class Tables:
    """judged: scored by the judge alone. decided: what people said in its place. questions: all that a judge is asked."""

    judged: list[ScoredCell]
    decided: list[ScoredCell]
    questions: list[JudgedQuestion]


def load_tables(
    records: Records,
    experiment: ExperimentRow,
    keys: Sequence[str] | None = None,
    *,
    labels: Mapping[str, Sequence[Label]] | None = None,
    whole: bool = False,
) -> Tables:
    """keys: only those cells; None means all. labels: by question, in place of those in the ledger. whole: see `read_cells`."""
    cells = records.views.cells(experiment.id, keys, whole=whole)
    bundles = [cell.counted.bundle for cell in cells if cell.counted is not None and cell.counted.bundle is not None]
    asked = load_questions(records, experiment, cells, labels)
    verdicts = records.verdicts.of_bundles(bundles) | {one.asked: one.judged for one in asked if one.judged is not None}
    by_hand = {one.asked: row for one in asked if (row := one.by_hand) is not None}
    paid = records.judge_calls.spend(experiment.id)
    judged = scored_table(experiment, cells, verdicts, paid)
    decided = scored_table(experiment, cells, verdicts | by_hand, paid) if by_hand else judged
    return Tables(judged=judged, decided=decided, questions=asked)
